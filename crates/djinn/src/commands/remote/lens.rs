//! `djinn lens --server`

use djinn_client::Client;

use super::{on, prompt, tensor};
use crate::{
    args::LensArgs,
    commands::lens::{Grid, capture, readable},
    failure::Failure,
};

/// What would be said behind every block of a server's model.
pub fn lens(args: &LensArgs) -> Result<(), Failure> {
    let grid = on(&args.server, async |client| look(&client, args).await)?;
    grid.tell(args)
}

async fn look(client: &Client, args: &LensArgs) -> Result<Grid, Failure> {
    let model = client.model(args.model.model.as_deref().unwrap_or_default());
    let tokens = prompt::tokens(&model, &args.prompt).await?;
    let asked = model.session().tokens(tokens.clone()).max_tokens(0);
    let turn = asked.capture(capture(args.top)).open().await?;
    let seen = turn.collect().await?.captured.into_iter();
    let seen = seen.map(|(name, seen)| (name, tensor(seen))).collect();
    let told = model.info().await?;
    let mut grid = Grid::new(&told.name, tokens, &seen)?;
    let all: Vec<u32> = grid.tokens().collect();
    let names = match told.has_text {
        true => model.pieces(&all).await?,
        false => all.iter().map(u32::to_string).collect(),
    };
    let names = names.iter().map(|name| readable(name));
    grid.names = all.into_iter().zip(names).collect();
    Ok(grid)
}
