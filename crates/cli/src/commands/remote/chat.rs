//! `djinn chat --server`: a server's model answers.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use djinn_client::{EventStream, Generate, ModelHandle, SessionHandle, TurnEvent, v1};
use djinn_model::Message;
use tokio::runtime::Runtime;

use super::{connect, run::sampling, runtime};
use crate::{
    args::ChatArgs,
    commands::{
        chat::voice::{ANSWER, Answer, Facts, How, Tell, Voice, cut, untold},
        interrupt::Interrupt,
    },
    failure::Failure,
};

/// How often it is looked whether somebody has heard enough.
const LOOK: Duration = Duration::from_millis(100);

/// A model of a server, and a session of it for each conversation.
pub struct Remote {
    runtime: Runtime,
    model: ModelHandle,
    told: v1::Model,
    sessions: HashMap<usize, Open>,
}

/// A conversation's session, what it has been told and said, and how it chooses.
#[derive(Clone)]
struct Open {
    session: SessionHandle,
    has: Vec<u32>,
    version: usize,
}

impl Remote {
    /// Finds the model, and lets the server load it.
    pub fn connect(args: &ChatArgs) -> Result<Self, Failure> {
        let runtime = runtime()?;
        let (model, told) = runtime.block_on(async {
            let client = connect(&args.server).await?;
            let model = client.model(args.model.model.as_deref().unwrap_or_default());
            // A model that is asked for words is loaded then.
            model.tokenize("a").await?;
            let told = model.info().await?;
            Ok::<_, Failure>((model, told))
        })?;
        Ok(Remote {
            runtime,
            model,
            told,
            sessions: HashMap::new(),
        })
    }

    /// Tells a conversation's session what it has not been told, or begins one.
    fn told(&mut self, talk: usize, tokens: &[u32], how: &How) -> Result<EventStream, Failure> {
        let most = how.max_tokens.unwrap_or(ANSWER) as u64;
        if let Some(open) = self.sessions.remove(&talk) {
            let rest = untold(&open.has, tokens).filter(|_| open.version == how.version);
            if let Some(rest) = rest {
                let told = Generate::new().tokens(rest).max_tokens(most);
                if let Ok(events) = self.runtime.block_on(open.session.generate(told)) {
                    self.sessions.insert(talk, open);
                    return Ok(events);
                }
            }
            // One that is gone already is as good.
            let _ = self.runtime.block_on(open.session.delete());
        }
        let asked = self.model.session().tokens(tokens).keep();
        let asked = asked.max_tokens(most).sampling(sampling(&how.sampling));
        let events = self.runtime.block_on(asked.open())?;
        let open = Open {
            session: events.session().clone(),
            has: Vec::new(),
            version: how.version,
        };
        self.sessions.insert(talk, open);
        Ok(events)
    }

    fn forget(&mut self, talk: usize) {
        if let Some(open) = self.sessions.remove(&talk) {
            let _ = self.runtime.block_on(open.session.delete());
        }
    }

    /// Notes what a session has now, to tell it only what is new.
    fn note(&mut self, talk: usize) {
        let Some(open) = self.sessions.get_mut(&talk) else {
            return;
        };
        match self.runtime.block_on(open.session.info()) {
            Ok(told) => open.has = told.token_ids,
            Err(_) => drop(self.sessions.remove(&talk)),
        }
    }
}

impl Voice for Remote {
    fn facts(&self) -> Facts {
        let limits = self.told.limits.unwrap_or_default();
        Facts {
            model: self.told.name.clone(),
            has_chat: self.told.has_chat,
            context: limits.context as usize,
        }
    }

    fn chat_tokens(&mut self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let messages = messages
            .iter()
            .map(|m| (m.role.as_str(), m.content.as_str()));
        Ok(self.runtime.block_on(self.model.tokenize_chat(messages))?)
    }

    fn text_tokens(&mut self, text: &str) -> Result<Vec<u32>, Failure> {
        Ok(self.runtime.block_on(self.model.tokenize(text))?)
    }

    fn answer(
        &mut self,
        talk: usize,
        tokens: &[u32],
        how: &How,
        interrupt: &Interrupt,
        tell: Tell<'_>,
    ) -> Result<Answer, Failure> {
        let started = Instant::now();
        let mut events = self.told(talk, tokens, how)?;
        let mut answer = Answer::default();
        loop {
            if interrupt.is_on() {
                drop(events);
                self.forget(talk);
                answer.cut = Some("interrupted".to_owned());
                break;
            }
            let next = async { tokio::time::timeout(LOOK, events.next()).await };
            let Ok(event) = self.runtime.block_on(next) else {
                continue;
            };
            match event? {
                Some(TurnEvent::Token(token)) => {
                    answer.tokens += 1;
                    tell(&token.text)?;
                    answer.text += &token.text;
                }
                Some(TurnEvent::Finished(end)) if end.failure.is_empty() => {
                    tell(&end.text)?;
                    answer.text += &end.text;
                    answer.cut = cut(&end.why);
                    self.note(talk);
                    break;
                }
                Some(TurnEvent::Finished(end)) => {
                    self.forget(talk);
                    return Err(Failure::Message(end.failure));
                }
                // Nothing is read or stopped at here.
                _ => {}
            }
        }
        answer.seconds = started.elapsed().as_secs_f64();
        Ok(answer)
    }

    fn fork(&mut self, from: usize, to: usize) -> Result<(), Failure> {
        self.forget(to);
        // Without room for it the other begins anew when it is asked.
        if let Some(open) = self.sessions.get(&from).cloned()
            && let Ok(session) = self.runtime.block_on(open.session.fork(None))
        {
            self.sessions.insert(to, Open { session, ..open });
        }
        Ok(())
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let talks: Vec<usize> = self.sessions.keys().copied().collect();
        for talk in talks {
            self.forget(talk);
        }
    }
}
