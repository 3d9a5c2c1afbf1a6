//! Whoever answers: an engine here, or a server's model.

use djinn_model::Message;

use crate::{args::SamplingArgs, commands::interrupt::Interrupt, failure::Failure};

/// Tokens of an answer where neither flag nor model says.
pub const ANSWER: usize = 512;

/// What does not change while one talks.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The model's name.
    pub model: String,
    /// Whether it has a chat template.
    pub has_chat: bool,
    /// Positions of a conversation.
    pub context: usize,
}

/// How an answer is chosen.
#[derive(Clone, Debug)]
pub struct How {
    /// As flags and commands say.
    pub sampling: SamplingArgs,
    /// Its tokens at most.
    pub max_tokens: Option<usize>,
    /// Counts up with every change: a session chooses as it began.
    pub version: usize,
}

/// An answer, all of it.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// What was said.
    pub text: String,
    /// In tokens.
    pub tokens: usize,
    /// From when it was asked for.
    pub seconds: f64,
    /// Why it ended, where that was not the model's own wish.
    pub cut: Option<String>,
}

/// Hears an answer as it comes.
pub type Tell<'a> = &'a mut dyn FnMut(&str) -> Result<(), Failure>;

/// Whoever answers, with a session for each conversation.
pub trait Voice {
    /// What does not change.
    fn facts(&self) -> Facts;
    /// The tokens of messages, up to where the answer begins.
    fn chat_tokens(&mut self, messages: &[Message]) -> Result<Vec<u32>, Failure>;
    /// The tokens of a text.
    fn text_tokens(&mut self, text: &str) -> Result<Vec<u32>, Failure>;
    /// Answers these tokens. What the conversation's session has of them is not computed again.
    fn answer(
        &mut self,
        talk: usize,
        tokens: &[u32],
        how: &How,
        interrupt: &Interrupt,
        tell: Tell<'_>,
    ) -> Result<Answer, Failure>;
    /// Gives a conversation a session that stands where another's does, if that has one.
    fn fork(&mut self, from: usize, to: usize) -> Result<(), Failure>;
}

/// What of these tokens a session has not been told, where it has the rest; nothing where it went
/// another way.
pub fn untold<'t>(has: &[u32], tokens: &'t [u32]) -> Option<&'t [u32]> {
    tokens.strip_prefix(has).filter(|rest| !rest.is_empty())
}

/// Why an answer ended, where that was not the model's own wish.
pub fn cut(finish: &str) -> Option<String> {
    match finish {
        "eos" | "stop" | "" => None,
        "length" => Some("it may say no more: /max N lets it".to_owned()),
        "context" => Some("no position is left in the context: /undo or /clear".to_owned()),
        other => Some(other.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::untold;

    #[test]
    fn a_session_is_told_what_it_has_not() {
        assert_eq!(untold(&[1, 2], &[1, 2, 3]), Some(&[3][..]));
        assert_eq!(untold(&[1, 2], &[1, 2]), None);
        assert_eq!(untold(&[1, 3], &[1, 2, 3]), None);
        assert_eq!(untold(&[1, 2, 3], &[1]), None);
    }
}
