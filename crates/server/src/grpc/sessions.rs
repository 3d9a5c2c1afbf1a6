//! The sessions of the protocol.

use std::{
    sync::Arc,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use djinn_engine::{Class, SavedFile, SavedSession, SavedState, SessionId, SessionInfo};
use djinn_wire::v1::{self, event::What, sessions_server::Sessions, signal_request::Signal};
use futures_util::stream;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Answers, Grpc,
    events::{Events, event, finished, paused},
};
use crate::{
    ServeError,
    app::{Caller, session_name},
    ask::{self, Ask},
    config::Limits,
    host::{Host, Turn, Worker},
};

/// Bytes of a saved session that travel together.
const PIECE: usize = 512 << 10;

type Reply<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl Sessions for Grpc {
    type CreateStream = Answers<v1::Event>;
    type GenerateStream = Answers<v1::Event>;
    type FollowStream = Answers<v1::Event>;
    type SaveStream = Answers<v1::SavedPart>;

    async fn create(&self, request: Request<v1::CreateRequest>) -> Reply<Self::CreateStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let events = self.open(request.into_inner(), caller).await?;
        Ok(Response::new(Box::pin(events)))
    }

    async fn generate(&self, request: Request<v1::GenerateRequest>) -> Reply<Self::GenerateStream> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let tokens = ask::more(&host.words, asked.prompt)?;
        let edits = ask::edits(asked.edits)?;
        let by_model = host
            .words
            .generation
            .max_new_tokens
            .unwrap_or(ask::MAX_TOKENS);
        let most = asked.max_tokens.map_or(by_model, |n| n as usize);
        let (count, owner) = (tokens.len(), caller.owner.name.clone());
        let limit = self.0.config.limits.capture_bytes;
        let said = host.call(move |worker| {
            let since = Instant::now();
            let generated = worker.engine.generated(id);
            let seed = seed_of(worker, id);
            worker.check_captures(&owner, id, tokens.len() + most, limit)?;
            worker
                .engine
                .as_owner(&owner)
                .say_with(id, &tokens, most, &edits)?;
            Ok((generated, seed, worker.listen(id, since)))
        });
        let (generated, seed, told) = said.await?;
        let turn = Turn::new(Arc::clone(&host), id, true, told);
        let first = opened(&host, id, count, generated, seed);
        let events = Events::new([first], Some(turn), host.words.clone(), caller);
        Ok(Response::new(Box::pin(events)))
    }

    async fn follow(&self, request: Request<v1::FollowRequest>) -> Reply<Self::FollowStream> {
        let caller = self.caller(&request)?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let events = follow(&host, id, asked.from as usize, caller).await?;
        Ok(Response::new(Box::pin(events)))
    }

    async fn signal(&self, request: Request<v1::SignalRequest>) -> Reply<v1::SignalReply> {
        let came = Instant::now();
        let caller = self.caller(&request)?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let owner = caller.owner.name.clone();
        let signal = asked.signal.ok_or_else(|| {
            ServeError::Invalid("which signal? waiting, resuming or renew".to_owned())
        })?;
        let expected = match &signal {
            Signal::Waiting(waiting) => waiting.expected_s,
            _ => None,
        };
        let expected = expected
            .map(|s| ask::seconds("expected_s", s))
            .transpose()?;
        let expected = expected.and_then(|s| came.checked_add(s));
        let done = match signal {
            Signal::Waiting(_) => host.away(&owner, id, expected, came).await?,
            other => {
                let acted = host.call(move |worker| {
                    let mut owned = worker.engine.as_owner(&owner);
                    match other {
                        Signal::Renew(_) => owned.renew(id)?,
                        _ => owned.resume(id)?,
                    }
                    Ok(came.elapsed())
                });
                acted.await?
            }
        };
        let reaction_us = done.as_micros() as u64;
        Ok(Response::new(v1::SignalReply { reaction_us }))
    }

    async fn fork(&self, request: Request<v1::ForkRequest>) -> Reply<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let asked = request.into_inner();
        let (host, id) = self.0.session(&asked.session).await?;
        let wanted = asked.sampling.map(|sampling| ask::sampling(Some(sampling)));
        let sampling = wanted.map(|wanted| wanted.settle(&host.words.generation));
        let owner = caller.owner.name.clone();
        let forked = host.call(move |worker| {
            let fork = worker.engine.as_owner(&owner).fork(id, sampling)?;
            worker.adopt(fork);
            info(worker, fork)
        });
        Ok(Response::new(session(&host, &forked.await?)))
    }

    async fn get(&self, request: Request<v1::SessionRequest>) -> Reply<v1::Session> {
        let caller = self.caller(&request)?;
        let (host, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        let found = host.call(move |worker| {
            worker.engine.as_owner(&owner).renew(id)?;
            let tokens = worker.engine.tokens(id).unwrap_or_default().to_vec();
            Ok((info(worker, id)?, tokens))
        });
        let (told, token_ids) = found.await?;
        Ok(Response::new(v1::Session {
            token_ids,
            ..session(&host, &told)
        }))
    }

    async fn list(
        &self,
        request: Request<v1::ListSessionsRequest>,
    ) -> Reply<v1::ListSessionsReply> {
        let caller = self.caller(&request)?;
        let wanted = request.into_inner().model;
        let hosts = match wanted.as_str() {
            "" => self.0.models.hosts(),
            name => vec![self.0.models.get(name).await?],
        };
        let mut sessions = Vec::new();
        for host in hosts {
            let owner = caller.owner.name.clone();
            let listed = host.call(move |worker| {
                let theirs = worker.engine.as_owner(&owner).list().into_iter();
                Ok(theirs
                    .map(|info| with_stop(worker, info))
                    .collect::<Vec<_>>())
            });
            let listed = match listed.await {
                // Of all models, one that goes meanwhile has none any more.
                Err(ServeError::Unavailable(_)) if wanted.is_empty() => continue,
                listed => listed?,
            };
            sessions.extend(listed.iter().map(|told| session(&host, told)));
        }
        Ok(Response::new(v1::ListSessionsReply { sessions }))
    }

    async fn save(&self, request: Request<v1::SessionRequest>) -> Reply<Self::SaveStream> {
        let caller = self.caller(&request)?;
        let (host, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        let saved = host
            .call(move |worker| Ok(worker.engine.as_owner(&owner).export(id)?))
            .await?;
        let bytes = bytes::Bytes::from(saved.to_bytes());
        let pieces = (0..bytes.len()).step_by(PIECE);
        let pieces: Vec<_> = pieces
            .map(|at| {
                let data = bytes.slice(at..(at + PIECE).min(bytes.len()));
                let (model, _under_way) = (host.name.clone(), &caller);
                Ok(v1::SavedPart { model, data })
            })
            .collect();
        Ok(Response::new(Box::pin(stream::iter(pieces))))
    }

    async fn load(&self, request: Request<Streaming<v1::SavedPart>>) -> Reply<v1::Session> {
        let caller = self.caller(&request)?;
        self.0.check_serving()?;
        let limits = &self.0.config.limits;
        let mut pieces = request.into_inner();
        let (mut model, mut bytes) = (None, Vec::new());
        let late = || ServeError::Timeout("the session did not come in time".to_owned());
        while let Some(piece) = tokio::time::timeout(limits.patience, pieces.message())
            .await
            .map_err(|_| late())??
        {
            model.get_or_insert(piece.model);
            bytes.extend_from_slice(&piece.data);
            if bytes.len() > limits.message_bytes {
                let most = limits.message_bytes;
                return Err(
                    ServeError::TooLarge(format!("a session may have {most} bytes")).into(),
                );
            }
        }
        let host = self.0.models.get(&model.unwrap_or_default()).await?;
        let file = tokio::task::block_in_place(|| SavedFile::from_bytes(&bytes));
        let file = tamed(file.map_err(ServeError::from)?, limits)?;
        let owner = caller.owner.name.clone();
        let loaded = host.call(move |worker| {
            let id = worker.engine.as_owner(&owner).import(file)?;
            worker.adopt(id);
            info(worker, id)
        });
        Ok(Response::new(session(&host, &loaded.await?)))
    }

    async fn delete(&self, request: Request<v1::SessionRequest>) -> Reply<v1::DeleteReply> {
        let caller = self.caller(&request)?;
        let (host, id) = self.0.session(&request.into_inner().session).await?;
        let owner = caller.owner.name.clone();
        host.call(move |worker| worker.close(&owner, id)).await?;
        Ok(Response::new(v1::DeleteReply {}))
    }
}

impl Grpc {
    async fn open(&self, asked: v1::CreateRequest, caller: Caller) -> Result<Events, ServeError> {
        let host = self.0.models.get(&asked.model).await?;
        let seconds = |name, s: Option<f64>| s.map(|s| ask::seconds(name, s)).transpose();
        let ask = Ask {
            tokens: ask::prompt(&host.words, asked.prompt)?,
            max_tokens: asked.max_tokens.map(|n| n as usize),
            sampling: ask::sampling(asked.sampling),
            stop: asked.stop,
            ignore_eos: asked.ignore_eos,
            captures: asked.captures,
            positions: ask::positions(&asked.capture_positions)?,
            edits: ask::edits(asked.edits)?,
            turn_edits: ask::edits(asked.turn_edits)?,
            breaks: ask::breaks(&asked.breakpoints)?,
            keep: asked.keep,
            lease: seconds("lease_s", asked.lease_s)?,
            deadline: seconds("deadline_s", asked.deadline_s)?,
            class: match v1::Priority::try_from(asked.priority) {
                Ok(v1::Priority::Batch) => Class::Batch,
                _ => Class::Interactive,
            },
        };
        if ask.stop.iter().any(String::is_empty) {
            return Err(ServeError::Invalid(
                "an empty stop string would stop nothing".to_owned(),
            ));
        }
        let (keep, count) = (ask.keep, ask.tokens.len());
        let (limits, owner) = (self.0.config.limits.clone(), caller.owner.name.clone());
        let model = Arc::clone(&host);
        let opened_one = host.call(move |worker| {
            let request = ask.request(&worker.engine, &limits)?;
            let seed = request.sampling.seed;
            let (id, told) = worker.open(&owner, request)?;
            Ok((seed, Turn::new(model, id, keep, told).new_born()))
        });
        let (seed, turn) = opened_one.await?;
        let id = turn.id;
        let first = opened(&host, id, count, 0, seed);
        Ok(Events::new([first], Some(turn), host.words.clone(), caller))
    }
}

/// A session from a file, with no more time than one that begins here.
fn tamed(mut file: SavedFile, limits: &Limits) -> Result<SavedFile, ServeError> {
    let session = &mut file.session;
    if matches!(session.state, SavedState::Done { .. }) {
        let why = "the session is over: there is nothing to go on with";
        return Err(ServeError::Conflict(why.to_owned()));
    }
    if session.sampling.logprobs > Some(ask::LOGPROBS) {
        return Err(ServeError::TooLarge(format!(
            "logprobs: {} at most",
            ask::LOGPROBS
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

pub(super) fn opened(
    host: &Host,
    id: SessionId,
    prompt: usize,
    generated: usize,
    seed: u64,
) -> v1::Event {
    event(What::Opened(v1::Opened {
        session: session_name(host, id),
        prompt_tokens: prompt as u64,
        generated: generated as u64,
        seed,
    }))
}

/// The seed that a session chooses by.
pub(super) fn seed_of(worker: &Worker, id: SessionId) -> u64 {
    worker
        .engine
        .sampling(id)
        .map_or(0, |sampling| sampling.seed)
}

/// What is told of one session, and where it stopped.
pub(super) fn info(worker: &Worker, id: SessionId) -> Result<Told, ServeError> {
    let mut all = worker.engine.list(None).into_iter();
    let found = all.find(|session| session.id == id);
    let info = found.ok_or(djinn_engine::EngineError::NoSession(id))?;
    Ok(with_stop(worker, info))
}

/// A session, and where it stopped if it did.
type Told = (SessionInfo, Option<v1::Paused>);

fn with_stop(worker: &Worker, info: SessionInfo) -> Told {
    let at = worker.engine.paused(info.id);
    let shape = worker.engine.activation_shape(info.id);
    let at = at.map(|at| paused(&at, &shape.unwrap_or_default()));
    (info, at)
}

pub(super) fn session(host: &Host, (info, paused): &Told) -> v1::Session {
    v1::Session {
        session: session_name(host, info.id),
        model: host.name.clone(),
        state: info.state.to_owned(),
        tokens: info.tokens as u64,
        generated: info.generated as u64,
        pages: info.pages as u64,
        pages_away: info.away as u64,
        paused: paused.clone(),
        owner: info.owner.clone(),
        token_ids: Vec::new(),
    }
}

/// Tells of what a session has generated, and of what it goes on to.
async fn follow(
    host: &Arc<Host>,
    id: SessionId,
    from: usize,
    caller: Caller,
) -> Result<Events, ServeError> {
    let owner = caller.owner.name.clone();
    let found = host.call(move |worker| {
        worker.engine.as_owner(&owner).renew(id)?;
        let saved = worker.engine.as_owner(&owner).export(id)?.session;
        let runs = matches!(saved.state, SavedState::Ready);
        let told = runs.then(|| worker.follow(id));
        let shape = worker.engine.activation_shape(id).unwrap_or_default();
        let at = worker.engine.paused(id).map(|at| paused(&at, &shape));
        Ok((saved, told, at, worker.last_finish(id)))
    });
    let (saved, told, at, finish) = found.await?;
    let mut first = vec![opened(
        host,
        id,
        0,
        from.min(saved.generated()),
        saved.sampling.seed,
    )];
    first.extend(replay(host, &saved, from));
    let turn = told.map(|told| Turn::new(Arc::clone(host), id, true, told));
    match (&turn, at) {
        (Some(_), _) => {}
        (None, Some(at)) => first.push(event(What::Paused(at))),
        (None, None) => first.push(finished(
            finish,
            None,
            String::new(),
            saved.generated(),
            true,
        )),
    }
    Ok(Events::new(first, turn, host.words.clone(), caller))
}

/// The tokens that a session has generated from one on, with their text.
fn replay(host: &Host, saved: &SavedSession, from: usize) -> Vec<v1::Event> {
    let given = |position: usize| saved.given.iter().any(|&(a, b)| (a..b).contains(&position));
    let prompt = saved.given.first().map_or(0, |given| given.1);
    let mut decoder = host
        .words
        .text
        .as_ref()
        .map(|text| text.decoder(&saved.tokens[..prompt], true));
    let (mut events, mut index) = (Vec::new(), 0);
    for (position, &id) in saved.tokens.iter().enumerate().skip(prompt) {
        let text = decoder
            .as_mut()
            .and_then(|decoder| decoder.push(id))
            .unwrap_or_default();
        if given(position) {
            continue;
        }
        if index >= from {
            events.push(event(What::Token(v1::Token {
                id,
                text,
                index: index as u64,
                logprobs: Vec::new(),
            })));
        }
        index += 1;
    }
    events
}
