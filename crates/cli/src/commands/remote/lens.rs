//! `djinn lens --server`

use djinn_client::ModelHandle;

use super::{on, prompt, tensor};
use crate::{
    args::LensArgs,
    commands::lens::{Grid, capture, readable},
    failure::Failure,
};

/// What would be said behind every block of a server's model.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    let grid = on(&args.server, async |client| {
        let model = client.model(args.model.model.as_deref().unwrap_or_default());
        let tokens = prompt::tokens(&model, &args.prompt).await?;
        look(&model, tokens, args.top).await
    })?;
    grid.tell(args)
}

/// The grid of some tokens.
pub(super) async fn look(
    model: &ModelHandle,
    tokens: Vec<u32>,
    top: usize,
) -> Result<Grid, Failure> {
    let asked = model.session().tokens(tokens.clone()).max_tokens(0);
    let turn = asked.capture(capture(top)).open().await?;
    let seen = turn.collect().await?.captured.into_iter();
    let seen = seen.map(|(name, seen)| (name, tensor(seen))).collect();
    let told = model.info().await?;
    let mut grid = Grid::new(&told.name, tokens, &seen)?;
    let all: Vec<u32> = grid.tokens().collect();
    let names = names(model, told.has_text, &all).await?;
    grid.names = all.into_iter().zip(names).collect();
    Ok(grid)
}

/// Tokens as people read them.
pub(super) async fn names(
    model: &ModelHandle,
    has_text: bool,
    tokens: &[u32],
) -> Result<Vec<String>, Failure> {
    if !has_text {
        return Ok(tokens.iter().map(u32::to_string).collect());
    }
    let pieces = model.pieces(tokens).await?;
    Ok(pieces.iter().map(|piece| readable(piece)).collect())
}
