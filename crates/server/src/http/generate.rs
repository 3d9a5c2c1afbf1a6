//! From a request to turns, and from turns to an answer: what completions and chats share.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use axum::{Json, response::IntoResponse};
use djinn_engine::SessionId;
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::{
    Reply,
    choices::{Choice, reason},
    djinn::{self, DjinnFields},
    logprobs::{self, Shape},
    stream,
    types::Common,
};
use crate::{
    ServeError,
    app::{App, Caller, session_name},
    ask::{Ask, MAX_TOKENS, seconds},
    host::{Host, Turn},
};

/// Which of the two it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `/v1/completions`
    Text,
    /// `/v1/chat/completions`
    Chat,
}

impl Way {
    /// What an answer is called.
    pub fn object(self, streams: bool) -> &'static str {
        match (self, streams) {
            (Way::Text, _) => "text_completion",
            (Way::Chat, false) => "chat.completion",
            (Way::Chat, true) => "chat.completion.chunk",
        }
    }

    /// How log-probabilities are told.
    pub fn logprobs(self) -> Shape {
        match self {
            Way::Text => Shape::Lists,
            Way::Chat => Shape::Content,
        }
    }
}

/// What is asked, settled.
pub struct Job {
    /// Which of the two it is.
    pub way: Way,
    /// The model.
    pub host: Arc<Host>,
    /// What each prompt is.
    pub prompts: Vec<Vec<u32>>,
    /// The text of each, where it is to be told again.
    pub echo: Vec<String>,
    /// Alternatives of each token, where they are wanted.
    pub logprobs: Option<usize>,
    /// The rest.
    pub common: Common,
}

/// Names and numbers of an answer.
pub struct Head {
    /// Its name.
    pub id: String,
    /// When.
    pub created: u64,
    /// By which model.
    pub model: String,
    /// Which of the two it is.
    pub way: Way,
}

/// An answer under way.
pub struct Answer {
    /// What it is called.
    pub head: Head,
    /// Each choice.
    pub turns: Vec<Turn>,
    /// What comes before each.
    pub echo: Vec<String>,
    /// Tokens of the prompts.
    pub prompt_tokens: usize,
    /// Whether log-probabilities are told, and ids.
    pub logprobs: bool,
    /// Those.
    pub token_ids: bool,
    /// The session, where it is kept.
    pub session: Option<String>,
    /// Whoever asked.
    pub caller: Caller,
}

/// Runs it, and answers as it was asked to.
pub async fn answer(app: &Arc<App>, caller: Caller, job: Job) -> Reply {
    app.check_serving()?;
    job.common.check()?;
    let (streams, usage) = (job.common.stream.unwrap_or(false), job.common.wants_usage());
    let answer = begin(app, caller, job).await?;
    match streams {
        true => Ok(stream::respond(answer, usage)),
        false => whole(answer).await,
    }
}

async fn begin(app: &Arc<App>, caller: Caller, job: Job) -> Result<Answer, ServeError> {
    let n = job.common.n.unwrap_or(1);
    let (count, most) = (job.prompts.len().saturating_mul(n), app.config.limits.batch);
    if count > most {
        return Err(ServeError::TooLarge(format!(
            "{count} choices, of which {most} are made at once: send fewer prompts, or a smaller n"
        )));
    }
    let fields = job.common.djinn.clone().unwrap_or_default();
    let kept = fields.keep || fields.session.is_some();
    if kept && count != 1 {
        return Err(ServeError::Invalid(
            "a session has one prompt and one choice".to_owned(),
        ));
    }
    let prompt_tokens = job.prompts.iter().map(Vec::len).sum();
    let head = Head::new(&job.host, job.way);
    let turns = match &fields.session {
        Some(session) => vec![go_on(app, &caller, &job, session, &fields).await?],
        None => open_all(app, &caller, &job, &fields).await?,
    };
    let session = kept.then(|| session_name(&turns[0].host, turns[0].id));
    let echo = job
        .echo
        .iter()
        .flat_map(|text| vec![text.clone(); n])
        .collect();
    Ok(Answer {
        head,
        turns,
        echo,
        prompt_tokens,
        logprobs: job.logprobs.is_some(),
        token_ids: job.common.return_token_ids.unwrap_or(false),
        session,
        caller,
    })
}

