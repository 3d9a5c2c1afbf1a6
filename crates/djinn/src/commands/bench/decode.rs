//! `djinn bench decode`

use std::{collections::BTreeSet, time::Instant};

use djinn_device::host;
use djinn_engine::{Backend, Engine, Request};
use djinn_model::program::{Op, Program, TensorId};
use serde_json::json;

use super::{BANDWIDTH_BYTES, check_context, median, rates, some_tokens, start};
use crate::{
    args::BenchDecodeArgs,
    bundled,
    failure::{Failure, say, say_json},
    style::seconds,
};

/// Time of a pass in which every session generates a token.
pub fn decode(args: &BenchDecodeArgs) -> Result<(), Failure> {
    let model = bundled::open(args.model.model.as_deref())?;
    check_context(&model.program, args.context.saturating_add(args.tokens))?;
    let sessions = usize::from(args.sessions);
    // Tokens that early sessions generate while the prompts of late ones still run, and
    // each one's first, which comes out of its prompt.
    let spare_rows = args.model.rows.saturating_sub(sessions).max(1);
    let untimed = (sessions * args.context).div_ceil(spare_rows) + 1;
    let (name, read_bytes) = (model.name.clone(), bytes_read(&model.program));
    let requests = (0..sessions)
        .map(|i| Request {
            tokens: some_tokens(&model.program, args.context, i),
            max_tokens: args.tokens.saturating_add(untimed),
            ..Request::default()
        })
        .collect();
    let settled = args.model.settled()?;
    let (mut engine, _) = start(&settled, model, requests)?;
    let mut passes = timed_passes(&mut engine, sessions, args.tokens)?;
    if passes.is_empty() {
        return Err(Failure::Message(
            "no pass had every session generating: the context is too short for that".into(),
        ));
    }
    let pass = median(&mut passes);
    let rate = read_bytes as f64 / pass / 1e9;
    let ceiling = rates::memory(settled.backend(), BANDWIDTH_BYTES)?;
    let (share, tokens) = (rate / ceiling, f64::from(args.sessions) / pass);
    let device = engine.device();
    if args.json {
        return say_json(&json!({
            "model": name, "device": device.detail, "sessions": args.sessions,
            "context": args.context, "passes": passes.len(),
            "pass_s": pass, "fastest_pass_s": passes[0], "tokens_per_s": tokens,
            "weights_bytes_per_pass": read_bytes, "weights_gb_per_s": rate,
            "memory_gb_per_s": ceiling, "share_of_memory": share,
            "slab_bytes": engine.footprint().total(),
            "peak_rss_bytes": host::peak_rss_bytes(),
        }));
    }
    let how = match settled.backend() {
        Backend::Cpu { .. } => "same threads",
        Backend::Cuda { .. } => "a copy on the card, read plus written",
    };
    say(&format!(
        "{name} on {}\n\
         \x20 a pass          {} (median of {}; fastest {})\n\
         \x20 tokens          {tokens:.1}/s\n\
         \x20 weights read    {rate:.1} GB/s\n\
         \x20 memory gives    {ceiling:.1} GB/s (median, {how})\n\
         \x20 share           {:.0} %\n",
        device.detail,
        seconds(pass),
        passes.len(),
        seconds(passes[0]),
        share * 100.0,
    ))
}

/// Seconds of the first passes that give every session a token, prompts done before.
fn timed_passes(engine: &mut Engine, sessions: usize, count: usize) -> Result<Vec<f64>, Failure> {
    let mut started = BTreeSet::new();
    let mut passes = Vec::new();
    while passes.len() < count && !engine.is_idle() {
        let all_started = started.len() == sessions;
        let clock = Instant::now();
        let outputs = engine.step()?;
        let time = clock.elapsed().as_secs_f64();
        let tokens = outputs.iter().filter(|output| output.token.is_some());
        if all_started && tokens.clone().count() == sessions {
            passes.push(time);
        }
        started.extend(tokens.map(|output| output.session));
    }
    Ok(passes)
}

/// Bytes of weights a pass over one token reads: all but the rows of tables it skips,
/// and of experts those it chooses.
fn bytes_read(program: &Program) -> u64 {
    let mut dense: BTreeSet<TensorId> = BTreeSet::new();
    let mut routed = 0;
    for op in program.ops() {
        match op {
            Op::Linear { weight, bias, .. } | Op::Norm { weight, bias, .. } => {
                dense.extend([Some(*weight), *bias].into_iter().flatten());
            }
            Op::Experts {
                chosen, experts, ..
            } => {
                let one = experts.first().map_or(0, |e| {
                    let tensors = [e.gate, e.up, e.down];
                    tensors.iter().map(|&id| program.tensor(id).bytes()).sum()
                });
                routed += one * *chosen as u64;
            }
            _ => {}
        }
    }
    let dense: u64 = dense.iter().map(|&id| program.tensor(id).bytes()).sum();
    dense + routed
}
