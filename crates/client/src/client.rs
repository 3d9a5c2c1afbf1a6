//! Connection to a server.

use std::{
    future::{Future, Ready, ready},
    path::Path,
    task::{Context, Poll},
    time::Duration,
};

use djinn_wire::ErrorCode;
use djinn_wire::v1::{
    self, models_client::ModelsClient, register_event, server_client::ServerClient,
    sessions_client::SessionsClient, white_box_client::WhiteBoxClient,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::{Service, http::Uri},
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use crate::{
    error::{Error, with_causes},
    model::ModelHandle,
    options::Options,
    push::{Push, PushProgress},
    session::SessionHandle,
};

/// Channel that adds the API key to every request.
pub(crate) type AuthChannel = InterceptedService<Channel, Bearer>;

/// Connection to a server. Clones share the connection, which reconnects by itself when the server returns.
#[derive(Clone, Debug)]
pub struct Client {
    channel: AuthChannel,
    timeout: Option<Duration>,
}

/// Interceptor that adds the API key to every request.
#[derive(Clone)]
pub(crate) struct Bearer(Option<MetadataValue<Ascii>>);

impl std::fmt::Debug for Bearer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() {
            "Bearer(key)"
        } else {
            "Bearer(no key)"
        })
    }
}

impl Interceptor for Bearer {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}

/// Address that requests to a server in this process carry; no connection is made to it.
const IN_PROCESS_ADDRESS: &str = "http://in-process";

/// Connector that opens byte streams with a function instead of a network address.
struct StreamConnector<F>(F);

impl<F, S> Service<Uri> for StreamConnector<F>
where
    F: FnMut() -> std::io::Result<S>,
{
    type Response = TokioIo<S>;
    type Error = std::io::Error;
    type Future = Ready<Result<TokioIo<S>, std::io::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), std::io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        ready((self.0)().map(TokioIo::new))
    }
}

impl Client {
    /// Connects to `HOST:PORT`, `http://…` or `https://…`.
    pub async fn connect(address: &str, options: Options) -> Result<Self, Error> {
        let endpoint = options.endpoint(address)?;
        let key = options.key.as_deref().map(bearer).transpose()?;
        let channel = endpoint.connect().await.map_err(|error| {
            let text = format!("Cannot connect to a server at {address}");
            let reason = std::error::Error::source(&error);
            let text = with_causes(text, reason);
            Error::new(ErrorCode::Unavailable, text)
        })?;
        Ok(Client::over(channel, key, &options))
    }

