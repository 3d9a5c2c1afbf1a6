//! `djinn chat`

use djinn_engine::{SessionDemand, SizeRange};
use djinn_terminal::{ChatOptions, Failure};

use super::{
    connection::{LocalEngine, SizeFn, on_model_blocking},
    run::sampling,
    sizing::interactive,
};
use crate::args::ChatArgs;

/// Number of open conversations.
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
fn settings(context: Option<usize>, rows: Option<usize>) -> SizeFn {
    Box::new(move |model| {
        if model.tokenizer.is_none() {
            return Err(Failure::Message(format!(
                "{} has no tokenizer.json, but a chat needs one; add the file, or use djinn run --tokens",
                model.name
            )));
        }
        let demand = SessionDemand {
            open: CONVERSATIONS,
            ..interactive(context, rows)
        };
        Ok(SizeRange::for_sessions(&model.program, demand)?)
    })
}
