//! Model that answers a chat, on a server in process or elsewhere.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use djinn_client::{
    EventStream, FinishReason, Generate, ModelHandle, SessionHandle, TurnEvent, v1,
};
use djinn_model::Message;
use tokio::runtime::Runtime;

use crate::{interrupt::Interrupt, output::Failure};

/// Longest answer in tokens when neither flag nor model sets a limit.
const ANSWER: usize = 512;

/// Sampling and length of answers.
#[derive(Clone, Debug)]
pub struct AnswerOptions {
    /// Sampling that flags and commands set.
    pub sampling: v1::Sampling,
    /// Longest answer in tokens.
    pub max_tokens: Option<usize>,
    /// Number of changes so far. A session keeps the sampling that it began with.
    pub version: usize,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Text of the answer.
    pub text: String,
    /// Number of tokens of the answer.
    pub tokens: usize,
    /// Number of tokens before the answer that the prefix cache had.
    pub cached: u64,
    /// Seconds from the question to the end of the answer.
    pub seconds: f64,
    /// Reason why the answer ended early, if it did.
    pub cut: Option<String>,
}

/// Receives the text of an answer as it is generated.
pub type OnText<'a> = &'a mut dyn FnMut(&str) -> Result<(), Failure>;

/// Interval at which Ctrl-C is checked.
const POLL: Duration = Duration::from_millis(100);

/// Model that answers, with a session for each conversation.
pub struct ChatBackend<'a> {
    runtime: &'a Runtime,
    model: ModelHandle,
    /// Description of the model.
    pub info: v1::Model,
    sessions: HashMap<usize, OpenChat>,
}

/// Session of a conversation.
#[derive(Clone)]
struct OpenChat {
    session: SessionHandle,
    /// Tokens that the session has.
    has: Vec<u32>,
    /// Version of the sampling that the session began with.
    version: usize,
}

impl<'a> ChatBackend<'a> {
    /// Backend without sessions.
    pub fn new(runtime: &'a Runtime, model: ModelHandle, info: v1::Model) -> Self {
        ChatBackend {
            runtime,
            model,
            info,
            sessions: HashMap::new(),
        }
    }

    /// Continues the session of a conversation with its missing tokens, or begins one.
    fn generate(
        &mut self,
        chat: usize,
        tokens: &[u32],
        options: &AnswerOptions,
    ) -> Result<EventStream, Failure> {
        let by_model = Some(self.info.max_new_tokens as usize).filter(|&most| most > 0);
        let most = options.max_tokens.or(by_model).unwrap_or(ANSWER) as u64;
        if let Some(open) = self.sessions.remove(&chat) {
            let rest =
                missing_tokens(&open.has, tokens).filter(|_| open.version == options.version);
            if let Some(rest) = rest {
                let turn = Generate::new().tokens(rest).max_tokens(most);
                if let Ok(events) = self.runtime.block_on(open.session.generate(turn)) {
                    self.sessions.insert(chat, open);
                    return Ok(events);
                }
            }
            // A session that is gone already needs no deleting.
            let _ = self.runtime.block_on(open.session.delete());
        }
        let session = self.model.session().tokens(tokens).keep();
        let session = session.max_tokens(most).sampling(options.sampling.clone());
        let events = self.runtime.block_on(session.open())?;
        let open = OpenChat {
            session: events.session().clone(),
            has: Vec::new(),
            version: options.version,
        };
        self.sessions.insert(chat, open);
        Ok(events)
    }

    fn forget(&mut self, chat: usize) {
        if let Some(open) = self.sessions.remove(&chat) {
            let _ = self.runtime.block_on(open.session.delete());
        }
    }

    /// Records the tokens that a session has now.
    fn update_tokens(&mut self, chat: usize) {
        let Some(open) = self.sessions.get_mut(&chat) else {
            return;
        };
        match self.runtime.block_on(open.session.info()) {
            Ok(info) => open.has = info.token_ids,
            Err(_) => drop(self.sessions.remove(&chat)),
        }
    }