impl Head {
    fn new(host: &Host, way: Way) -> Self {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let kind = match way {
            Way::Text => "cmpl",
            Way::Chat => "chatcmpl",
        };
        Head {
            id: format!("{kind}-{:x}", now.as_nanos()),
            created: now.as_secs(),
            model: host.name.clone(),
            way,
        }
    }

    /// An answer, or a piece of one.
    pub fn json(&self, streams: bool, choices: Value) -> Value {
        json!({
            "id": self.id,
            "object": self.way.object(streams),
            "created": self.created,
            "model": self.model,
            "choices": choices,
        })
    }
}

/// A session for every choice of every prompt.
async fn open_all(
    app: &Arc<App>,
    caller: &Caller,
    job: &Job,
    fields: &DjinnFields,
) -> Result<Vec<Turn>, ServeError> {
    let n = job.common.n.unwrap_or(1);
    let mut sampling = job.common.sampling()?;
    sampling.logprobs = job.logprobs;
    let template = Ask {
        max_tokens: job.common.max_completion_tokens.or(job.common.max_tokens),
        stop: job.common.stop(),
        ignore_eos: job.common.ignore_eos.unwrap_or(false),
        captures: fields.captures.clone(),
        edits: fields.changes()?,
        keep: fields.keep,
        lease: fields.lease_s.map(|s| seconds("lease_s", s)).transpose()?,
        ..Ask::default()
    };
    let seed = sampling.settle(&job.host.words.generation).seed;
    let mut asks = Vec::new();
    for prompt in &job.prompts {
        for choice in 0..n {
            // Choices of one prompt differ by their seeds.
            sampling.seed = Some(seed.wrapping_add(choice as u64));
            asks.push(Ask {
                tokens: prompt.clone(),
                sampling: sampling.clone(),
                ..template.clone()
            });
        }
    }
    let (limits, owner, keep) = (
        app.config.limits.clone(),
        caller.owner.name.clone(),
        fields.keep,
    );
    let model = Arc::clone(&job.host);
    let opened = job.host.call(move |worker| {
        let mut opened: Vec<(SessionId, _)> = Vec::new();
        for ask in asks {
            let request = ask.request(&worker.engine, &limits);
            let one = request.and_then(|request| worker.open(&owner, request));
            match one {
                Ok(one) => opened.push(one),
                // All of them, or none.
                Err(error) => {
                    for (id, _) in opened {
                        let _ = worker.close(&owner, id);
                    }
                    return Err(error);
                }
            }
        }
        let turn = |(id, told)| Turn::new(Arc::clone(&model), id, keep, told).new_born();
        Ok(opened.into_iter().map(turn).collect())
    });
    opened.await
}

