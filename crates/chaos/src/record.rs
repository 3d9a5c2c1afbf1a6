//! Transcript of one kept session: everything that the server acknowledged.

use std::collections::BTreeMap;

use djinn_client::v1;

use crate::{
    script::{OpenStep, ScriptStep, TurnStep},
    server::OwnerKey,
};

/// Transcript of one kept session.
#[derive(Clone, Debug)]
pub struct KeptRecord {
    /// Owner of the session.
    pub owner: OwnerKey,
    /// Name of the session on the server.
    pub name: String,
    /// Inputs that the server acknowledged.
    pub steps: Vec<ScriptStep>,
    /// Tokens that the server acknowledged, inputs included.
    pub tokens: Vec<u32>,
    /// Number of acknowledged tokens that the session generated.
    pub generated: usize,
    /// Number of tokens at the end of the current turn.
    pub target: usize,
    /// Turn that was sent, and that the server has not acknowledged.
    pub pending: Option<TurnStep>,
    /// Activations that the server returned, by the position of the breakpoint.
    pub activations: BTreeMap<u64, Vec<f32>>,
}

impl KeptRecord {
    /// Transcript of a session that the server has just opened.
    pub fn opened(owner: OwnerKey, name: &str, step: OpenStep) -> Self {
        KeptRecord {
            owner,
            name: name.to_owned(),
            tokens: step.prompt.clone(),
            generated: 0,
            target: step.prompt.len() + step.max_tokens,
            steps: vec![ScriptStep::Open(step)],
            pending: None,
            activations: BTreeMap::new(),
        }
    }

    /// Notes that the server accepted the pending turn.
    pub fn turn_accepted(&mut self) {
        if let Some(turn) = self.pending.take() {
            self.tokens.extend(&turn.tokens);
            self.target = self.tokens.len() + turn.max_tokens;
            self.steps.push(ScriptStep::Turn(turn));
        }
    }

    /// Notes a generated token. Returns an error if the token is not the next one.
    pub fn push(&mut self, token: &v1::Token) -> Result<(), String> {
        if token.index != self.generated as u64 {
            return Err(format!(
                "{}: token {} arrived after {} generated tokens",
                self.name, token.index, self.generated
            ));
        }
        self.tokens.push(token.id);
        self.generated += 1;
        Ok(())
    }

    /// Whether all tokens of the turn are acknowledged.
    pub fn is_complete(&self) -> bool {
        self.pending.is_none() && self.tokens.len() == self.target
    }

    /// Compares the tokens that a server has with the acknowledged ones, and acknowledges the
    /// others. Accepts a pending turn if the server has its tokens.
    pub fn compare(&mut self, session: &v1::Session) -> Result<(), String> {
        let (found, name) = (&session.token_ids, self.name.clone());
        if session.state == "done" {
            return Err(format!("{name}: the kept session ended"));
        }
        if !found.starts_with(&self.tokens) {
            let equal = found.iter().zip(&self.tokens).take_while(|(a, b)| a == b);
            return Err(format!(
                "{name}: {} tokens were acknowledged, but only the first {} of {} tokens are equal",
                self.tokens.len(),
                equal.count(),
                found.len()
            ));
        }
        let more = &found[self.tokens.len()..];
        if let Some(turn) = &self.pending
            && !more.is_empty()
        {
            if !more.starts_with(&turn.tokens) {
                return Err(format!(
                    "{name}: other tokens than the turn's were appended"
                ));
            }
            self.turn_accepted();
        }
        if found.len() > self.target {
            return Err(format!(
                "{name}: has {} tokens, but its turn ends at {}",
                found.len(),
                self.target
            ));
        }
        self.generated += found.len() - self.tokens.len();
        self.tokens.clone_from(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::OWNERS;

    fn record() -> KeptRecord {
        let step = OpenStep {
            prompt: vec![1, 2],
            max_tokens: 2,
            seed: 1,
            is_edited: false,
            breakpoints: Vec::new(),
        };
        KeptRecord::opened(OWNERS[0], "m:a", step)
    }

    fn session(state: &str, token_ids: &[u32]) -> v1::Session {
        v1::Session {
            state: state.to_owned(),
            token_ids: token_ids.to_vec(),
            ..v1::Session::default()
        }
    }

    #[test]
    fn a_lost_or_changed_token_is_found() {
        let mut kept = record();
        let token = |id, index| v1::Token {
            id,
            index,
            ..v1::Token::default()
        };
        assert!(kept.push(&token(7, 1)).is_err());
        assert!(kept.push(&token(7, 0)).is_ok());
        for (state, tokens, is_fine) in [
            ("waiting", &[1, 2, 7][..], true),
            ("running", &[1, 2, 7, 8], true),
            ("waiting", &[1, 2], false),
            ("waiting", &[1, 2, 9], false),
            ("waiting", &[1, 2, 7, 8, 9], false),
            ("done", &[1, 2, 7], false),
        ] {
            let compared = kept.clone().compare(&session(state, tokens));
            assert_eq!(compared.is_ok(), is_fine, "{state} {tokens:?}");
        }
    }

    #[test]
    fn an_append_without_an_answer_is_recognised() {
        let mut kept = record();
        kept.target = 2;
        kept.pending = Some(TurnStep {
            tokens: vec![5],
            max_tokens: 1,
            is_edited: false,
        });
        assert!(kept.compare(&session("waiting", &[1, 2])).is_ok());
        assert!(kept.pending.is_some());
        assert!(kept.clone().compare(&session("ready", &[1, 2, 6])).is_err());
        assert!(kept.compare(&session("ready", &[1, 2, 5])).is_ok());
        assert_eq!((kept.pending.is_none(), kept.target), (true, 4));
        assert!(!kept.is_complete());
    }
}
