//! `djinn run`

use std::time::Instant;

use djinn_engine::{Engine, Finish, Logprob, Positions, Probe, Request, Sampling, Transcript};
use djinn_memory::Size;
use djinn_model::{Generation, Model};
use serde_json::{Value, json};

use super::{finish, kept, prompt, remote, sessions::number, start, steer::changes, watch::Watch};
use crate::{
    args::{RunArgs, SamplingArgs},
    bundled,
    failure::{Failure, say, say_json},
    style::{id_list, seconds},
};

/// Tokens to generate where neither flag nor model says.
const MAX_TOKENS: usize = 256;

/// When things happened, in seconds.
pub(super) struct Timing {
    pub(super) load: f64,
    pub(super) first_token: f64,
    pub(super) rest: f64,
}

impl Timing {
    /// Tokens a second after the first of so many.
    pub(super) fn rate(&self, tokens: usize) -> f64 {
        match tokens.saturating_sub(1) {
            0 => 0.0,
            after_first => after_first as f64 / self.rest,
        }
    }
}

/// Generates text from a prompt.
pub fn run(args: RunArgs) -> Result<(), Failure> {
    if args.stop.iter().any(String::is_empty) {
        return Err(Failure::Message(
            "--stop wants text: an empty one would stop nothing".into(),
        ));
    }
    if args.server.server.is_some() {
        return remote::run::run(&args);
    }
    let session = session(&args)?;
    let model = bundled::open(args.model.model.as_deref())?;
    let request = request(&model, &args)?;
    let sampled = request.sampling.temperature > 0.0;
    let seed = (session.is_none()).then_some(request.sampling.seed);
    let shown = prompt_text(&model, &request.tokens).filter(|_| !args.json);
    let given = request.tokens.clone();
    let mut watch = Watch::new(&args.watch)?;
    let started = Instant::now();
    let settled = args.model.settled()?;
    let (mut engine, id, generated) = match args.state {
        Some(ref folder) => {
            let which = (folder.as_path(), session);
            let kept = kept::start(&settled, model, which, request, &mut watch)?;
            if !args.json {
                say(&kept.rest)?;
            }
            (kept.engine, kept.id, kept.generated)
        }
        None => {
            let (engine, ids) = start(&settled, model, vec![request], &mut watch)?;
            (engine, ids[0], 0)
        }
    };
    let load = started.elapsed().as_secs_f64();
    note_what_is_unused(engine.model().chat.is_some(), &args, sampled);
    let told = generate(&mut engine, shown, load, &mut watch);
    // Most wanted where something went wrong.
    let timeline = watch.write_timeline(&engine);
    if told.is_err() {
        eprint!("{}", watch.table());
    }
    let (text, timing, end) = told?;
    let mut transcript = match args.state {
        Some(_) => kept::so_far(&engine, id, generated)?,
        None => finish(&mut engine, id)?,
    };
    transcript.finish = transcript.finish.or(end);
    transcript.prompt = given;
    if args.json {
        let mut report = report(&engine, &text, &transcript, &timing, seed);
        if args.state.is_some() {
            report["session"] = json!(id.0);
        }
        watch.add_to(&mut report);
        say_json(&report)?;
    } else {
        if engine.model().tokenizer.is_none() {
            say(&format!("{}\n", id_list(&transcript.generated)))?;
        }
        let drawn = sampled && args.sampling.seed.is_none();
        let seed = seed.filter(|_| drawn);
        eprintln!("{}", summary(&engine, &transcript, &timing, seed));
        eprint!("{}", watch.table());
        if let Some(folder) = &args.state {
            eprintln!(
                "session {} is kept: djinn run --state {} --session {} --prompt '…' goes on with it",
                id.0,
                folder.display(),
                id.0
            );
        }
    }
    timeline
}

/// The session of the folder that goes on.
fn session(args: &RunArgs) -> Result<Option<u64>, Failure> {
    match (&args.session, &args.state) {
        (Some(_), None) => Err(Failure::Message(
            "--session wants --state DIR, or --server ADDR".into(),
        )),
        (Some(id), Some(_)) => Ok(Some(number(id)?)),
        (None, _) => Ok(None),
    }
}

/// Tells of what was given or is there and will not be used.
pub(super) fn note_what_is_unused(has_chat: bool, args: &RunArgs, sampled: bool) {
    if has_chat && !args.prompt.chat && args.prompt.prompt.is_some() {
        eprintln!("note: this model has a chat template; --chat uses it");
    }
    let SamplingArgs {
        top_k,
        top_p,
        min_p,
        ..
    } = args.sampling;
    if !sampled && (top_k.is_some() || top_p.is_some() || min_p.is_some()) {
        eprintln!("note: temperature is 0, so the likeliest token is taken whatever else is set");
    }
}

