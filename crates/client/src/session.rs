//! Handle of a session on a server, and the stream of its events.

use std::{
    future::poll_fn,
    path::Path,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use djinn_wire::{
    Assembler, ErrorCode,
    v1::{self, event::What, signal_request::Signal},
};
use tokio_stream::Stream;
use tonic::Streaming;

use crate::{
    connection::GrpcConnection,
    error::Error,
    tensor::{TENSOR_BYTES_MAX, TensorData},
    turn::{TurnEvent, TurnOutput},
    turn_setup::{Generate, Resume},
};

/// Bytes of a saved session in one message.
const SAVED_PART_BYTES: usize = 512 << 10;

/// Handle of a session by its name. Any connection with the owner's API key can use the session.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    connection: GrpcConnection,
    name: String,
}

impl SessionHandle {
    pub(crate) fn new(connection: GrpcConnection, name: String) -> Self {
        SessionHandle { connection, name }
    }

    /// Name of the session.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn asked(&self) -> v1::SessionRequest {
        v1::SessionRequest {
            session: self.name.clone(),
        }
    }

    /// Describes the session, with all its tokens.
    pub async fn info(&self) -> Result<v1::Session, Error> {
        let mut service = self.connection.sessions_service();
        self.connection.one(service.get(self.asked())).await
    }

    /// Runs another turn.
    pub async fn generate(&self, turn: Generate) -> Result<EventStream, Error> {
        let mut asked = turn.0;
        asked.session.clone_from(&self.name);
        let stream = self.connection.sessions_service().generate(asked).await?;
        EventStream::open(self.connection.clone(), stream.into_inner()).await
    }

    /// Replays the tokens that the session generated from token `from` on, then follows its
    /// current turn.
    pub async fn follow(&self, from: u64) -> Result<EventStream, Error> {
        let session = self.name.clone();
        let asked = v1::FollowRequest { session, from };
        let stream = self.connection.sessions_service().follow(asked).await?;
        EventStream::open(self.connection.clone(), stream.into_inner()).await
    }

    /// Signals that the client pauses. The session's KV pages may leave the device; without an
    /// expected duration the pages leave at once. Returns the server's reaction time.
    pub async fn waiting(&self, expected: Option<Duration>) -> Result<Duration, Error> {
        let expected_s = expected.map(|d| d.as_secs_f64());
        self.signal(Signal::Waiting(v1::Waiting { expected_s }))
            .await
    }

    /// Signals that the client continues. KV pages return, and an interrupted turn continues.
    pub async fn resuming(&self) -> Result<Duration, Error> {
        self.signal(Signal::Resuming(v1::Resuming {})).await
    }

    /// Restarts the session's lease.
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.signal(Signal::Renew(v1::Renew {})).await
    }

    async fn signal(&self, signal: Signal) -> Result<Duration, Error> {
        let asked = v1::SignalRequest {
            session: self.name.clone(),
            signal: Some(signal),
        };
        let mut service = self.connection.sessions_service();
        let told = self.connection.one(service.signal(asked)).await?;
        Ok(Duration::from_micros(told.reaction_us))
    }

    /// Opens a copy of a waiting session, with its own sampling parameters if given.
    pub async fn fork(&self, sampling: Option<v1::Sampling>) -> Result<SessionHandle, Error> {
        let asked = v1::ForkRequest {
            session: self.name.clone(),
            sampling,
        };
        let mut service = self.connection.sessions_service();
        let fork = self.connection.one(service.fork(asked)).await?;
        Ok(SessionHandle::new(self.connection.clone(), fork.session))
    }

    /// Saves the session as bytes that any server with the same model can load.
    pub async fn save(&self) -> Result<Vec<u8>, Error> {
        let pieces = self
            .connection
            .sessions_service()
            .save(self.asked())
            .await?;
        let (mut pieces, mut saved) = (pieces.into_inner(), Vec::new());
        while let Some(piece) = pieces.message().await? {
            saved.extend_from_slice(&piece.data);
        }
        Ok(saved)
    }

    /// Saves the session to a file.
    pub async fn save_to(&self, path: &Path) -> Result<(), Error> {
        let saved = self.save().await?;
        let written = tokio::fs::write(path, saved).await;
        written.map_err(|error| Error::file(path, &error))
    }

    /// Closes the session and frees its memory.
    pub async fn delete(&self) -> Result<(), Error> {
        let mut service = self.connection.sessions_service();
        let deleted = self.connection.one(service.delete(self.asked())).await;
        deleted.map(drop)
    }

    /// Returns the activation at the breakpoint, or a part of it: heads or elements (`[0..64]`) and
    /// positions (`-1`). An empty text means all.
    pub async fn activation(&self, part: &str, positions: &str) -> Result<TensorData, Error> {
        let asked = v1::ActivationRequest {
            session: self.name.clone(),
            part: part.to_owned(),
            positions: positions.to_owned(),
        };
        let parts = self
            .connection
            .white_box_service()
            .activation(asked)
            .await?;
        let (mut parts, mut assembler) = (parts.into_inner(), Assembler::default());
        while let Some(part) = parts.message().await? {
            if let Some((_, whole)) = assembler.push(part, TENSOR_BYTES_MAX)? {
                return Ok((&whole).try_into()?);
            }
        }
        let text = "The connection to the server ended inside a tensor";
        Err(Error::new(ErrorCode::Unavailable, text))
    }

    /// Resumes the session from its breakpoint. The server computes nothing twice.
    pub async fn resume(&self, how: Resume) -> Result<EventStream, Error> {
        let mut asked = how.0;
        asked.session.clone_from(&self.name);
        let stream = self.connection.white_box_service().resume(asked).await?;
        EventStream::open(self.connection.clone(), stream.into_inner()).await
    }

    /// Replaces the session's breakpoints.
    pub async fn set_breakpoints<B: Into<String>>(
        &self,
        breakpoints: impl IntoIterator<Item = B>,
    ) -> Result<(), Error> {
        let asked = v1::SetBreakpointsRequest {
            session: self.name.clone(),
            breakpoints: breakpoints.into_iter().map(Into::into).collect(),
        };
        let mut service = self.connection.white_box_service();
        self.connection
            .one(service.set_breakpoints(asked))
            .await
            .map(drop)
    }

    /// Opens several sessions at the same breakpoint. All of them share the KV cache before it.
    pub async fn branch(&self, count: u32) -> Result<Vec<SessionHandle>, Error> {
        let session = self.name.clone();
        let asked = v1::BranchRequest { session, count };
        let mut service = self.connection.white_box_service();
        let branches = self.connection.one(service.branch(asked)).await?.sessions;
        let of = |name| SessionHandle::new(self.connection.clone(), name);
        Ok(branches.into_iter().map(of).collect())
    }

    /// Opens a session at a hook that this session passed before, with the given residual from a position on.
    pub async fn branch_back(
        &self,
        hook: impl Into<String>,
        position: u64,
        residual: &TensorData,
    ) -> Result<SessionHandle, Error> {
        let asked = v1::BranchBackRequest {
            session: self.name.clone(),
            hook: hook.into(),
            position,
            residual: Some(residual.into()),
        };
        let mut service = self.connection.white_box_service();
        let branch = self.connection.one(service.branch_back(asked)).await?;
        Ok(SessionHandle::new(self.connection.clone(), branch.session))
    }

    /// Returns a session that was restored after a restart to its breakpoint.
    pub async fn recall(&self) -> Result<EventStream, Error> {
        let stream = self
            .connection
            .white_box_service()
            .recall(self.asked())
            .await?;
        EventStream::open(self.connection.clone(), stream.into_inner()).await
    }
}

