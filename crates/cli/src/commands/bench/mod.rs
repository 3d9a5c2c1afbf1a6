//! `djinn bench`

mod card_link;
mod decode;
mod hooks;
mod link;
mod memory;
mod operations;
mod prefill;
mod restore;
mod serve;
mod sessions;
mod stream;

use djinn_engine::{Engine, Request, SessionId};
use djinn_model::{Model, program::Program};

use super::{rates, watch::Watch};
use crate::{
    args::{Bench, BenchArgs, Settled},
    failure::Failure,
};

/// Read through to learn what memory gives; far more than caches hold.
const BANDWIDTH_BYTES: u64 = 1 << 30;

/// Runs a benchmark.
pub fn bench(args: BenchArgs) -> Result<(), Failure> {
    match args.what {
        Bench::Memory(args) => memory::memory(&args),
        Bench::Decode(args) => decode::decode(&args),
        Bench::Prefill(args) => prefill::prefill(&args),
        Bench::Link(args) => link::link(&args),
        Bench::Operations(args) => operations::operations(&args),
        Bench::Stream(args) => stream::stream(&args),
        Bench::Sessions(args) => sessions::sessions(&args),
        Bench::Restore(args) => restore::restore(&args),
        Bench::Hooks(args) => hooks::hooks(&args),
        Bench::Serve(args) => serve::serve(&args),
    }
}

/// An engine nobody watches.
fn start(
    settled: &Settled<'_>,
    model: Model,
    requests: Vec<Request>,
) -> Result<(Engine, Vec<SessionId>), Failure> {
    super::start(settled, model, requests, &mut Watch::default())
}

/// Refuses more positions than the model has, before anything is made of them.
fn check_context(program: &Program, positions: usize) -> Result<(), Failure> {
    let context = program.dims.context;
    if positions > context {
        return Err(Failure::Message(format!(
            "{positions} positions asked for, the model's context has {context}"
        )));
    }
    Ok(())
}

/// Ids spread over the vocabulary, so that no two positions are alike.
fn some_tokens(program: &Program, count: usize, salt: usize) -> Vec<u32> {
    let at = |i: usize| (i * 7919 + salt * 104_729 + 1) % program.dims.vocab;
    (0..count).map(|i| at(i) as u32).collect()
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
