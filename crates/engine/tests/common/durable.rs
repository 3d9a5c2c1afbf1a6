//! Helpers of the tests of durable sessions: engines that restart, and conversations in turns.

use std::{fs, path::Path};

use super::{How, open, request, stories};
use djinn_engine::{
    Blueprint, Engine, Request, RestoreScope, Sampling, SessionId, SessionStatus, Settings,
    StateFolder, Transcript,
};
use djinn_model::Model;
use djinn_weights::MemorySettings;

/// Loads an engine for `sessions` sessions of up to 96 positions, half of them in host memory.
pub fn engine(sessions: usize) -> Engine {
    engine_of(open(&stories()), sessions, MemorySettings::default())
}

/// Loads an engine for a model, as [`engine`] does.
pub fn engine_of(model: Model, sessions: usize, memory: MemorySettings) -> Engine {
    let backend = How::default().backend();
    let settings = Settings::for_sessions(&model.program, sessions, 96, 64).unwrap();
    let settings = Settings {
        pages: settings
            .pages
            .div_ceil(2)
            .max(settings.context.div_ceil(16)),
        host_pages: settings.pages,
        open: 1000,
        ..settings
    };
    let blueprint = Blueprint::draw(&model, &*backend, settings, memory).unwrap();
    Engine::load(model, &*backend, blueprint, &mut |_| {}).unwrap()
}

pub fn restarted(sessions: usize, folder: &Path) -> Engine {
    let mut engine = engine(sessions);
    let restored = engine.attach_state(StateFolder::open(folder).unwrap(), RestoreScope::All);
    assert!(restored.unwrap().refused.is_empty());
    engine
}

/// Creates a request with its own tokens, sampling parameters and owner.
pub fn numbered_request(number: u64) -> Request {
    let tokens: Vec<u32> = (0..7 + number as u32 % 20)
        .map(|i| (11 * i + number as u32) % 900)
        .collect();
    Request {
        sampling: Sampling {
            temperature: (number % 3) as f32 / 2.0,
            seed: number,
            logprobs: number.is_multiple_of(2).then_some(1),
            ..Sampling::default()
        },
        keep: true,
        owner: format!("owner {number}"),
        ..request(&stories(), &tokens, &[], TURN)
    }
}

/// Number of tokens generated in a turn.
pub const TURN: usize = 5;

/// Number of turns of a conversation.
pub const TURNS: usize = 3;

pub fn answer(number: u64, turn: usize) -> Vec<u32> {
    (0..turn as u32 + 1)
        .map(|i| 30 + 7 * i + number as u32 % 50)
        .collect()
}

/// Returns the generated tokens and the bits of their log-probabilities.
pub fn result_bits(transcript: &Transcript) -> (Vec<u32>, Vec<(u32, u32)>) {
    let logprobs = transcript.logprobs.iter().flatten();
    let bits = logprobs.map(|l| (l.token, l.logprob.to_bits())).collect();
    (transcript.generated.clone(), bits)
}

/// Runs a whole conversation without interruption. Returns its transcript and all its tokens.
pub fn alone(number: u64) -> (Transcript, Vec<u32>) {
    let mut engine = engine(1);
    let id = engine.open(numbered_request(number)).unwrap();
    for turn in 1..TURNS {
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        engine
            .any_session(id)
            .and_then(|mut session| session.append(&answer(number, turn), TURN, &[]))
            .unwrap();
    }
    while !engine.is_idle() {
        engine.step().unwrap();
    }
    let tokens = engine
        .view(id)
        .map(|session| session.tokens())
        .unwrap()
        .to_vec();
    (engine.close(id).unwrap(), tokens)
}

/// Returns the number of a session's request, which its owner's name ends with.
pub fn number_of(owner: &str) -> u64 {
    owner.strip_prefix("owner ").unwrap().parse().unwrap()
}

/// Starts the next turn of every waiting session. Returns the sessions that have ended.
pub fn next_turns(engine: &mut Engine) -> Vec<SessionId> {
    let mut ended = Vec::new();
    for info in engine.list(None) {
        let turn = info.generated / TURN;
        if info.status == SessionStatus::Waiting && turn < TURNS {
            let said = answer(number_of(&info.owner), turn);
            engine
                .any_session(info.id)
                .and_then(|mut session| session.append(&said, TURN, &[]))
                .unwrap();
        } else if info.status == SessionStatus::Waiting {
            ended.push(info.id);
        }
    }
    ended
}

pub fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
