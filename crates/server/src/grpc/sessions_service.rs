//! Service `Sessions`: open, continue, follow, save and delete sessions.

use std::{sync::Arc, time::Instant};

use djinn_engine::{CheckedRequest, Class, SavedFile};
use djinn_wire::v1::{self, sessions_server::Sessions, signal_request::Signal};
use futures_util::stream;
use prost::Message;
use tonic::{Request, Response, Streaming};

use super::{
    events::EventMessages,
    service::{GrpcResult, GrpcService, GrpcStream},
    session_info::{SessionSnapshot, follow, opened, seed_of},
};
use crate::{
    ServeError,
    app::session_name,
    auth::Caller,
    config::ServerLimits,
    engine_thread::{LoadedModel, TurnStream},
    request::{self, SamplingSpec, SessionSpec},
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
        let bytes = request.encoded_len();
        let for_offload = Arc::clone(&model);
        let admitted = self.0.offload.run(caller.name(), bytes, move || {
            let tokens = request::continuation_tokens(&for_offload.tokenizer, request.prompt)?;
            let max_tokens = request
                .max_tokens
                .map(|n| usize::try_from(n).unwrap_or(usize::MAX));
            let max_tokens = request::admit_turn_tokens(&for_offload, tokens.len(), max_tokens)?;
            Ok::<_, ServeError>((tokens, max_tokens, request::edits(request.edits)?))
        });
        let (tokens, max_tokens, edits) = admitted.await??;
        let (count, owner) = (tokens.len(), caller.name().to_owned());
        caller.context.set_model(&model.name);
        caller.context.add_prompt_tokens(count);
        let limits = self.0.config.limits.clone();
        let started = model.call(caller.name(), move |worker| {
            let since = Instant::now();
            let (generated, seed) = (
                worker
                    .engine
                    .view(id)
                    .map_or(0, |session| session.generated()),
                seed_of(worker, id),
            );
            let total = tokens.len().saturating_add(max_tokens);
            worker.check_captures(&owner, id, total, &limits)?;
            let mut session = worker.engine.session(&owner, id)?;
            session.append(&tokens, max_tokens, &edits)?;
            Ok((generated, seed, worker.subscribe(id, since)))
        });
        let (generated, seed, events) = started.await?;
        let turn = TurnStream::new(Arc::clone(&model), id, true, events, &caller.context);
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
        let owner = caller.name().to_owned();
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
                let done = model.call(caller.name(), move |worker| {
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
        sampling.as_ref().map(request::check_sampling).transpose()?;
        let sampling = sampling.map(|spec| spec.resolve(&model.tokenizer.generation));
        let owner = caller.name().to_owned();
        let forked = model.call(caller.name(), move |worker| {
            let fork = worker.engine.session(&owner, id)?.fork(sampling)?;
            worker.adopt(fork);
            SessionSnapshot::of(worker, fork)
        });
        Ok(Response::new(forked.await?.message(&model)))
    }

    async fn get(&self, request: Request<v1::SessionRequest>) -> GrpcResult<v1::Session> {
        let caller = self.caller(&request)?;
        let (model, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.name().to_owned();
        let found = model.call(caller.name(), move |worker| {
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
        let request = request.into_inner();
        if request.all_owners {
            caller.check_admin()?;
        }
        let (name, all_owners) = (request.model, request.all_owners);
        let models = match name.as_str() {
            "" => self.0.models.loaded(),
            name => vec![self.0.models.get(name).await?],
        };
        let mut sessions = Vec::new();
        for model in models {
            let owner = caller.name().to_owned();
            let listed = model.call(caller.name(), move |worker| {
                let owner = (!all_owners).then_some(owner.as_str());
                let owned = worker.engine.list(owner).into_iter();
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
        let owner = caller.name().to_owned();
        let saved = model.call(caller.name(), move |worker| {
            Ok(worker.engine.session(&owner, id)?.export()?)
        });
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
        let for_offload = limits.clone();
        let file = self.0.offload.run(caller.name(), bytes.len(), move || {
            let file = SavedFile::from_bytes(&bytes).map_err(ServeError::from)?;
            request::admit_saved(file, &for_offload)
        });
        let (file, for_worker) = (file.await??, limits.clone());
        let owner = caller.name().to_owned();
        let loaded = model.call(caller.name(), move |worker| {
            let id = worker.engine.import(file, &owner)?;
            worker.adopt(id);
            // A session that continues at once must not capture more than a new one could.
            if let Err(error) = worker.check_captures(&owner, id, 0, &for_worker) {
                worker.close(Some(&owner), id)?;
                return Err(error);
            }
            SessionSnapshot::of(worker, id)
        });
        Ok(Response::new(loaded.await?.message(&model)))
    }

    async fn delete(&self, request: Request<v1::SessionRequest>) -> GrpcResult<v1::DeleteReply> {
        let caller = self.caller(&request)?;
        let (model, id) = self.0.session(&request.into_inner().session).await?;
        let (owner, is_admin) = (caller.name().to_owned(), caller.owner.admin);
        let closed = model.call(caller.name(), move |worker| {
            let owns = worker.engine.session(&owner, id).is_ok();
            // An admin may end anyone's session.
            let owner = (owns || !is_admin).then_some(owner.as_str());
            worker.close(owner, id)?;
            Ok(owns)
        });
        let closed = closed.await;
        if !matches!(closed, Ok(true)) && caller.owner.admin {
            let audit = &self.0.audit;
            audit.record(&caller, "end session", &session_name(&model, id), &closed);
        }
        closed?;
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
        let bytes = request.encoded_len();
        let (for_offload, limits) = (Arc::clone(&model), self.0.config.limits.clone());
        let keep = request.keep;
        let admitted = self.0.offload.run(caller.name(), bytes, move || {
            admit_created(&for_offload, &limits, request)
        });
        let admitted = admitted.await??;
        let (admitted, TurnStart { count, seed }) = admitted;
        caller.context.set_model(&model.name);
        caller.context.add_prompt_tokens(count);
        let limits = &self.0.config.limits;
        let opened_sessions = model.open(caller.name(), vec![admitted], limits).await?;
        let only = opened_sessions.into_iter().next();
        let (id, events) = only.ok_or_else(|| model.gone())?;
        let turn_model = Arc::clone(&model);
        let turn = TurnStream::of_new_session(turn_model, id, keep, events, &caller.context);
        let first = opened(&model, turn.id, count, 0, seed);
        let tokenizer = model.tokenizer.clone();
        Ok(EventMessages::new([first], Some(turn), tokenizer, caller))
    }
}

/// Facts that the first message of a new session tells.
struct TurnStart {
    /// Number of tokens of the prompt.
    count: usize,
    /// Seed of the sampler.
    seed: u64,
}

/// Admits a request for a new session.
fn admit_created(
    model: &LoadedModel,
    limits: &ServerLimits,
    request: v1::CreateRequest,
) -> Result<(CheckedRequest, TurnStart), ServeError> {
    let seconds = |name, s: Option<f64>| s.map(|s| request::seconds(name, s)).transpose();
    let max_tokens = request.max_tokens;
    let mut spec = SessionSpec {
        max_tokens: max_tokens.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
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
    let tokens = request::prompt_tokens(&model.tokenizer, request.prompt)?;
    // The seed is drawn here, because the first message tells it to the client.
    let seed = spec.sampling.resolve(&model.tokenizer.generation).seed;
    spec.sampling.seed = Some(seed);
    let start = TurnStart {
        count: tokens.len(),
        seed,
    };
    let mut requests = request::admit(model, limits, &spec, &[tokens.into()], 1)?;
    let only = requests.pop();
    let only =
        only.ok_or_else(|| ServeError::Internal("The request asked for no session".to_owned()));
    Ok((only?, start))
}

/// Receives a saved session: the name of its model, and its bytes.
async fn receive(
    mut parts: Streaming<v1::SavedPart>,
    limits: &ServerLimits,
) -> Result<(String, Vec<u8>), tonic::Status> {
    let (mut model, mut bytes) = (None, Vec::new());
    let late = || {
        ServeError::SlowClient(format!(
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
