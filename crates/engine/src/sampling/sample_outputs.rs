//! Outputs of a pass: the next token of every session, and which sessions paused or ended.

use super::sampler::{self, SampledToken};
use crate::{
    executor::pass::{PassResult, SampleInput, TokenScores},
    session::{
        Session,
        output::{Finish, Output},
    },
};

/// Advances the members of a pass by their rows, pauses the members that reached a breakpoint,
/// and samples the next token of the members whose last token ran. Returns the outputs.
pub(crate) fn sample_outputs(
    members: &mut [Session],
    rows: &[usize],
    result: PassResult,
) -> Vec<Output> {
    let mut outputs = Vec::new();
    let mut paused = result.paused;
    for (member, (session, &rows)) in members.iter_mut().zip(rows).enumerate() {
        match paused.remove(&member) {
            Some(checkpoint) => {
                let scheduled = session.state.scheduled();
                let pause = session.pause(rows, checkpoint);
                pause.expect("a member of a pass is running");
                let at = session.paused().expect("the session has just paused");
                let (id, index) = (session.id, session.generated());
                outputs.push(Output::paused(id, index, scheduled, at));
            }
            None => {
                session.advance(rows);
                if session.pending() == 0 && !session.samples() {
                    outputs.push(Output::finished(session.id, Finish::Length, None));
                }
            }
        }
    }
    let mut samples = result.samples;
    samples.sort_by_key(|sample| sample.member);
    for SampleInput { member, scores } in samples {
        outputs.push(sample(&mut members[member], &scores));
    }
    outputs
}

/// Samples the next token of a session.
fn sample(session: &mut Session, scores: &TokenScores) -> Output {
    let Some(sampled) = choose(session, scores) else {
        return Output::finished(session.id, Finish::NotANumber, None);
    };
    session.tokens.push(sampled.token);
    let is_eos = session.eos.contains(&sampled.token);
    let (mut text, stopped) = match &mut session.text {
        // The ending token is not part of the text.
        Some(text) if !is_eos => text.push(sampled.token),
        _ => (String::new(), false),
    };
    let mut finish = session.finished_by(sampled.token, stopped);
    if let (Some(stream), Some(_), false) = (&mut session.text, finish, stopped) {
        let (rest, stopped) = stream.finish();
        text.push_str(&rest);
        if stopped {
            finish = Some(Finish::Stop);
        }
    }
    if session.sampling.logprobs.is_some() {
        session.logprobs.push(sampled.logprobs.clone());
    }
    Output {
        session: session.id,
        index: session.generated() - 1,
        token: Some(sampled.token),
        text,
        logprobs: sampled.logprobs,
        finish,
        failure: None,
        scheduled: session.state.scheduled(),
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
            let (given, generated) = session.given_and_generated();
            sampler::choose(&session.sampling, logits, &given, &generated)
        }
    }
}
