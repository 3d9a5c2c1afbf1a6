//! Service `Sessions`: open, continue, follow, save and delete sessions.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use djinn_engine::{Class, SavedFile, SavedState};
use djinn_wire::v1::{self, sessions_server::Sessions, signal_request::Signal};
use futures_util::stream;
use tonic::{Request, Response, Streaming};

use super::{
    events::EventMessages,
    service::{GrpcResult, GrpcService, GrpcStream},
    session_info::{SessionSnapshot, follow, opened, seed_of},
};
use crate::{
    ServeError,
    auth::Caller,
    config::ServerLimits,
    engine_thread::TurnStream,
    request::{self, LOGPROBS_MAX, MAX_TOKENS_DEFAULT, SamplingSpec, SessionSpec},
};

/// Bytes of a saved session in one message.
const SAVED_PART_BYTES: usize = 512 << 10;

#[tonic::async_trait]
impl Sessions for GrpcService {
    type CreateStream = GrpcStream<v1::Event>;
    type GenerateStream = GrpcStream<v1::Event>;
    type FollowStream = GrpcStream<v1::Event>;
    type SaveStream = GrpcStream<v1::SavedPart>;

    async fn create(&self, request: Request<v1::CreateRequest>) -> GrpcResult<Self::CreateStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let events = self.open(request.into_inner(), caller).await?;
        Ok(Response::new(Box::pin(events)))
    }

    async fn generate(
        &self,
        request: Request<v1::GenerateRequest>,
    ) -> GrpcResult<Self::GenerateStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let tokens = request::continuation_tokens(&model.tokenizer, request.prompt)?;
        let edits = request::edits(request.edits)?;
        let recommended = model.tokenizer.generation.max_new_tokens;
        let max_tokens = request.max_tokens.map(|n| n as usize).or(recommended);
        let max_tokens = max_tokens.unwrap_or(MAX_TOKENS_DEFAULT);
        let (count, owner) = (tokens.len(), caller.owner.name.clone());
        let limits = self.0.config.limits.clone();
        let started = model.call(move |worker| {
            let since = Instant::now();
            let (generated, seed) = (
                worker
                    .engine
                    .view(id)
                    .map_or(0, |session| session.generated()),
                seed_of(worker, id),
            );
            worker.check_captures(&owner, id, tokens.len() + max_tokens, &limits)?;
            let mut session = worker.engine.session(&owner, id)?;
            session.append(&tokens, max_tokens, &edits)?;
            Ok((generated, seed, worker.subscribe(id, since)))
        });
        let (generated, seed, events) = started.await?;
        let turn = TurnStream::new(Arc::clone(&model), id, true, events);
        let first = opened(&model, id, count, generated, seed);
        let events = EventMessages::new([first], Some(turn), model.tokenizer.clone(), caller);
        Ok(Response::new(Box::pin(events)))
    }

    async fn follow(&self, request: Request<v1::FollowRequest>) -> GrpcResult<Self::FollowStream> {
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let events = follow(&model, id, request.from as usize, caller).await?;
        Ok(Response::new(Box::pin(events)))
    }

    async fn signal(&self, request: Request<v1::SignalRequest>) -> GrpcResult<v1::SignalReply> {
        let received = Instant::now();
        let caller = self.caller(&request)?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let owner = caller.owner.name.clone();
        let signal = request.signal.ok_or_else(|| {
            ServeError::Invalid("signal is missing: send waiting, resuming or renew".to_owned())
        })?;
        let reaction = match signal {
            Signal::Waiting(waiting) => {
                let expected = waiting.expected_s;
                let expected = expected.map(|s| request::seconds("expected_s", s));
                let expected = expected.transpose()?.and_then(|s| received.checked_add(s));
                model.wait(&owner, id, expected, received).await?
            }
            other => {
                let done = model.call(move |worker| {
                    let mut session = worker.engine.session(&owner, id)?;
                    match other {
                        Signal::Renew(_) => session.renew(),
                        _ => session.resume()?,
                    }
                    Ok(received.elapsed())
                });
                done.await?
            }
        };
        let reaction_us = reaction.as_micros() as u64;
        Ok(Response::new(v1::SignalReply { reaction_us }))
    }

    async fn fork(&self, request: Request<v1::ForkRequest>) -> GrpcResult<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let request = request.into_inner();
        let (model, id) = self.0.session(&request.session).await?;
        let sampling = request.sampling.map(SamplingSpec::from);
        let sampling = sampling.map(|spec| spec.resolve(&model.tokenizer.generation));
        let owner = caller.owner.name.clone();
        let forked = model.call(move |worker| {
            let fork = worker.engine.session(&owner, id)?.fork(sampling)?;
            worker.adopt(fork);
            SessionSnapshot::of(worker, fork)
        });
        Ok(Response::new(forked.await?.message(&model)))
    }

    async fn get(&self, request: Request<v1::SessionRequest>) -> GrpcResult<v1::Session> {
        let caller = self.caller(&request)?;
        let (model, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        let found = model.call(move |worker| {
            worker.engine.session(&owner, id)?.renew();
            let tokens = worker
                .engine
                .view(id)
                .map(|session| session.tokens())
                .unwrap_or_default()
                .to_vec();
            Ok((SessionSnapshot::of(worker, id)?, tokens))
        });
        let (status, token_ids) = found.await?;
        Ok(Response::new(v1::Session {
            token_ids,
            ..status.message(&model)
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> GrpcResult<v1::ListSessionsReply> {
        let caller = self.caller(&request)?;
        let name = request.into_inner().model;
        let models = match name.as_str() {
            "" => self.0.models.loaded(),
            name => vec![self.0.models.get(name).await?],
        };
        let mut sessions = Vec::new();
        for model in models {
            let owner = caller.owner.name.clone();
            let listed = model.call(move |worker| {
                let owned = worker.engine.list(Some(&owner)).into_iter();
                Ok(owned
                    .map(|info| SessionSnapshot::with_stop(worker, info))
                    .collect::<Vec<_>>())
            });
            let listed = match listed.await {
                // A model that is unloaded meanwhile has no sessions to list.
                Err(ServeError::Unavailable(_)) if name.is_empty() => continue,
                listed => listed?,
            };
            sessions.extend(listed.into_iter().map(|status| status.message(&model)));
        }
        Ok(Response::new(v1::ListSessionsReply { sessions }))
    }

    async fn save(&self, request: Request<v1::SessionRequest>) -> GrpcResult<Self::SaveStream> {
        let caller = self.caller(&request)?;
        let (model, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        let saved = model.call(move |worker| Ok(worker.engine.session(&owner, id)?.export()?));
        let bytes = bytes::Bytes::from(saved.await?.to_bytes());
        let starts = (0..bytes.len()).step_by(SAVED_PART_BYTES);
        let parts: Vec<_> = starts
            .map(|at| {
                let data = bytes.slice(at..(at + SAVED_PART_BYTES).min(bytes.len()));
                let (model, _in_flight) = (model.name.clone(), &caller);
                Ok(v1::SavedPart { model, data })
            })
            .collect();
        Ok(Response::new(Box::pin(stream::iter(parts))))
    }

    async fn load(&self, request: Request<Streaming<v1::SavedPart>>) -> GrpcResult<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let limits = &self.0.config.limits;
        let (name, bytes) = receive(request.into_inner(), limits).await?;
        let model = self.0.models.get(&name).await?;
        let file = tokio::task::block_in_place(|| SavedFile::from_bytes(&bytes));
        let file = limit_loaded(file.map_err(ServeError::from)?, limits)?;
        let owner = caller.owner.name.clone();
        let loaded = model.call(move |worker| {
            let id = worker.engine.import(file, &owner)?;
            worker.adopt(id);
            SessionSnapshot::of(worker, id)
        });
        Ok(Response::new(loaded.await?.message(&model)))
    }

    async fn delete(&self, request: Request<v1::SessionRequest>) -> GrpcResult<v1::DeleteReply> {
        let caller = self.caller(&request)?;
        let (model, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        model.call(move |worker| worker.close(&owner, id)).await?;
        Ok(Response::new(v1::DeleteReply {}))
    }
}

impl GrpcService {
    async fn open(
        &self,
        request: v1::CreateRequest,
        caller: Caller,
    ) -> Result<EventMessages, ServeError> {
        let model = self.0.models.get(&request.model).await?;
        let seconds = |name, s: Option<f64>| s.map(|s| request::seconds(name, s)).transpose();
        request::check_stop_strings(&request.stop)?;
        let spec = SessionSpec {
            tokens: request::prompt_tokens(&model.tokenizer, request.prompt)?,
            max_tokens: request.max_tokens.map(|n| n as usize),
            sampling: request.sampling.unwrap_or_default().into(),
            stop: request.stop,
            ignore_eos: request.ignore_eos,
            captures: request.captures,
            positions: request::positions(&request.capture_positions)?,
            edits: request::edits(request.edits)?,
            turn_edits: request::edits(request.turn_edits)?,
            breakpoints: request::breakpoints(&request.breakpoints)?,
            keep: request.keep,
            lease: seconds("lease_s", request.lease_s)?,
            deadline: seconds("deadline_s", request.deadline_s)?,
            class: match v1::Priority::try_from(request.priority) {
                Ok(v1::Priority::Batch) => Class::Batch,
                _ => Class::Interactive,
            },
        };
        let (keep, count) = (spec.keep, spec.tokens.len());
        let (limits, owner) = (self.0.config.limits.clone(), caller.owner.name.clone());
        let turn_model = Arc::clone(&model);
        let started = model.call(move |worker| {
            let request = spec.into_request(&worker.engine, &limits)?;
            let seed = request.sampling.seed;
            let (id, events) = worker.open(&owner, request)?;
            let turn = TurnStream::of_new_session(turn_model, id, keep, events);
            Ok((seed, turn))
        });
        let (seed, turn) = started.await?;
        let first = opened(&model, turn.id, count, 0, seed);
        let tokenizer = model.tokenizer.clone();
        Ok(EventMessages::new([first], Some(turn), tokenizer, caller))
    }
}

/// Receives a saved session: the name of its model, and its bytes.
async fn receive(
    mut parts: Streaming<v1::SavedPart>,
    limits: &ServerLimits,
) -> Result<(String, Vec<u8>), tonic::Status> {
    let (mut model, mut bytes) = (None, Vec::new());
    let late = || {
        ServeError::Timeout(format!(
            "The next part of the session did not arrive within {} s",
            limits.patience.as_secs_f64()
        ))
    };
    while let Some(part) = tokio::time::timeout(limits.patience, parts.message())
        .await
        .map_err(|_| late())??
    {
        model.get_or_insert(part.model);
        bytes.extend_from_slice(&part.data);
        if bytes.len() > limits.message_bytes {
            let error = format!(
                "The saved session exceeds the limit of {} bytes",
                limits.message_bytes
            );
            return Err(ServeError::TooLarge(error).into());
        }
    }
    Ok((model.unwrap_or_default(), bytes))
}

/// Applies the server's limits to a session from a file: lease, deadline and log-probabilities.
fn limit_loaded(mut file: SavedFile, limits: &ServerLimits) -> Result<SavedFile, ServeError> {
    let session = &mut file.session;
    if matches!(session.state, SavedState::Done { .. }) {
        let error = "The saved session has ended and cannot continue; open a new session";
        return Err(ServeError::Conflict(error.to_owned()));
    }
    if let Some(count) = session.sampling.logprobs
        && count > LOGPROBS_MAX
    {
        return Err(ServeError::TooLarge(format!(
            "The saved session reports {count} logprobs, but the limit is {LOGPROBS_MAX}"
        )));
    }
    let (lease, longest) = (
        limits.lease.as_secs_f64(),
        limits.longest_lease.as_secs_f64(),
    );
    let asked = session.lease.filter(|lease| *lease >= 0.0);
    session.lease = Some(asked.unwrap_or(lease).min(longest));
    if !session.keep {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let end = (now + limits.deadline).as_secs_f64();
        session.deadline = Some(session.deadline.map_or(end, |deadline| deadline.min(end)));
    }
    Ok(file)
}