    /// Tokens of messages, up to the beginning of the answer.
    pub fn chat_tokens(&mut self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let messages = messages
            .iter()
            .map(|m| (m.role.as_str(), m.content.as_str()));
        Ok(self.runtime.block_on(self.model.tokenize_chat(messages))?)
    }

    /// Tokens of a text.
    pub fn text_tokens(&mut self, text: &str) -> Result<Vec<u32>, Failure> {
        Ok(self.runtime.block_on(self.model.tokenize(text))?)
    }

    /// Answers these tokens. Tokens that the session has already are not computed again.
    pub fn answer(
        &mut self,
        chat: usize,
        tokens: &[u32],
        options: &AnswerOptions,
        interrupt: &Interrupt,
        on_text: OnText<'_>,
    ) -> Result<Answer, Failure> {
        let started = Instant::now();
        let mut events = self.generate(chat, tokens, options)?;
        let mut answer = Answer::default();
        loop {
            if interrupt.is_on() {
                drop(events);
                self.forget(chat);
                answer.cut = Some("interrupted".to_owned());
                break;
            }
            let next = async { tokio::time::timeout(POLL, events.next()).await };
            let Ok(event) = self.runtime.block_on(next) else {
                continue;
            };
            match event? {
                Some(TurnEvent::Token(token)) => {
                    answer.tokens += 1;
                    on_text(&token.text)?;
                    answer.text += &token.text;
                }
                Some(TurnEvent::Finished(end)) if end.failure.is_empty() => {
                    on_text(&end.text)?;
                    answer.text += &end.text;
                    answer.cut = early_end(&end);
                    answer.cached = end.cached_tokens;
                    self.update_tokens(chat);
                    break;
                }
                Some(TurnEvent::Finished(end)) => {
                    self.forget(chat);
                    return Err(Failure::Message(end.failure));
                }
                // A chat captures nothing and has no breakpoints.
                _ => {}
            }
        }
        answer.seconds = started.elapsed().as_secs_f64();
        Ok(answer)
    }

    /// Copies the session of one conversation to another, if it exists.
    pub fn fork(&mut self, from: usize, to: usize) -> Result<(), Failure> {
        self.forget(to);
        // Without memory for a copy, the conversation begins a new session at its next question.
        if let Some(open) = self.sessions.get(&from).cloned()
            && let Ok(session) = self.runtime.block_on(open.session.fork(None))
        {
            self.sessions.insert(to, OpenChat { session, ..open });
        }
        Ok(())
    }
}

impl Drop for ChatBackend<'_> {
    fn drop(&mut self) {
        let chats: Vec<usize> = self.sessions.keys().copied().collect();
        for chat in chats {
            self.forget(chat);
        }
    }
}

/// Tokens that a session does not have yet, if its own are the beginning of `tokens`.
fn missing_tokens<'t>(has: &[u32], tokens: &'t [u32]) -> Option<&'t [u32]> {
    tokens.strip_prefix(has).filter(|rest| !rest.is_empty())
}

/// Reason why an answer ended early, if it did.
fn early_end(end: &v1::Finished) -> Option<String> {
    match end.reason() {
        FinishReason::Eos | FinishReason::Stop => None,
        FinishReason::Length => Some("stopped at the token limit; raise it with /max N".to_owned()),
        FinishReason::Context => Some("the context is full; use /undo or /clear".to_owned()),
        _ => Some(end.why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::missing_tokens;

    #[test]
    fn a_session_gets_only_missing_tokens() {
        assert_eq!(missing_tokens(&[1, 2], &[1, 2, 3]), Some(&[3][..]));
        assert_eq!(missing_tokens(&[1, 2], &[1, 2]), None);
        assert_eq!(missing_tokens(&[1, 3], &[1, 2, 3]), None);
        assert_eq!(missing_tokens(&[1, 2, 3], &[1]), None);
    }
}
