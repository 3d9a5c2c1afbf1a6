//! `djinn debug`

use djinn_engine::{ContextDemand, Count, SessionDemand, SizeRange};
use djinn_terminal::{DebugOptions, Failure};

use super::{
    connection::{LocalEngine, SizeFn, on_model_blocking},
    prompt,
    sizing::interactive,
};
use crate::args::{DebugArgs, PromptArgs};

/// Number of branches and undo steps.
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
    let engine = LocalEngine::new(settings(prompt.clone(), args.max_tokens, args.model.rows));
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

/// Layout for the session, its branches, and any probe.
fn settings(prompt: PromptArgs, max_tokens: usize, rows: Option<usize>) -> SizeFn {
    Box::new(move |model| {
        let program = &model.program;
        let tokens = prompt::local_tokens(model, &prompt)?;
        let context = tokens.len().saturating_add(max_tokens);
        let sessions = SPARE_SESSIONS + 2;
        let demand = SessionDemand {
            context: ContextDemand::Needed(context.min(program.dims.context)),
            batch: Count::UpTo(sessions),
            open: sessions,
            probes: true,
            ..interactive(None, rows)
        };
        Ok(SizeRange::for_sessions(program, demand)?)
    })
}
