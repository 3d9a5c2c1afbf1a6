//! `djinn trace`

use djinn_engine::{Engine, Positions, Probe, Request, check_writable};
use djinn_model::Model;

use super::{finish, prompt, remote, start, steer::changes, traced::Traced, watch::Watch};
use crate::{args::TraceArgs, bundled, failure::Failure};

/// Runs a prompt and keeps what was at the hooks.
pub fn trace(args: TraceArgs) -> Result<(), Failure> {
    if let Some(out) = &args.out {
        check_writable(out)?;
    }
    if args.server.server.is_some() {
        return remote::trace::trace(&args);
    }
    let model = bundled::open(args.model.model.as_deref())?;
    let request = request(&model, &args)?;
    let mut watch = Watch::new(&args.watch)?;
    let (mut engine, ids) = start(&args.model.settled()?, model, vec![request], &mut watch)?;
    let ran = run_out(&mut engine, &mut watch);
    watch.write_timeline(&engine)?;
    if ran.is_err() {
        eprint!("{}", watch.table());
    }
    ran?;
    let transcript = finish(&mut engine, ids[0])?;
    let model = engine.model();
    let hooks = model.program.hooks().into_iter();
    let text = model.tokenizer.as_ref();
    let traced = Traced {
        model: model.name.clone(),
        order: hooks.map(|site| site.to_string()).collect(),
        tensors: transcript.captured.tensors(),
        text: text.and_then(|text| text.decode(&transcript.generated, true).ok()),
        finish: transcript.finish.map(|finish| finish.to_string()),
        prompt: transcript.prompt,
        generated: transcript.generated,
    };
    traced.tell(&args, &watch)
}

fn run_out(engine: &mut Engine, watch: &mut Watch) -> Result<(), Failure> {
    while !engine.is_idle() {
        engine.step()?;
        watch.passed(engine);
    }
    Ok(())
}

fn request(model: &Model, args: &TraceArgs) -> Result<Request, Failure> {
    let tokens = prompt::tokens(model, &args.prompt)?;
    let edits = changes(model, &args.changes)?;
    let captures: Vec<String> = args.capture.iter().flat_map(|text| apart(text)).collect();
    let probe = Probe::new(&model.program, &captures, Positions::Prompt, &edits)?;
    Ok(Request {
        tokens,
        max_tokens: args.generate,
        probe,
        ..Request::default()
    })
}

/// Captures that commas keep apart: those within brackets and lists of positions do not.
pub(super) fn apart(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for part in text.split(',') {
        let goes_on = part.starts_with(|c: char| c.is_ascii_digit() || c == '-');
        match all.last_mut() {
            Some(last) if goes_on => *last = format!("{last},{part}"),
            _ => all.push(part.to_owned()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::apart;

    #[test]
    fn commas_keep_captures_apart() {
        let check = |text: &str, expect: &[&str]| assert_eq!(apart(text), expect, "{text}");
        check("a,b", &["a", "b"]);
        check("a[0,2..4]@1,-1|mean,b@3", &["a[0,2..4]@1,-1|mean", "b@3"]);
    }
}