    /// Connects to a server in this process. `open` opens one byte stream to it, for example with
    /// `djinn_server::InProcessConnector::connect`; it runs again when the connection is lost.
    pub async fn connect_in_process<F, S>(open: F, options: Options) -> Result<Self, Error>
    where
        F: FnMut() -> std::io::Result<S> + Send + 'static,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let endpoint = options.endpoint(IN_PROCESS_ADDRESS)?;
        let key = options.key.as_deref().map(bearer).transpose()?;
        let connector = StreamConnector(open);
        let channel = endpoint.connect_with_connector(connector).await;
        let channel = channel.map_err(|error| {
            let text = "Cannot connect to the server in this process".to_owned();
            let text = with_causes(text, std::error::Error::source(&error));
            Error::new(ErrorCode::Unavailable, text)
        })?;
        Ok(Client::over(channel, key, &options))
    }

    fn over(channel: Channel, key: Option<MetadataValue<Ascii>>, options: &Options) -> Self {
        Client {
            channel: InterceptedService::new(channel, Bearer(key)),
            timeout: options.timeout,
        }
    }

    /// Connects to the server that the environment variables name; see [`Options::address`] and
    /// [`Options::from_env`].
    pub async fn from_env() -> Result<Self, Error> {
        Client::connect(&Options::address(), Options::from_env()).await
    }

    pub(crate) fn models_service(&self) -> ModelsClient<AuthChannel> {
        ModelsClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn sessions_service(&self) -> SessionsClient<AuthChannel> {
        SessionsClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn white_box_service(&self) -> WhiteBoxClient<AuthChannel> {
        WhiteBoxClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    fn server_service(&self) -> ServerClient<AuthChannel> {
        ServerClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Waits for a reply, up to the timeout of the options.
    pub(crate) async fn one<T>(
        &self,
        asked: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let answer = match self.timeout {
            None => asked.await,
            Some(limit) => match tokio::time::timeout(limit, asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    let text = format!("The server did not reply within {} s", limit.as_secs_f64());
                    return Err(Error::new(ErrorCode::Timeout, text));
                }
            },
        };
        Ok(answer?.into_inner())
    }

    /// Returns the server's version, device and limits.
    pub async fn capabilities(&self) -> Result<v1::CapabilitiesReply, Error> {
        let asked = v1::CapabilitiesRequest {};
        self.one(self.server_service().capabilities(asked)).await
    }

    /// Streams live statistics of the server at an interval.
    pub async fn watch(&self, every: Duration) -> Result<StatusStream, Error> {
        let every_s = every.as_secs_f64();
        let asked = v1::WatchRequest { every_s };
        let stream = self.one(self.server_service().watch(asked)).await?;
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
        self.one(self.server_service().timeline(asked)).await
    }

    /// Handle of a model by its name; the empty name means the server's default model. Sends no request.
    pub fn model(&self, name: impl Into<String>) -> ModelHandle {
        ModelHandle::new(self.clone(), name.into())
    }

    /// Lists all models, loaded or not.
    pub async fn models(&self) -> Result<Vec<v1::Model>, Error> {
        let asked = v1::ListModelsRequest {};
        Ok(self.one(self.models_service().list(asked)).await?.models)
    }

    /// Registers and loads a model, and reports the progress.
    pub async fn register(
        &self,
        model: Register,
        mut progress: impl FnMut(v1::LoadProgress),
    ) -> Result<v1::Model, Error> {
        let mut events = self.models_service().register(model.0).await?.into_inner();
        while let Some(event) = events.message().await? {
            match event.what {
                Some(register_event::What::Loading(loading)) => progress(loading),
                Some(register_event::What::Ready(model)) => return Ok(model),
                None => {}
            }
        }
        let text = "The connection to the server ended before the model was loaded";
        Err(Error::new(ErrorCode::Unavailable, text))
    }

    /// Plans the memory of a model without loading it.
    pub async fn plan(
        &self,
        reference: impl Into<String>,
        limits: v1::ModelLimits,
    ) -> Result<v1::PlanReply, Error> {
        let asked = v1::PlanRequest {
            reference: reference.into(),
            limits: Some(limits),
        };
        self.one(self.models_service().plan(asked)).await
    }

    /// Pushes a model's files that the server does not have. Calling it again resumes an interrupted push.
    pub async fn push(
        &self,
        folder: &Path,
        progress: impl FnMut(PushProgress),
    ) -> Result<Push, Error> {
        crate::push::push(self, folder, progress).await
    }

    /// Handle of a session by its name. Sends no request.
    pub fn session(&self, name: impl Into<String>) -> SessionHandle {
        SessionHandle::new(self.clone(), name.into())
    }

    /// Lists the caller's sessions, of one model or of all.
    pub async fn sessions(&self, model: Option<&str>) -> Result<Vec<v1::Session>, Error> {
        let model = model.unwrap_or_default().to_owned();
        let asked = v1::ListSessionsRequest { model };
        Ok(self
            .one(self.sessions_service().list(asked))
            .await?
            .sessions)
    }
}

fn bearer(key: &str) -> Result<MetadataValue<Ascii>, Error> {
    let mut value: MetadataValue<Ascii> = format!("Bearer {key}").parse().map_err(|_| {
        let text = "The API key contains characters that are not allowed in an HTTP header";
        Error::new(ErrorCode::Local, text)
    })?;
    value.set_sensitive(true);
    Ok(value)
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
                "The server ended the stream of statistics",
            )
        };
        self.0.message().await?.ok_or_else(gone)
    }
}
