//! After a pass: what its sessions are told.

use crate::{
    Finish, Output,
    executor::pass::{SampleInput, TokenScores},
    sampling::sampler::{self, SampledToken},
    session::{Session, output::over},
};

/// Samples for every session whose last token was run, and says who stopped and whose turn
/// is over.
pub(crate) fn settle(
    members: &mut [&mut Session],
    mut last: Vec<SampleInput>,
    stopped: &[usize],
) -> Vec<Output> {
    let mut outputs = Vec::new();
    for (member, session) in members.iter_mut().enumerate() {
        if stopped.contains(&member) {
            outputs.push(Output {
                index: session.generated(),
                finish: None,
                paused: session.paused(),
                turn: session.turn,
                ..over(session.id, Finish::Length)
            });
        } else if session.pending() == 0 && !session.samples() {
            outputs.push(over(session.id, Finish::Length));
        }
    }
    last.sort_by_key(|last| last.member);
    for SampleInput { member, scores } in last {
        outputs.push(sample(members[member], &scores));
    }
    outputs
}

/// Gives a session its next token.
fn sample(session: &mut Session, scores: &TokenScores) -> Output {
    let Some(choice) = choose(session, scores) else {
        return over(session.id, Finish::NotANumber);
    };
    session.tokens.push(choice.token);
    let is_eos = session.eos.contains(&choice.token);
    let (mut text, stopped) = match &mut session.text {
        // The ending token is the model's business, not text.
        Some(text) if !is_eos => text.push(choice.token),
        _ => (String::new(), false),
    };
    let mut finish = session.finished_by(choice.token, stopped);
    if let (Some(stream), Some(_), false) = (&mut session.text, finish, stopped) {
        let (rest, stopped) = stream.finish();
        text.push_str(&rest);
        if stopped {
            finish = Some(Finish::Stop);
        }
    }
    if session.sampling.logprobs.is_some() {
        session.logprobs.push(choice.logprobs.clone());
    }
    Output {
        session: session.id,
        index: session.generated() - 1,
        token: Some(choice.token),
        text,
        logprobs: choice.logprobs,
        finish,
        failure: None,
        turn: session.turn,
        paused: None,
    }
}

fn choose(session: &Session, scores: &TokenScores) -> Option<SampledToken> {
    match scores {
        TokenScores::Chosen(token) => token.map(|token| SampledToken {
            token,
            logprobs: Vec::new(),
        }),
        TokenScores::Logits(logits) => {
            let (given, generated) = session.apart();
            sampler::choose(&session.sampling, logits, &given, &generated)
        }
    }
}
