//! Sessions that stop at hooks, and go on.

use std::path::Path;

use djinn_engine::{BreakSpec, EditSpec, Engine, Paused, Request, RunUntil, SessionId};
use djinn_model::Site;

use super::{Bits, How, bits, golden, ids, load, open, request};

/// The same with breakpoints.
pub fn stopping(folder: &Path, request: &Request, breaks: &[&str]) -> Request {
    let program = open(folder).program;
    let breaks: Vec<BreakSpec> = breaks.iter().map(|b| b.parse().unwrap()).collect();
    let probe = request.probe.clone().with_breaks(&program, &breaks);
    Request {
        probe: probe.unwrap(),
        ..request.clone()
    }
}

/// Runs until nobody can, and says who stopped where.
pub fn settle(engine: &mut Engine) -> Vec<(SessionId, Paused)> {
    let mut stopped = Vec::new();
    while !engine.is_idle() {
        for output in engine.step().unwrap() {
            assert_eq!(output.failure, None);
            stopped.extend(output.paused.map(|at| (output.session, at)));
        }
        engine.check_integrity();
    }
    stopped
}

/// Runs a request, going on whenever it stops; says where it did.
pub fn interrupted(folder: &Path, request: Request, how: How) -> (Bits, Vec<Paused>) {
    let mut engine = load(open(folder), std::slice::from_ref(&request), how);
    go_through(&mut engine, request, &[])
}

/// The same in an engine at hand, changed at every stop.
pub fn go_through(
    engine: &mut Engine,
    request: Request,
    edits: &[EditSpec],
) -> (Bits, Vec<Paused>) {
    let id = engine.open(request).unwrap();
    let mut stops = Vec::new();
    loop {
        let stopped = settle(engine);
        if stopped.is_empty() {
            break;
        }
        stops.extend(stopped.into_iter().map(|(_, at)| at));
        engine
            .any_session(id)
            .and_then(|mut session| session.resume_with(edits, RunUntil::Breakpoint))
            .unwrap();
    }
    (bits(&engine.close(id).unwrap()), stops)
}

/// A prompt, every hook of it, and some tokens.
pub fn asked(folder: &Path, length: usize, generate: usize) -> Request {
    let tokens = ids(&golden(folder)["input_ids"]);
    request(folder, &tokens[..length], &["*"], generate)
}

/// Hooks at which a pass can stop.
pub fn sites(folder: &Path) -> Vec<Site> {
    let stops = open(folder).program.stops();
    stops.into_iter().map(|stop| stop.site).collect()
}
