//! Client: models, sessions and statistics of a server.

use std::{path::Path, time::Duration};

use djinn_wire::{
    ErrorCode,
    v1::{self, register_event},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Streaming;

use crate::{
    connection::GrpcConnection,
    error::Error,
    model::ModelHandle,
    options::Options,
    push::{Push, PushProgress},
    session::SessionHandle,
};

/// Client of a server. Clones share one connection, which reconnects by itself when the server returns.
#[derive(Clone, Debug)]
pub struct Client {
    connection: GrpcConnection,
}

impl Client {
    /// Connects to `HOST:PORT`, `http://…` or `https://…`.
    pub async fn connect(address: &str, options: Options) -> Result<Self, Error> {
        let connection = GrpcConnection::connect(address, options).await?;
        Ok(Client { connection })
    }

    /// Connects to a server in this process. `open` opens one byte stream to the server, for
    /// example with `djinn_server::InProcessConnector::connect`. The client calls `open` again
    /// when the connection is lost.
    pub async fn connect_in_process<F, S>(open: F, options: Options) -> Result<Self, Error>
    where
        F: FnMut() -> std::io::Result<S> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = GrpcConnection::connect_in_process(open, options).await?;
        Ok(Client { connection })
    }

    /// Connects to the server that the environment variables name; see [`Options::address`] and
    /// [`Options::from_env`].
    pub async fn from_env() -> Result<Self, Error> {
        Client::connect(&Options::address(), Options::from_env()).await
    }

    /// Returns the server's version, device and limits.
    pub async fn capabilities(&self) -> Result<v1::CapabilitiesReply, Error> {
        let asked = v1::CapabilitiesRequest {};
        self.connection
            .one(self.connection.server_service().capabilities(asked))
            .await
    }

    /// Streams live statistics of the server at an interval.
    pub async fn watch(&self, every: Duration) -> Result<StatusStream, Error> {
        let every_s = every.as_secs_f64();
        let asked = v1::WatchRequest { every_s };
        let stream = self
            .connection
            .one(self.connection.server_service().watch(asked))
            .await?;
        Ok(StatusStream(stream))
    }

    /// Starts recording a model's copies, waits and operations.
    pub async fn record(&self, model: &str) -> Result<(), Error> {
        self.timeline(model, true).await.map(drop)
    }

    /// Ends a recording and returns it.
    pub async fn end_record(&self, model: &str) -> Result<v1::TimelineReply, Error> {
        self.timeline(model, false).await
    }

    async fn timeline(&self, model: &str, record: bool) -> Result<v1::TimelineReply, Error> {
        let model = model.to_owned();
        let asked = v1::TimelineRequest { model, record };
        self.connection
            .one(self.connection.server_service().timeline(asked))
            .await
    }

    /// Handle of a model by its name; the empty name means the server's default model. Sends no request.
    pub fn model(&self, name: impl Into<String>) -> ModelHandle {
        ModelHandle::new(self.connection.clone(), name.into())
    }

    /// Lists all models, loaded or not.
    pub async fn models(&self) -> Result<Vec<v1::Model>, Error> {
        let asked = v1::ListModelsRequest {};
        Ok(self
            .connection
            .one(self.connection.models_service().list(asked))
            .await?
            .models)
    }

    /// Registers and loads a model, and reports the progress.
    pub async fn register(
        &self,
        model: Register,
        mut progress: impl FnMut(v1::LoadProgress),
    ) -> Result<v1::Model, Error> {
        let mut events = self
            .connection
            .models_service()
            .register(model.0)
            .await?
            .into_inner();
        while let Some(event) = events.message().await? {
            match event.what {
                Some(register_event::What::Loading(loading)) => progress(loading),
                Some(register_event::What::Ready(model)) => return Ok(model),
                None => {}
            }
        }
        let text = "The connection to the server ended before the model was loaded; check the server's log";
        Err(Error::new(ErrorCode::Unavailable, text))
    }

    /// Plans the memory of a model without loading it.
    pub async fn plan(&self, request: v1::PlanRequest) -> Result<v1::PlanReply, Error> {
        self.connection
            .one(self.connection.models_service().plan(request))
            .await
    }

    /// Pushes a model's files that the server does not have. A second call resumes an interrupted
    /// push.
    pub async fn push(
        &self,
        folder: &Path,
        progress: impl FnMut(PushProgress),
    ) -> Result<Push, Error> {
        crate::push::push(&self.connection, folder, progress).await
    }

    /// Handle of a session by its name. Sends no request.
    pub fn session(&self, name: impl Into<String>) -> SessionHandle {
        SessionHandle::new(self.connection.clone(), name.into())
    }

    /// Lists the caller's sessions, of one model or of all.
    pub async fn sessions(&self, model: Option<&str>) -> Result<Vec<v1::Session>, Error> {
        self.list_sessions(model, false).await
    }

    /// Lists the sessions of all owners, of one model or of all. Needs an admin key.
    pub async fn sessions_of_all_owners(
        &self,
        model: Option<&str>,
    ) -> Result<Vec<v1::Session>, Error> {
        self.list_sessions(model, true).await
    }

    async fn list_sessions(
        &self,
        model: Option<&str>,
        all_owners: bool,
    ) -> Result<Vec<v1::Session>, Error> {
        let model = model.unwrap_or_default().to_owned();
        let asked = v1::ListSessionsRequest { model, all_owners };
        Ok(self
            .connection
            .one(self.connection.sessions_service().list(asked))
            .await?
            .sessions)
    }
}

/// Request to register a model.
#[derive(Clone, Debug)]
pub struct Register(v1::RegisterRequest);

impl Register {
    /// Registers a reference: a folder below the server's --model-dir, a hub id, `shape:NAME` or `pushed:HASH`.
    pub fn new(reference: impl Into<String>) -> Self {
        Register(v1::RegisterRequest {
            reference: reference.into(),
            ..v1::RegisterRequest::default()
        })
    }

    /// Sets the model's name on the server. Default: the last part of the reference.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.0.name = name.into();
        self
    }

    /// Sets the limits that the model is laid out for; zero takes the server's default.
    pub fn limits(mut self, limits: v1::ModelLimits) -> Self {
        self.0.limits = Some(limits);
        self
    }
}

/// Stream of live statistics.
#[derive(Debug)]
pub struct StatusStream(Streaming<v1::Status>);

impl StatusStream {
    /// Waits for the next statistics.
    pub async fn next(&mut self) -> Result<v1::Status, Error> {
        let gone = || {
            Error::new(
                ErrorCode::Unavailable,
                "The server ended the stream of statistics; connect again",
            )
        };
        self.0.message().await?.ok_or_else(gone)
    }
}
