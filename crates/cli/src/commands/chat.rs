//! `djinn chat`

use djinn_engine::Settings;
use djinn_terminal::{ChatOptions, Failure};

use super::{
    connection::{LocalEngine, SettingsFn, on_model_blocking},
    run::sampling,
};
use crate::args::ChatArgs;

/// Default length of a conversation in tokens, unless the model's context is shorter.
const CONTEXT: usize = 4096;
/// Number of conversations that fit in memory.
const CONVERSATIONS: usize = 4;

/// Chats with a model.
pub fn chat(args: &ChatArgs) -> Result<(), Failure> {
    let engine = LocalEngine::new(settings(args.context, args.model.rows));
    on_model_blocking(&args.server, &args.model, engine, |runtime, connection| {
        let info = runtime.block_on(async {
            // Tokenizing loads the model on a server elsewhere.
            connection.model.tokenize("a").await?;
            connection.model_info().await
        })?;
        let options = ChatOptions {
            system: args.system.clone(),
            sampling: sampling(&args.sampling),
            max_tokens: args.max_tokens,
            load: args.load.clone(),
        };
        djinn_terminal::chat(runtime, connection.model.clone(), info, options)
    })
}

/// Layout for several conversations.
fn settings(context: Option<usize>, rows: usize) -> SettingsFn {
    Box::new(move |model| {
        if model.tokenizer.is_none() {
            return Err(Failure::Message(format!(
                "{} has no tokenizer.json, but a chat needs one; add the file, or use djinn run --tokens",
                model.name
            )));
        }
        let program = &model.program;
        let context = context.unwrap_or(CONTEXT).min(program.dims.context);
        Ok(Settings::for_sessions(
            program,
            CONVERSATIONS,
            context,
            rows,
        )?)
    })
}
