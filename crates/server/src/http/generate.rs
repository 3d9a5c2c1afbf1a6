//! Start of the turns of a completion or chat request, and the answer to it.

use std::{sync::Arc, time::Instant};

use djinn_engine::SessionId;

use super::{
    answer::{AnswerHead, ApiKind, PendingAnswer},
    djinn::DjinnFields,
    error::HttpResult,
    stream,
    types::CommonFields,
};
use crate::{
    ServeError,
    app::{App, session_name},
    auth::Caller,
    engine_thread::{ChatTokenizer, LoadedModel, TurnStream},
    request::{MAX_TOKENS_DEFAULT, SessionSpec, seconds},
};

/// A parsed and tokenized request.
pub struct GenerationJob {
    /// API of the request.
    pub api: ApiKind,
    /// Model of the request.
    pub model: Arc<LoadedModel>,
    /// Tokens of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Text of each prompt, for `echo`; empty otherwise.
    pub echo: Vec<String>,
    /// Number of alternatives to report with each token, if requested.
    pub logprobs: Option<usize>,
    /// Remaining fields of the request.
    pub common: CommonFields,
}

/// Starts all turns of a request, and answers with a stream or in one piece.
pub async fn generate(app: &App, caller: Caller, job: GenerationJob) -> HttpResult {
    app.check_serving()?;
    let choices = job.common.n.unwrap_or(1);
    let (count, limit) = (
        job.prompts.len().saturating_mul(choices),
        app.config.limits.batch,
    );
    if count > limit {
        let error = ServeError::TooLarge(format!(
            "The request asks for {count} choices, but the limit is {limit}: send fewer prompts or a smaller n"
        ));
        return Err(error.in_field("n").into());
    }
    let fields = job.common.djinn.clone().unwrap_or_default();
    let kept = fields.keep || fields.session.is_some();
    if kept && count != 1 {
        return Err(ServeError::Invalid(
            "A kept session needs exactly one prompt and n = 1".to_owned(),
        )
        .into());
    }
    let turns = match &fields.session {
        Some(session) => vec![continue_session(app, &caller, &job, session, &fields).await?],
        None => open_sessions(app, &caller, &job, &fields).await?,
    };
    let repeat = |text: &String| vec![text.clone(); choices];
    let answer = PendingAnswer {
        head: AnswerHead::new(&job.model.name, job.api),
        session: kept.then(|| session_name(&turns[0].model, turns[0].id)),
        turns,
        echo: job.echo.iter().flat_map(repeat).collect(),
        prompt_tokens: job.prompts.iter().map(Vec::len).sum(),
        logprobs: job.logprobs.is_some(),
        token_ids: job.common.return_token_ids.unwrap_or(false),
        caller,
    };
    match job.common.stream.unwrap_or(false) {
        true => Ok(stream::respond(answer, job.common.wants_usage())),
        false => answer.collect().await,
    }
}

/// Opens a session for every choice of every prompt: all of them, or none.
async fn open_sessions(
    app: &App,
    caller: &Caller,
    job: &GenerationJob,
    fields: &DjinnFields,
) -> Result<Vec<TurnStream>, ServeError> {
    let specs = session_specs(job, fields)?;
    let (limits, keep) = (app.config.limits.clone(), fields.keep);
    let (owner, model) = (caller.owner.name.clone(), Arc::clone(&job.model));
    let opened = job.model.call(move |worker| {
        let mut opened: Vec<(SessionId, _)> = Vec::new();
        for spec in specs {
            let request = spec.into_request(&worker.engine, &limits);
            match request.and_then(|request| worker.open(&owner, request)) {
                Ok(one) => opened.push(one),
                Err(error) => {
                    for (id, _) in opened {
                        let _ = worker.close(&owner, id);
                    }
                    return Err(error);
                }
            }
        }
        let turn = |(id, events)| TurnStream::of_new_session(Arc::clone(&model), id, keep, events);
        Ok(opened.into_iter().map(turn).collect())
    });
    opened.await
}

