//! `djinn trace --server`

use djinn_client::Client;

use super::{edits::edits, greedy, on, prompt, tensor};
use crate::{
    args::TraceArgs,
    commands::{trace::apart, traced::Traced, watch::Watch},
    failure::Failure,
};

/// Runs a prompt on a server and keeps what was at the hooks.
pub fn trace(args: &TraceArgs) -> Result<(), Failure> {
    let traced = on(&args.server, async |client| run(&client, args).await)?;
    traced.tell(args, &Watch::default())
}

async fn run(client: &Client, args: &TraceArgs) -> Result<Traced, Failure> {
    let model = client.model(args.model.model.as_deref().unwrap_or_default());
    let prompt = prompt::tokens(&model, &args.prompt).await?;
    let mut asked = model
        .session()
        .tokens(prompt.clone())
        .max_tokens(args.generate as u64)
        .sampling(greedy())
        .ignore_eos()
        .capture_positions("prompt");
    for capture in args.capture.iter().flat_map(|text| apart(text)) {
        asked = asked.capture(capture);
    }
    for edit in edits(&model, &args.changes).await? {
        asked = asked.edit(edit);
    }
    let turn = asked.open().await?.collect().await?;
    let end = turn.finished().cloned().unwrap_or_default();
    if !end.failure.is_empty() {
        return Err(Failure::Message(end.failure));
    }
    let told = model.info().await?;
    let hooks = model.hooks("*").await?;
    Ok(Traced {
        model: told.name,
        order: hooks.into_iter().map(|hook| hook.name).collect(),
        tensors: turn
            .captured
            .into_iter()
            .map(|(name, seen)| (name, tensor(seen)))
            .collect(),
        text: told.has_text.then_some(turn.text),
        finish: Some(end.why),
        prompt,
        generated: turn.tokens,
    })
}