/// Opens a saved session on a model.
pub(crate) async fn load(
    connection: &GrpcConnection,
    model: &str,
    saved: Vec<u8>,
) -> Result<SessionHandle, Error> {
    let saved = Bytes::from(saved);
    let piece = |at: usize| v1::SavedPart {
        model: model.to_owned(),
        data: saved.slice(at..(at + SAVED_PART_BYTES).min(saved.len())),
    };
    // An empty file is sent as one empty part, so that the server reports the error.
    let starts = (0..saved.len().max(1)).step_by(SAVED_PART_BYTES);
    let pieces: Vec<v1::SavedPart> = starts.map(piece).collect();
    let mut service = connection.sessions_service();
    let loaded = connection
        .one(service.load(tokio_stream::iter(pieces)))
        .await?;
    Ok(SessionHandle::new(connection.clone(), loaded.session))
}

/// Stream of a turn's events. A stream that ends without [`TurnEvent::Paused`] or
/// [`TurnEvent::Finished`] returns an error.
#[derive(Debug)]
pub struct EventStream {
    session: SessionHandle,
    opened: v1::Opened,
    stream: Streaming<v1::Event>,
    tensor: Assembler,
    is_over: bool,
}

impl EventStream {
    /// Waits for the first message, which names the session.
    pub(crate) async fn open(
        connection: GrpcConnection,
        mut stream: Streaming<v1::Event>,
    ) -> Result<Self, Error> {
        let first = stream.message().await?.and_then(|event| event.what);
        let Some(What::Opened(opened)) = first else {
            return Err(protocol_error(
                "the first event of the stream does not name the session",
            ));
        };
        Ok(EventStream {
            session: SessionHandle::new(connection, opened.session.clone()),
            opened,
            stream,
            tensor: Assembler::default(),
            is_over: false,
        })
    }

