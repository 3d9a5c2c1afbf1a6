//! Start of the turns of a completion or chat request, and the answer to it.

use std::{sync::Arc, time::Instant};

use super::{
    answer::{AnswerHead, ApiKind, PendingAnswer},
    djinn::DjinnFields,
    error::HttpResult,
    prompts::PromptTokens,
    stream,
    types::CommonFields,
};
use crate::{
    ServeError,
    app::{App, session_name},
    auth::Caller,
    engine_thread::{ChatTokenizer, LoadedModel, TurnStream},
    request::{self, SessionSpec, seconds},
};

/// A parsed and tokenized request.
pub struct GenerationJob {
    /// API of the request.
    pub api: ApiKind,
    /// Model of the request.
    pub model: Arc<LoadedModel>,
    /// Tokens of each prompt.
    pub prompts: Vec<Arc<[u32]>>,
    /// Text of each prompt, for `echo`; empty otherwise.
    pub echo: Vec<String>,
    /// Number of alternatives to report with each token, if requested.
    pub logprobs: Option<usize>,
    /// Remaining fields of the request.
    pub common: CommonFields,
    /// Bytes of the request's body.
    pub bytes: usize,
}

/// Checks the number of sessions that a request asks for, before any of its prompts is tokenized.
pub fn check_choices(app: &App, prompts: usize, choices: Option<usize>) -> Result<(), ServeError> {
    let (count, limit) = (
        prompts.saturating_mul(choices.unwrap_or(1)),
        app.config.limits.batch,
    );
    match count > limit {
        true => Err(ServeError::out_of_range(
            "n",
            format!(
                "The request asks for {count} choices, but the limit is {limit}: send fewer prompts or a \
                 smaller n"
            ),
        )),
        false => Ok(()),
    }
}

/// Starts all turns of a request, and answers with a stream or in one piece.
pub async fn generate(app: &App, caller: Caller, job: GenerationJob) -> HttpResult {
    app.check_serving()?;
    let choices = job.common.n.unwrap_or(1);
    let fields = job.common.djinn.clone().unwrap_or_default();
    let kept = fields.keep || fields.session.is_some();
    if kept && job.prompts.len().saturating_mul(choices) != 1 {
        return Err(ServeError::Invalid(
            "A kept session needs exactly one prompt and n = 1".to_owned(),
        )
        .into());
    }
    let prompts = PromptTokens::new(job.prompts.iter().map(|prompt| prompt.len()), choices);
    caller.context.set_model(&job.model.name);
    caller.context.add_prompt_tokens(prompts.total());
    let turns = match &fields.session {
        Some(session) => vec![continue_session(app, &caller, &job, session, &fields).await?],
        None => open_sessions(app, &caller, &job, fields).await?,
    };
    let repeat = |text: &String| vec![text.clone(); choices];
    let answer = PendingAnswer {
        head: AnswerHead::new(&job.model.name, job.api),
        session: kept.then(|| session_name(&turns[0].model, turns[0].id)),
        turns,
        echo: job.echo.iter().flat_map(repeat).collect(),
        prompts,
        logprobs: job.logprobs.is_some(),
        token_ids: job.common.return_token_ids.unwrap_or(false),
        caller,
    };
    match job.common.stream.unwrap_or(false) {
        true => Ok(stream::respond(answer, job.common.wants_usage())),
        false => answer.collect(&app.offload).await,
    }
}

/// Opens a session for every choice of every prompt: all of them, or none.
async fn open_sessions(
    app: &App,
    caller: &Caller,
    job: &GenerationJob,
    fields: DjinnFields,
) -> Result<Vec<TurnStream>, ServeError> {
    let mut sampling = job.common.sampling()?;
    sampling.logprobs = job.logprobs;
    let (limits, keep) = (app.config.limits.clone(), fields.keep);
    let (model, prompts) = (Arc::clone(&job.model), job.prompts.clone());
    let (max_tokens, stop) = (job.common.max_tokens(), job.common.stop());
    let ignore_eos = job.common.ignore_eos.unwrap_or(false);
    let choices = job.common.n.unwrap_or(1);
    let admitted = app.offload.run(caller.name(), job.bytes, move || {
        let lease = fields.lease_s.map(|s| seconds("lease_s", s)).transpose();
        let spec = SessionSpec {
            max_tokens,
            sampling,
            stop,
            ignore_eos,
            edits: fields.all_edits()?,
            captures: fields.captures,
            keep: fields.keep,
            lease: lease.map_err(|error| error.in_field("djinn.lease_s"))?,
            ..SessionSpec::default()
        };
        request::admit(&model, &limits, &spec, &prompts, choices)
    });
    let requests = admitted.await??;
    let opened = job.model.open(caller.name(), requests, &app.config.limits);
    let turn = |(id, events)| {
        let model = Arc::clone(&job.model);
        TurnStream::of_new_session(model, id, keep, events, &caller.context)
    };
    Ok(opened.await?.into_iter().map(turn).collect())
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
            "The session belongs to the model {}, not to {}",
            model.name, job.model.name
        )));
    }
    if !fields.captures.is_empty() {
        return Err(fixed_at_start("djinn.captures"));
    }
    if fields.lease_s.is_some() {
        return Err(fixed_at_start("djinn.lease_s"));
    }
    let (sampling, stop) = (job.common.sampling()?, job.common.stop());
    request::check_sampling(&sampling)?;
    let (logprobs, owner) = (job.logprobs, caller.name().to_owned());
    let seen = model.call(caller.name(), move |worker| {
        worker.engine.session(&owner, id)?.renew();
        let Some(view) = worker.engine.view(id) else {
            return Ok(Vec::new());
        };
        let own = view.sampling();
        let other_logprobs = (logprobs != own.logprobs).then_some("logprobs");
        if let Some(name) = sampling.first_difference(own).or(other_logprobs) {
            return Err(fixed_at_start(name));
        }
        if !stop.is_empty() && *view.stop() != *stop {
            return Err(fixed_at_start("stop"));
        }
        Ok(view.tokens().to_vec())
    });
    let seen = seen.await?;
    let (prompt, api, tokenizer) = (
        Arc::clone(&job.prompts[0]),
        job.api,
        model.tokenizer.clone(),
    );
    let (max_tokens, edits) = (job.common.max_tokens(), fields.clone());
    let for_offload = Arc::clone(&model);
    let bytes = job.bytes.saturating_add(seen.len());
    let admitted = app.offload.run(caller.name(), bytes, move || {
        let tokens = match api {
            ApiKind::Completion => prompt.to_vec(),
            ApiKind::Chat => new_chat_tokens(&tokenizer, &seen, &prompt)?,
        };
        let max_tokens = request::admit_turn_tokens(&for_offload, tokens.len(), max_tokens)?;
        Ok::<_, ServeError>((tokens, max_tokens, edits.all_edits()?))
    });
    let (tokens, max_tokens, edits) = admitted.await??;
    let (owner, limits) = (caller.name().to_owned(), app.config.limits.clone());
    let events = model.call(caller.name(), move |worker| {
        let since = Instant::now();
        let total = tokens.len().saturating_add(max_tokens);
        worker.check_captures(&owner, id, total, &limits)?;
        let mut session = worker.engine.session(&owner, id)?;
        session.append(&tokens, max_tokens, &edits)?;
        Ok(worker.subscribe(id, since))
    });
    let events = events.await?;
    Ok(TurnStream::new(model, id, true, events, &caller.context))
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
