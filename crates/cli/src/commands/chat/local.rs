//! An engine of this process answers.

use std::{collections::HashMap, time::Instant};

use djinn_engine::{Blueprint, Engine, Request, SessionId, Settings};
use djinn_model::Message;

use super::voice::{ANSWER, Answer, Facts, How, Tell, Voice, cut, untold};
use crate::{
    args::ChatArgs,
    bundled,
    commands::{interrupt::Interrupt, load, run::sampling, watch::Watch},
    failure::Failure,
};

/// Positions of a conversation where nobody says.
const CONTEXT: usize = 4096;
/// Conversations there is room for side by side.
const TALKS: usize = 4;

/// An engine, and a session of it for each conversation.
pub struct Local {
    engine: Engine,
    context: usize,
    sessions: HashMap<usize, Open>,
}

/// A conversation's session, and how it chooses.
#[derive(Clone, Copy)]
struct Open {
    id: SessionId,
    version: usize,
}

impl Local {
    /// Loads the model.
    pub fn load(args: &ChatArgs) -> Result<Self, Failure> {
        let model = bundled::open(args.model.model.as_deref())?;
        if model.tokenizer.is_none() {
            return Err(Failure::Message(format!(
                "{} has no tokenizer.json: there are no words to talk with it",
                model.name
            )));
        }
        let most = model.program.dims.context;
        let context = args.context.unwrap_or(CONTEXT).min(most);
        let settings = Settings::for_sessions(&model.program, TALKS, context, args.model.rows)?;
        let settled = args.model.settled()?;
        let blueprint = Blueprint::draw(&model, settled.backend(), settings, settled.memory)?;
        let engine = load(&settled, model, blueprint, &mut Watch::default())?;
        Ok(Local {
            engine,
            context,
            sessions: HashMap::new(),
        })
    }

    /// A session that has been told these tokens and is about to answer.
    fn told(&mut self, talk: usize, tokens: &[u32], how: &How) -> Result<SessionId, Failure> {
        let generation = self.engine.model().generation.clone();
        let by_model = generation.max_new_tokens.unwrap_or(ANSWER);
        let max_tokens = how.max_tokens.unwrap_or(by_model);
        if let Some(open) = self.sessions.remove(&talk) {
            let has = self
                .engine
                .view(open.id)
                .map(|session| session.tokens())
                .unwrap_or_default();
            let rest = untold(has, tokens).filter(|_| open.version == how.version);
            if let Some(rest) = rest
                && self
                    .engine
                    .any_session(open.id)
                    .and_then(|mut session| session.append(rest, max_tokens, &[]))
                    .is_ok()
            {
                self.sessions.insert(talk, open);
                return Ok(open.id);
            }
            self.engine.close(open.id);
        }
        let request = Request {
            tokens: tokens.to_vec(),
            max_tokens,
            sampling: sampling(&how.sampling, &generation),
            eos: generation.eos,
            keep: true,
            ..Request::default()
        };
        let id = self.engine.open(request)?;
        let version = how.version;
        self.sessions.insert(talk, Open { id, version });
        Ok(id)
    }

    fn forget(&mut self, talk: usize) {
        if let Some(open) = self.sessions.remove(&talk) {
            self.engine.close(open.id);
        }
    }
}

impl Voice for Local {
    fn facts(&self) -> Facts {
        let model = self.engine.model();
        Facts {
            model: model.name.clone(),
            has_chat: model.chat.is_some(),
            context: self.context,
        }
    }

    fn chat_tokens(&mut self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let model = self.engine.model();
        let (Some(text), Some(template)) = (&model.tokenizer, &model.chat) else {
            return Err(Failure::Message(format!(
                "{} has no chat template",
                model.name
            )));
        };
        // A template writes its own special tokens.
        Ok(text.encode_plain(&template.render(messages, true)?)?)
    }

    fn text_tokens(&mut self, text: &str) -> Result<Vec<u32>, Failure> {
        let model = self.engine.model();
        let words = model
            .tokenizer
            .as_ref()
            .expect("it was looked for when loading");
        let tokens = words.encode(text)?;
        Ok(match (tokens.is_empty(), words.bos()) {
            (true, Some(bos)) => vec![bos],
            _ => tokens,
        })
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
        let id = self.told(talk, tokens, how)?;
        let mut answer = Answer::default();
        while !self.engine.is_idle() {
            if interrupt.is_on() {
                self.forget(talk);
                answer.cut = Some("interrupted".to_owned());
                break;
            }
            for output in self.engine.step()? {
                if output.session != id {
                    continue;
                }
                if let Some(failure) = output.failure {
                    self.forget(talk);
                    return Err(Failure::Message(failure));
                }
                answer.tokens += usize::from(output.token.is_some());
                answer.text += &output.text;
                tell(&output.text)?;
                if let Some(finish) = output.finish {
                    answer.cut = cut(&finish.to_string());
                }
            }
        }
        answer.seconds = started.elapsed().as_secs_f64();
        Ok(answer)
    }

    fn fork(&mut self, from: usize, to: usize) -> Result<(), Failure> {
        self.forget(to);
        // Without room for it the other begins anew when it is asked.
        if let Some(open) = self.sessions.get(&from).copied()
            && let Ok(id) = self
                .engine
                .any_session(open.id)
                .and_then(|mut session| session.fork(None))
        {
            self.sessions.insert(to, Open { id, ..open });
        }
        Ok(())
    }
}
