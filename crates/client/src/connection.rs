//! Connection to a server, over the network or inside the process.

use std::{
    future::{Future, Ready, ready},
    task::{Context, Poll},
    time::Duration,
};

use djinn_wire::ErrorCode;
use djinn_wire::v1::{
    models_client::ModelsClient, server_client::ServerClient, sessions_client::SessionsClient,
    white_box_client::WhiteBoxClient,
};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::{
    Request, Response, Status,
    codegen::{Service, http::Uri},
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::Channel,
};

use crate::{
    error::{Error, with_causes},
    options::Options,
};

/// Channel that adds the API key to every request.
pub type AuthChannel = InterceptedService<Channel, Bearer>;

/// Connection to a server. Clones share the channel, which reconnects by itself when the server returns.
#[derive(Clone, Debug)]
pub struct GrpcConnection {
    channel: AuthChannel,
    timeout: Option<Duration>,
}

/// Interceptor that adds the API key to every request.
#[derive(Clone)]
pub struct Bearer(Option<MetadataValue<Ascii>>);

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

/// Address in requests to a server in this process. No network connection uses it.
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

impl GrpcConnection {
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
        Ok(GrpcConnection::over(channel, key, &options))
    }

    /// Connects to a server in this process. `open` opens one byte stream to the server, for
    /// example with `djinn_server::InProcessConnector::connect`. The client calls `open` again
    /// when the connection is lost.
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
        Ok(GrpcConnection::over(channel, key, &options))
    }

    fn over(channel: Channel, key: Option<MetadataValue<Ascii>>, options: &Options) -> Self {
        GrpcConnection {
            channel: InterceptedService::new(channel, Bearer(key)),
            timeout: options.timeout,
        }
    }

    /// Client of the service `Models`.
    pub fn models_service(&self) -> ModelsClient<AuthChannel> {
        ModelsClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Client of the service `Sessions`.
    pub fn sessions_service(&self) -> SessionsClient<AuthChannel> {
        SessionsClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Client of the service `WhiteBox`.
    pub fn white_box_service(&self) -> WhiteBoxClient<AuthChannel> {
        WhiteBoxClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Client of the service `Server`.
    pub fn server_service(&self) -> ServerClient<AuthChannel> {
        ServerClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    /// Waits for a reply, up to the timeout of the options.
    pub async fn one<T>(
        &self,
        asked: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Error> {
        let answer = match self.timeout {
            None => asked.await,
            Some(limit) => match tokio::time::timeout(limit, asked).await {
                Ok(answer) => answer,
                Err(_) => {
                    let text = format!(
                        "The server did not reply within {} s; retry, or raise the timeout",
                        limit.as_secs_f64()
                    );
                    return Err(Error::new(ErrorCode::Timeout, text));
                }
            },
        };
        Ok(answer?.into_inner())
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
