//! `djinn patch`

use djinn_analysis::{
    AnalysisError, PatchComparison, PatchGrid, PatchPrompts, StopSwitch, check_lengths,
    patch_settings,
};
use djinn_engine::{Settings, SizeRange};
use djinn_terminal::{Failure, Interrupt, grid, say, say_json};
use djinn_types::text::seconds;
use serde_json::{Value, json};

use super::{
    connection::{LocalEngine, SizeFn, on_model},
    prompt::local_text_tokens,
};
use crate::args::PatchArgs;

/// Patches residuals of one prompt into another and prints how much of the answer returns.
pub fn patch(args: &PatchArgs) -> Result<(), Failure> {
    let engine = LocalEngine::new(settings(args));
    // Sessions on a server outlive this process, so Ctrl-C closes them first.
    let interrupt = match args.server.server {
        Some(_) => Interrupt::by_key()?,
        None => Interrupt::never(),
    };
    let (model, texts, found) = on_model(&args.server, &args.model, engine, async |connection| {
        let model = &connection.model;
        let prompts = PatchPrompts::tokenize(
            model,
            [&args.clean, &args.corrupt],
            [&args.answer, &args.instead],
        );
        let prompts = prompts.await?;
        let info = connection.model_info().await?;
        let dims = info.dims.unwrap_or_default();
        let (switch, stop) = StopSwitch::new();
        let pressed = tokio::spawn(async move {
            interrupt.pressed().await;
            switch.stop();
        });
        let found = djinn_analysis::patch(model, &dims, &prompts, args.compare, &stop).await;
        pressed.abort();
        let found = found.map_err(|error| match error {
            AnalysisError::Stopped => Failure::Interrupted,
            error => error.into(),
        })?;
        Ok((info.name, prompts.texts, found))
    })?;
    match args.json {
        true => say_json(&to_json(&found, &model))?,
        false => say(&to_text(&found, &texts))?,
    }
    match found.comparison.is_some_and(|comparison| !comparison.equal) {
        true => Err(Failure::Message(
            "patches by branches and patches computed from the first token give different logits; please report \
             this as a bug".into(),
        )),
        false => Ok(()),
    }
}

/// Layout for a session, and a branch for each position of a block.
fn settings(args: &PatchArgs) -> SizeFn {
    let (clean, corrupt) = (args.clean.clone(), args.corrupt.clone());
    let rows = args.model.rows;
    Box::new(move |model| {
        let length = |text: &str| Ok::<_, Failure>(local_text_tokens(model, text)?.len());
        let (clean, corrupt) = (length(&clean)?, length(&corrupt)?);
        check_lengths(clean, corrupt)?;
        let program = &model.program;
        let settings = patch_settings(program, corrupt, rows.unwrap_or(Settings::ROWS))?;
        Ok(SizeRange::for_settings(program, settings, rows, 0))
    })
}

fn to_json(found: &PatchGrid, model: &str) -> Value {
    let time = found.time.as_secs_f64();
    let comparison = |comparison: &PatchComparison| {
        let [alone, batched] =
            [comparison.one_by_one, comparison.batched].map(|time| time.as_secs_f64());
        json!({
            "equal": comparison.equal, "one_by_one_s": alone, "times": alone / time,
            "together_s": batched, "times_together": batched / time,
        })
    };
    json!({
        "model": model, "clean": found.clean, "corrupt": found.corrupt,
        "blocks": found.effects.len(), "positions": found.effects.first().map_or(0, Vec::len),
        "effect": found.effects, "seconds": time,
        "compared": found.comparison.as_ref().map(comparison),
    })
}

fn to_text(found: &PatchGrid, texts: &[String]) -> String {
    let rows: Vec<Vec<String>> = found
        .effects
        .iter()
        .enumerate()
        .rev()
        .map(|(block, row)| {
            let cells = row.iter().map(|effect| format!("{effect:.2}"));
            std::iter::once(block.to_string()).chain(cells).collect()
        })
        .collect();
    let tokens = texts.iter().map(|text| text.trim());
    let header: Vec<&str> = std::iter::once("block").chain(tokens).collect();
    let time = found.time.as_secs_f64();
    let mut out = grid::text(&header, &rows);
    out += &format!(
        "\nclean {:+.3}, corrupt {:+.3}; {} patches in {}\n",
        found.clean,
        found.corrupt,
        found.effects.iter().map(Vec::len).sum::<usize>(),
        seconds(time)
    );
    if let Some(comparison) = &found.comparison {
        let [alone, batched] =
            [comparison.one_by_one, comparison.batched].map(|time| time.as_secs_f64());
        let logits = match comparison.equal {
            true => "the same logits",
            false => "DIFFERENT logits",
        };
        out += &format!(
            "from the first token, one by one: {} ({:.1} times as long); batched: {} ({:.1} times); \
             {logits}\n",
            seconds(alone),
            alone / time,
            seconds(batched),
            batched / time,
        );
    }
    out
}
