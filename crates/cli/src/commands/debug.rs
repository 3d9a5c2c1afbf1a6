//! `djinn debug`

use djinn_engine::{ProbeLimits, Settings};
use djinn_terminal::{DebugOptions, Failure};

use super::{
    connection::{LocalEngine, SettingsFn, on_model_blocking},
    prompt,
};
use crate::args::{DebugArgs, PromptArgs};

/// Largest number of rows in a pass, since all of them may pass through the head.
const ROWS: usize = 128;
/// Number of branches and undo steps that fit in memory.
const SPARE_SESSIONS: usize = 24;

/// Debugs a model step by step.
pub fn debug(args: &DebugArgs) -> Result<(), Failure> {
    let script = match &args.script {
        Some(path) => {
            let read = std::fs::read_to_string(path);
            Some(read.map_err(|error| Failure::Message(format!("{}: {error}", path.display())))?)
        }
        None => None,
    };
    let prompt = prompt::read(&args.prompt)?;
    let engine = LocalEngine::new(settings(prompt.clone(), args.max_tokens));
    on_model_blocking(&args.server, &args.model, engine, |runtime, connection| {
        let (client, model) = (connection.client.clone(), connection.model.clone());
        let (tokens, info) = runtime.block_on(async {
            let tokens = prompt::tokens(&model, &prompt).await?;
            Ok::<_, Failure>((tokens, model.info().await?))
        })?;
        let options = DebugOptions {
            tokens,
            max_tokens: args.max_tokens,
            breaks: args.breaks.clone(),
            script,
        };
        djinn_terminal::debug(runtime, client, model, info, options)
    })
}

/// Layout for the session, its branches, and a lens over all blocks.
fn settings(prompt: PromptArgs, max_tokens: usize) -> SettingsFn {
    Box::new(move |model| {
        let program = &model.program;
        let tokens = prompt::local_tokens(model, &prompt)?;
        let context = (tokens.len() + max_tokens).min(program.dims.context);
        let sessions = SPARE_SESSIONS + 2;
        let one = Settings::for_sessions(program, 1, context, ROWS)?;
        Ok(Settings {
            sessions,
            open: sessions,
            rows: ROWS.max(sessions),
            pages: (sessions + 2) * one.pages,
            logit_rows: ROWS.max(sessions),
            probe_limits: ProbeLimits::anything(program, context),
            ..one
        })
    })
}
