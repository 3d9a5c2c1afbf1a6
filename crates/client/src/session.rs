//! A session of a server.

use std::{path::Path, time::Duration};

use bytes::Bytes;
use djinn_wire::{
    Assembler, ErrorCode,
    v1::{self, signal_request::Signal},
};

use crate::{
    client::Client,
    create::{Generate, Resume},
    error::Error,
    events::EventStream,
    tensor::{LARGEST, TensorData},
};

/// Bytes of a saved session that travel together.
const PIECE: usize = 512 << 10;

/// A session by its name. It is there for its owner alone, whichever connection asks.
#[derive(Clone, Debug)]
pub struct SessionHandle {
    client: Client,
    name: String,
}

impl SessionHandle {
    pub(crate) fn new(client: Client, name: String) -> Self {
        SessionHandle { client, name }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn asked(&self) -> v1::SessionRequest {
        v1::SessionRequest {
            session: self.name.clone(),
        }
    }

    /// Where it stands, with every token of it.
    pub async fn info(&self) -> Result<v1::Session, Error> {
        let mut service = self.client.sessions_service();
        self.client.one(service.get(self.asked())).await
    }

    /// Tells it more, and lets it generate.
    pub async fn generate(&self, told: Generate) -> Result<EventStream, Error> {
        let mut asked = told.0;
        asked.session.clone_from(&self.name);
        let stream = self.client.sessions_service().generate(asked).await?;
        EventStream::open(self.client.clone(), stream.into_inner()).await
    }

    /// What it has generated from some token on, and goes on to.
    pub async fn follow(&self, from: u64) -> Result<EventStream, Error> {
        let session = self.name.clone();
        let asked = v1::FollowRequest { session, from };
        let stream = self.client.sessions_service().follow(asked).await?;
        EventStream::open(self.client.clone(), stream.into_inner()).await
    }

    /// Nobody needs it for a while: its pages make way for others who need their room, or, where
    /// it is not said for how long, go at once. Gives how long until they began to move.
    pub async fn waiting(&self, expected: Option<Duration>) -> Result<Duration, Error> {
        let expected_s = expected.map(|d| d.as_secs_f64());
        self.signal(Signal::Waiting(v1::Waiting { expected_s }))
            .await
    }

    /// It is needed soon: its pages come back, and a turn that was interrupted goes on.
    pub async fn resuming(&self) -> Result<Duration, Error> {
        self.signal(Signal::Resuming(v1::Resuming {})).await
    }

    /// It is still wanted: its lease begins anew.
    pub async fn renew(&self) -> Result<Duration, Error> {
        self.signal(Signal::Renew(v1::Renew {})).await
    }

    async fn signal(&self, signal: Signal) -> Result<Duration, Error> {
        let asked = v1::SignalRequest {
            session: self.name.clone(),
            signal: Some(signal),
        };
        let mut service = self.client.sessions_service();
        let told = self.client.one(service.signal(asked)).await?;
        Ok(Duration::from_micros(told.reaction_us))
    }

    /// Another that goes on from where this one waits, choosing as it does unless told.
    pub async fn fork(&self, sampling: Option<v1::Sampling>) -> Result<SessionHandle, Error> {
        let asked = v1::ForkRequest {
            session: self.name.clone(),
            sampling,
        };
        let mut service = self.client.sessions_service();
        let fork = self.client.one(service.fork(asked)).await?;
        Ok(SessionHandle::new(self.client.clone(), fork.session))
    }

    /// The session as bytes, which any server with its model can load.
    pub async fn save(&self) -> Result<Vec<u8>, Error> {
        let pieces = self.client.sessions_service().save(self.asked()).await?;
        let (mut pieces, mut saved) = (pieces.into_inner(), Vec::new());
        while let Some(piece) = pieces.message().await? {
            saved.extend_from_slice(&piece.data);
        }
        Ok(saved)
    }

    /// The same to a file.
    pub async fn save_to(&self, path: &Path) -> Result<(), Error> {
        let saved = self.save().await?;
        let written = tokio::fs::write(path, saved).await;
        written.map_err(|error| Error::file(path, &error))
    }

    /// Ends it and gives its memory back.
    pub async fn delete(&self) -> Result<(), Error> {
        let mut service = self.client.sessions_service();
        let deleted = self.client.one(service.delete(self.asked())).await;
        deleted.map(drop)
    }

    /// What is at the hook where it stopped: some heads or elements (`[0..64]`) and positions (`-1`), or
    /// all where those are empty. Nothing else travels.
    pub async fn activation(&self, part: &str, positions: &str) -> Result<TensorData, Error> {
        let asked = v1::ActivationRequest {
            session: self.name.clone(),
            part: part.to_owned(),
            positions: positions.to_owned(),
        };
        let parts = self.client.white_box_service().activation(asked).await?;
        let (mut parts, mut assembler) = (parts.into_inner(), Assembler::default());
        while let Some(part) = parts.message().await? {
            if let Some((_, whole)) = assembler.push(part, LARGEST)? {
                return Ok((&whole).try_into()?);
            }
        }
        let text = "the server ended in the middle of a tensor";
        Err(Error::new(ErrorCode::Unavailable, text))
    }

    /// Lets it go on from where it stopped. Nothing before that is computed again.
    pub async fn resume(&self, how: Resume) -> Result<EventStream, Error> {
        let mut asked = how.0;
        asked.session.clone_from(&self.name);
        let stream = self.client.white_box_service().resume(asked).await?;
        EventStream::open(self.client.clone(), stream.into_inner()).await
    }

    /// Sets its breakpoints, in place of those it had.
    pub async fn set_breakpoints<B: Into<String>>(
        &self,
        breakpoints: impl IntoIterator<Item = B>,
    ) -> Result<(), Error> {
        let asked = v1::SetBreakpointsRequest {
            session: self.name.clone(),
            breakpoints: breakpoints.into_iter().map(Into::into).collect(),
        };
        let mut service = self.client.white_box_service();
        self.client
            .one(service.set_breakpoints(asked))
            .await
            .map(drop)
    }

    /// Several that stand where it stopped, and share all that lies before.
    pub async fn branch(&self, count: u32) -> Result<Vec<SessionHandle>, Error> {
        let session = self.name.clone();
        let asked = v1::BranchRequest { session, count };
        let mut service = self.client.white_box_service();
        let branches = self.client.one(service.branch(asked)).await?.sessions;
        let of = |name| SessionHandle::new(self.client.clone(), name);
        Ok(branches.into_iter().map(of).collect())
    }

    /// One that stands at a hook which it passed on its way, with the residual given from a position on.
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
        let mut service = self.client.white_box_service();
        let branch = self.client.one(service.branch_back(asked)).await?;
        Ok(SessionHandle::new(self.client.clone(), branch.session))
    }

    /// Brings one that was taken back after a restart to where it had stopped.
    pub async fn recall(&self) -> Result<EventStream, Error> {
        let stream = self.client.white_box_service().recall(self.asked()).await?;
        EventStream::open(self.client.clone(), stream.into_inner()).await
    }
}

/// Takes a saved session to a model of a server.
pub(crate) async fn load(
    client: &Client,
    model: &str,
    saved: Vec<u8>,
) -> Result<SessionHandle, Error> {
    let saved = Bytes::from(saved);
    let piece = |at: usize| v1::SavedPart {
        model: model.to_owned(),
        data: saved.slice(at..(at + PIECE).min(saved.len())),
    };
    // Nothing is a piece too: the server says what is wrong with it.
    let starts = (0..saved.len().max(1)).step_by(PIECE);
    let pieces: Vec<v1::SavedPart> = starts.map(piece).collect();
    let mut service = client.sessions_service();
    let loaded = client.one(service.load(tokio_stream::iter(pieces))).await?;
    Ok(SessionHandle::new(client.clone(), loaded.session))
}