/// Tells a session that is kept more.
async fn go_on(
    app: &Arc<App>,
    caller: &Caller,
    job: &Job,
    session: &str,
    fields: &DjinnFields,
) -> Result<Turn, ServeError> {
    let (host, id) = app.session(session).await?;
    if host.name != job.host.name {
        return Err(ServeError::Invalid(format!(
            "session {session} is of {}, not of {}",
            host.name, job.host.name
        )));
    }
    if !fields.captures.is_empty() {
        return Err(ServeError::Unsupported(
            "captures are chosen when a session begins: they come with every turn of it".to_owned(),
        ));
    }
    if fields.lease_s.is_some() {
        return Err(settled("lease_s"));
    }
    let (sampling, stop) = (job.common.sampling()?, job.common.stop());
    let logprobs = job.logprobs;
    let (tokens, way, words) = (job.prompts[0].clone(), job.way, host.words.clone());
    let most = job.common.max_completion_tokens.or(job.common.max_tokens);
    let most = most
        .or(words.generation.max_new_tokens)
        .unwrap_or(MAX_TOKENS);
    let (owner, edits) = (caller.owner.name.clone(), fields.changes()?);
    let limit = app.config.limits.capture_bytes;
    let said = host.call(move |worker| {
        let since = Instant::now();
        worker.engine.as_owner(&owner).renew(id)?;
        if let Some(own) = worker.engine.sampling(id) {
            let differs = sampling
                .differs(own)
                .or((logprobs != own.logprobs).then_some("logprobs"));
            if let Some(name) = differs {
                return Err(settled(name));
            }
        }
        if !stop.is_empty() && worker.engine.export(id)?.session.stop != stop {
            return Err(settled("stop"));
        }
        let tokens = match way {
            Way::Text => tokens,
            Way::Chat => rest_of_chat(
                &words,
                worker.engine.tokens(id).unwrap_or_default(),
                &tokens,
            )?,
        };
        worker.check_captures(&owner, id, tokens.len() + most, limit)?;
        worker
            .engine
            .as_owner(&owner)
            .say_with(id, &tokens, most, &edits)?;
        Ok(worker.listen(id, since))
    });
    Ok(Turn::new(Arc::clone(&host), id, true, said.await?))
}

fn settled(name: &str) -> ServeError {
    ServeError::Unsupported(format!(
        "'{name}' is settled when a session begins: leave it out, or say the same again"
    ))
}

/// What a chat has beyond what its session has seen.
fn rest_of_chat(
    words: &crate::host::Words,
    seen: &[u32],
    whole: &[u32],
) -> Result<Vec<u32>, ServeError> {
    if let Some(rest) = whole.strip_prefix(seen) {
        return Ok(rest.to_vec());
    }
    // What was generated may be read as other tokens of the same text.
    let text = |tokens: &[u32]| {
        words
            .tokenizer()?
            .decode(tokens, false)
            .map_err(ServeError::from)
    };
    let (seen, whole) = (text(seen)?, text(whole)?);
    let rest = whole.strip_prefix(seen.as_str()).ok_or_else(|| {
        ServeError::Conflict(
            "the messages do not begin with what the session has seen: begin another session"
                .to_owned(),
        )
    })?;
    words.encode_more(rest)
}

async fn whole(answer: Answer) -> Reply {
    let Answer {
        head,
        turns,
        echo,
        prompt_tokens,
        session,
        logprobs,
        token_ids,
        caller: _caller,
    } = answer;
    let words = turns[0].host.words.clone();
    let mut choices = try_join_all(turns.into_iter().map(Choice::of)).await?;
    let completion_tokens: usize = choices.iter().map(|choice| choice.tokens.len()).sum();
    let captured = match &mut choices[..] {
        [only] => std::mem::take(&mut only.captured),
        _ => BTreeMap::new(),
    };
    let told: Vec<Value> = choices
        .iter()
        .enumerate()
        .map(|(index, choice)| {
            let before = echo.get(index).map_or("", String::as_str);
            let text = format!("{before}{}", choice.text);
            let shape = head.way.logprobs();
            let offset = before.chars().count();
            let logprobs =
                logprobs.then(|| logprobs::told(shape, &words, &choice.logprobs, offset));
            let mut told = json!({
                "index": index,
                "logprobs": logprobs,
                "finish_reason": choice.finish.map(reason),
            });
            if let Some(read) = djinn::told(None, &choice.captured) {
                told["djinn"] = read;
            }
            if token_ids {
                told["token_ids"] = json!(choice.tokens);
            }
            match head.way {
                Way::Text => told["text"] = text.into(),
                Way::Chat => {
                    told["message"] =
                        json!({ "role": "assistant", "content": text, "refusal": null });
                }
            }
            told
        })
        .collect();
    let mut reply = head.json(false, told.into());
    reply["usage"] = usage(prompt_tokens, completion_tokens);
    if let Some(told) = djinn::told(session, &captured) {
        reply["djinn"] = told;
    }
    Ok(Json(reply).into_response())
}

/// How many tokens there were.
pub fn usage(prompt: usize, completion: usize) -> Value {
    json!({
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    })
}