    /// Handle of the session.
    pub fn session(&self) -> &SessionHandle {
        &self.session
    }

    /// First event: tokens of the prompt, tokens generated before, and the seed.
    pub fn opened(&self) -> &v1::Opened {
        &self.opened
    }

    /// Waits for the next event. Returns `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<TurnEvent>, Error> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context))
            .await
            .transpose()
    }

    /// Collects all events up to the end of the turn.
    pub async fn collect(mut self) -> Result<TurnOutput, Error> {
        let mut turn = TurnOutput::new(self.opened.clone());
        while let Some(event) = self.next().await? {
            turn.take(event);
        }
        Ok(turn)
    }

    fn take(&mut self, event: v1::Event) -> Result<Option<TurnEvent>, Error> {
        Ok(match event.what {
            Some(What::Token(token)) => Some(TurnEvent::Token(token)),
            Some(What::Captured(part)) => {
                let whole = self.tensor.push(part, TENSOR_BYTES_MAX)?;
                match whole {
                    Some((name, tensor)) => Some(TurnEvent::Captured(name, (&tensor).try_into()?)),
                    None => None,
                }
            }
            Some(What::Paused(paused)) => Some(TurnEvent::Paused(paused)),
            Some(What::Finished(finished)) => Some(TurnEvent::Finished(finished)),
            Some(What::Opened(_)) => {
                return Err(protocol_error("the stream names the session twice"));
            }
            // A newer server may send events that this client does not know.
            None => None,
        })
    }
}

impl Stream for EventStream {
    type Item = Result<TurnEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            let taken = match ready!(Pin::new(&mut self.stream).poll_next(context)) {
                Some(Ok(event)) => self.take(event),
                Some(Err(status)) => Err(status.into()),
                None => Err(Error::new(
                    ErrorCode::Unavailable,
                    "The connection to the server ended before the turn did",
                )),
            };
            self.is_over = matches!(
                taken,
                Err(_) | Ok(Some(TurnEvent::Paused(_) | TurnEvent::Finished(_)))
            );
            if let Some(event) = taken.transpose() {
                return Poll::Ready(Some(event));
            }
        }
    }
}

fn protocol_error(problem: &str) -> Error {
    Error::new(
        ErrorCode::Internal,
        format!("Unexpected reply of the server: {problem}"),
    )
}