fn request(model: &Model, args: &RunArgs) -> Result<Request, Failure> {
    let tokens = match args.session {
        Some(_) => prompt::more(model, &args.prompt)?,
        None => prompt::tokens(model, &args.prompt)?,
    };
    let edits = changes(model, &args.changes)?;
    let mut sampling = sampling(&args.sampling, &model.generation);
    sampling.logprobs = args.logprobs;
    // A limit on the whole text is one on what the prompt leaves of it.
    let by_model = model.generation.max_new_tokens.or_else(|| {
        let length = model.generation.max_length?;
        length.checked_sub(tokens.len()).filter(|&n| n > 0)
    });
    Ok(Request {
        tokens,
        max_tokens: args.max_tokens.or(by_model).unwrap_or(MAX_TOKENS),
        sampling,
        eos: if args.ignore_eos {
            Vec::new()
        } else {
            model.generation.eos.clone()
        },
        stop: args.stop.clone(),
        probe: Probe::new(&model.program, &[""; 0], Positions::All, &edits)?,
        ..Request::default()
    })
}

/// Flags first, then what the model recommends, then greedy.
pub(super) fn sampling(args: &SamplingArgs, model: &Generation) -> Sampling {
    let default = Sampling::default();
    let by_model = if model.do_sample {
        model.temperature
    } else {
        default.temperature
    };
    Sampling {
        temperature: args.temperature.unwrap_or(by_model),
        top_k: args.top_k.unwrap_or(model.top_k),
        top_p: args.top_p.unwrap_or(model.top_p),
        min_p: args.min_p.unwrap_or(model.min_p),
        repetition_penalty: args.repetition_penalty.unwrap_or(model.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: args.logit_bias.clone(),
        seed: args.seed.unwrap_or_else(fresh_seed),
        logprobs: None,
    }
}

/// A seed nobody chose, short enough to be typed again.
pub fn fresh_seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| u64::from(d.subsec_nanos()) ^ d.as_secs()) % 1_000_000
}

/// Runs to the end, and says how that came. Where there is a prompt to show, text streams
/// after it.
fn generate(
    engine: &mut Engine,
    prompt: Option<String>,
    load: f64,
    watch: &mut Watch,
) -> Result<(String, Timing, Option<Finish>), Failure> {
    let stream = prompt.is_some();
    say(&prompt.unwrap_or_default())?;
    let started = Instant::now();
    let (mut text, mut first_token, mut finish) = (String::new(), None, None);
    while !engine.is_idle() {
        let outputs = engine.step()?;
        watch.passed(engine);
        for output in outputs {
            first_token.get_or_insert_with(|| started.elapsed().as_secs_f64());
            if stream {
                say(&output.text)?;
            }
            text.push_str(&output.text);
            finish = output.finish.or(finish);
        }
    }
    if stream {
        say("\n")?;
    }
    let whole = started.elapsed().as_secs_f64();
    let first_token = first_token.unwrap_or(whole);
    let timing = Timing {
        load,
        first_token,
        rest: whole - first_token,
    };
    Ok((text, timing, finish))
}

/// The prompt as text, which a story continues.
fn prompt_text(model: &Model, tokens: &[u32]) -> Option<String> {
    model.tokenizer.as_ref()?.decode(tokens, true).ok()
}

fn summary(engine: &Engine, transcript: &Transcript, timing: &Timing, seed: Option<u64>) -> String {
    let footprint = engine.footprint();
    let device = engine.device();
    let seed = seed.map_or(String::new(), |seed| format!(" · seed {seed}"));
    format!(
        "{} tokens · {:.1} tokens/s · first token {} · {} ({} weights, {} KV, {} activations) · {} ({}){seed}",
        transcript.generated.len(),
        timing.rate(transcript.generated.len()),
        seconds(timing.first_token),
        Size(footprint.total()),
        Size(footprint.weights()),
        Size(footprint.kv),
        Size(footprint.activations),
        device.name,
        device.detail,
    )
}

fn report(
    engine: &Engine,
    text: &str,
    transcript: &Transcript,
    timing: &Timing,
    seed: Option<u64>,
) -> Value {
    let footprint = engine.footprint();
    let text_of = |token: u32| {
        let tokenizer = engine.model().tokenizer.as_ref()?;
        tokenizer.decode(&[token], false).ok()
    };
    let logprob =
        |l: &Logprob| json!({ "token": l.token, "text": text_of(l.token), "logprob": l.logprob });
    let logprobs: Vec<Value> = transcript
        .logprobs
        .iter()
        .map(|all| {
            let mut chosen = logprob(&all[0]);
            chosen["top"] = all[1..].iter().map(logprob).collect();
            chosen
        })
        .collect();
    json!({
        "model": engine.model().name,
        "device": engine.device().name,
        "device_detail": engine.device().detail,
        "prompt_ids": transcript.prompt,
        "output_ids": transcript.generated,
        "text": text,
        "finish": transcript.finish.map(|f| f.to_string()),
        "seed": seed,
        "logprobs": logprobs,
        "tokens_per_s": timing.rate(transcript.generated.len()),
        "first_token_s": timing.first_token,
        "load_s": timing.load,
        "memory": {
            "weights_bytes": footprint.weights(),
            "resident_bytes": footprint.resident,
            "ring_bytes": footprint.ring,
            "experts_bytes": footprint.pool,
            "kv_bytes": footprint.kv,
            "activations_bytes": footprint.activations,
            "peak_rss_bytes": djinn_device::host::peak_rss_bytes(),
        },
    })
}