fn session_specs(
    job: &GenerationJob,
    fields: &DjinnFields,
) -> Result<Vec<SessionSpec>, ServeError> {
    let mut sampling = job.common.sampling()?;
    sampling.logprobs = job.logprobs;
    let lease = fields.lease_s.map(|s| seconds("lease_s", s)).transpose();
    let template = SessionSpec {
        max_tokens: job.common.max_tokens(),
        stop: job.common.stop(),
        ignore_eos: job.common.ignore_eos.unwrap_or(false),
        captures: fields.captures.clone(),
        edits: fields.all_edits()?,
        keep: fields.keep,
        lease: lease.map_err(|error| error.in_field("djinn.lease_s"))?,
        ..SessionSpec::default()
    };
    let seed = sampling.resolve(&job.model.tokenizer.generation).seed;
    let mut specs = Vec::new();
    for prompt in &job.prompts {
        for choice in 0..job.common.n.unwrap_or(1) {
            // Choices of one prompt differ by their seeds.
            sampling.seed = Some(seed.wrapping_add(choice as u64));
            specs.push(SessionSpec {
                tokens: prompt.clone(),
                sampling: sampling.clone(),
                ..template.clone()
            });
        }
    }
    Ok(specs)
}

/// Starts another turn of a kept session.
async fn continue_session(
    app: &App,
    caller: &Caller,
    job: &GenerationJob,
    session: &str,
    fields: &DjinnFields,
) -> Result<TurnStream, ServeError> {
    let (model, id) = app.session(session).await?;
    if model.name != job.model.name {
        return Err(ServeError::Invalid(format!(
            "Session {session} belongs to the model {}, not to {}",
            model.name, job.model.name
        )));
    }
    if !fields.captures.is_empty() {
        return Err(fixed_at_start("djinn.captures"));
    }
    if fields.lease_s.is_some() {
        return Err(fixed_at_start("djinn.lease_s"));
    }
    let (sampling, stop, logprobs) = (job.common.sampling()?, job.common.stop(), job.logprobs);
    let (tokens, api, tokenizer) = (job.prompts[0].clone(), job.api, model.tokenizer.clone());
    let recommended = tokenizer.generation.max_new_tokens;
    let max_tokens = job.common.max_tokens().or(recommended);
    let max_tokens = max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
    let (owner, edits) = (caller.owner.name.clone(), fields.all_edits()?);
    let limits = app.config.limits.clone();
    let events = model.call(move |worker| {
        let since = Instant::now();
        worker.engine.session(&owner, id)?.renew();
        if let Some(own) = worker.engine.view(id).map(|session| session.sampling()) {
            let other_logprobs = (logprobs != own.logprobs).then_some("logprobs");
            if let Some(name) = sampling.first_difference(own).or(other_logprobs) {
                return Err(fixed_at_start(name));
            }
        }
        let own_stop = worker.engine.view(id).map(|session| session.stop());
        if !stop.is_empty() && own_stop.is_some_and(|own| *own != *stop) {
            return Err(fixed_at_start("stop"));
        }
        let tokens = match api {
            ApiKind::Completion => tokens,
            ApiKind::Chat => {
                let seen = worker
                    .engine
                    .view(id)
                    .map(|session| session.tokens())
                    .unwrap_or_default();
                new_chat_tokens(&tokenizer, seen, &tokens)?
            }
        };
        worker.check_captures(&owner, id, tokens.len() + max_tokens, &limits)?;
        let mut session = worker.engine.session(&owner, id)?;
        session.append(&tokens, max_tokens, &edits)?;
        Ok(worker.subscribe(id, since))
    });
    let events = events.await?;
    Ok(TurnStream::new(model, id, true, events))
}

fn fixed_at_start(field: &str) -> ServeError {
    let error = ServeError::Unsupported(format!(
        "'{field}' is fixed when a session begins: leave it out, or repeat the same value"
    ));
    error.in_field(field)
}

/// Tokens of a chat that its session has not seen yet.
fn new_chat_tokens(
    tokenizer: &ChatTokenizer,
    seen: &[u32],
    whole: &[u32],
) -> Result<Vec<u32>, ServeError> {
    if let Some(rest) = whole.strip_prefix(seen) {
        return Ok(rest.to_vec());
    }
    // The tokenizer may split generated text differently than the model generated it, so texts
    // are compared.
    let text = |tokens: &[u32]| {
        let text = tokenizer.tokenizer()?.decode(tokens, false);
        text.map_err(ServeError::from)
    };
    let (seen, whole) = (text(seen)?, text(whole)?);
    let rest = whole.strip_prefix(seen.as_str()).ok_or_else(|| {
        ServeError::Conflict(
            "The messages do not begin with the messages of the session; open another session"
                .to_owned(),
        )
    })?;
    tokenizer.encode_more(rest)
}
