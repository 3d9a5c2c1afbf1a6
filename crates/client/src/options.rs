//! Where a server is, and how it is spoken to.

use std::{env, path::PathBuf, time::Duration};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use djinn_wire::ErrorCode;

use crate::error::Error;

/// Where a server is that nobody named.
const ADDRESS: &str = "127.0.0.1:5556";
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a silent connection is asked whether it is there, and how long it has to say so.
const ALIVE: Duration = Duration::from_secs(20);
/// What may be under way of one stream, and of all together: a tensor must not wait for its reader.
const WINDOW: u32 = 8 << 20;

/// How a server is spoken to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The key to come in with.
    pub key: Option<String>,
    /// Trust servers whose certificate this one signed (PEM), in place of the system's.
    pub ca: Option<PathBuf>,
    /// Come in with this certificate and its key (PEM), where the server wants one.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// How long one answer may take. What comes as a stream may take as long as it does.
    pub timeout: Option<Duration>,
}

impl Options {
    /// With the key of the variable `DJINN_KEY`, where there is one.
    pub fn from_env() -> Self {
        let key = env::var("DJINN_KEY").ok().filter(|key| !key.is_empty());
        Options {
            key,
            ..Options::default()
        }
    }

    /// The address that the environment names: `DJINN_SERVER`, then `GENIE_SERVER_ADDRESS`, then this
    /// machine's own at the usual port.
    pub fn address() -> String {
        let said = |name| env::var(name).ok().filter(|address| !address.is_empty());
        let named = said("DJINN_SERVER").or_else(|| said("GENIE_SERVER_ADDRESS"));
        named.unwrap_or_else(|| ADDRESS.to_owned())
    }

    /// The way to an address.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let uri = self.uri(address);
        let wrong = || {
            let text = format!("'{address}' is no address: HOST:PORT, or https://HOST:PORT");
            Error::new(ErrorCode::Local, text)
        };
        let endpoint = Endpoint::from_shared(uri.clone()).map_err(|_| wrong())?;
        if endpoint.uri().host().is_none_or(str::is_empty) || endpoint.uri().path().len() > 1 {
            return Err(wrong());
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .http2_keep_alive_interval(ALIVE)
            .keep_alive_timeout(ALIVE);
        if !uri.starts_with("https://") {
            return Ok(endpoint);
        }
        let tls = endpoint.tls_config(self.tls()?);
        tls.map_err(|error| Error::new(ErrorCode::Local, format!("{address}: {error}")))
    }

    /// An address with how it is spoken to: in the clear, unless it says otherwise or a certificate
    /// is named.
    fn uri(&self, address: &str) -> String {
        let scheme = match self.ca.is_some() || self.certificate.is_some() {
            true => "https",
            false => "http",
        };
        let (scheme, rest) = address
            .trim()
            .split_once("://")
            .unwrap_or((scheme, address));
        format!("{scheme}://{}", rest.trim_end_matches('/'))
    }

    fn tls(&self) -> Result<ClientTlsConfig, Error> {
        let read = |path: &PathBuf| std::fs::read(path).map_err(|error| Error::file(path, &error));
        let mut tls = ClientTlsConfig::new();
        tls = match &self.ca {
            Some(path) => tls.ca_certificate(Certificate::from_pem(read(path)?)),
            None => tls.with_native_roots(),
        };
        if let Some((certificate, key)) = &self.certificate {
            tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
        }
        Ok(tls)
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn addresses() {
        let plain = Options::default();
        let trusting = Options {
            ca: Some("ca.pem".into()),
            ..Options::default()
        };
        let check = |options: &Options, address: &str, expect: &str| {
            assert_eq!(options.uri(address), expect, "{address}");
        };
        check(&plain, "localhost:5556", "http://localhost:5556");
        check(&plain, "http://[::1]:80/", "http://[::1]:80");
        check(&plain, "https://djinn.example", "https://djinn.example");
        check(&trusting, "djinn.example:443", "https://djinn.example:443");
        for wrong in ["", "a b", "http://", "http://a/path", ":::"] {
            assert!(plain.endpoint(wrong).is_err(), "{wrong}");
        }
    }
}
