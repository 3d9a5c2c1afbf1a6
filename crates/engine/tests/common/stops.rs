//! Helpers for sessions that pause at hooks and resume.

use std::path::Path;

use djinn_engine::{BreakSpec, EditSpec, Engine, Paused, Request, RunUntil, SessionId};
use djinn_model::Site;

use super::{Bits, How, bits, golden, ids, load, open, request};

/// Returns a copy of `request` with breakpoints.
pub fn stopping(folder: &Path, request: &Request, breaks: &[&str]) -> Request {
    let program = open(folder).program;
    let breaks: Vec<BreakSpec> = breaks.iter().map(|b| b.parse().unwrap()).collect();
    let probe = request.probe.clone().with_breaks(&program, &breaks);
    Request {
        probe: probe.unwrap(),
        ..request.clone()
    }
}

/// Steps until the engine is idle, and returns the sessions that paused with their hooks.
pub fn run_until_idle(engine: &mut Engine) -> Vec<(SessionId, Paused)> {
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

/// Runs a request and resumes it at every pause. Returns its bits and the pauses.
pub fn interrupted(folder: &Path, request: Request, how: How) -> (Bits, Vec<Paused>) {
    let mut engine = load(open(folder), std::slice::from_ref(&request), how);
    run_with_pauses(&mut engine, request, &[])
}

/// Runs a request in an engine and resumes it with `edits` at every pause. Returns its bits and the
/// pauses.
pub fn run_with_pauses(
    engine: &mut Engine,
    request: Request,
    edits: &[EditSpec],
) -> (Bits, Vec<Paused>) {
    let id = engine.open(request).unwrap();
    let mut stops = Vec::new();
    loop {
        let stopped = run_until_idle(engine);
        if stopped.is_empty() {
            break;
        }
        stops.extend(stopped.into_iter().map(|(_, at)| at));
        engine
            .any_session(id)
            .unwrap()
            .resume_with(edits, RunUntil::Breakpoint)
            .unwrap();
    }
    (bits(&engine.close(id).unwrap()), stops)
}

/// Creates a request that captures every hook and generates some tokens.
pub fn asked(folder: &Path, length: usize, generate: usize) -> Request {
    let tokens = ids(&golden(folder)["input_ids"]);
    request(folder, &tokens[..length], &["*"], generate)
}

/// Returns the hooks at which a session can pause.
pub fn sites(folder: &Path) -> Vec<Site> {
    let stops = open(folder).program.stops();
    stops.into_iter().map(|stop| stop.site).collect()
}
