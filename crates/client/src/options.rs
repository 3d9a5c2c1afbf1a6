//! Connection options: address, API key, TLS, timeouts.

use std::{env, path::PathBuf, time::Duration};

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use djinn_wire::ErrorCode;

use crate::error::Error;

/// Default address of a server.
const ADDRESS_DEFAULT: &str = "127.0.0.1:5556";
/// Timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of keep-alive pings on a silent connection, and the time that the server has to answer.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
/// HTTP/2 flow-control window of one stream; a connection has twice as much. Large enough for tensors.
const WINDOW: u32 = 8 << 20;

/// Connection options.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// API key.
    pub key: Option<String>,
    /// CA certificate (PEM) that signs the server's certificate. Default: the system's CAs.
    pub ca: Option<PathBuf>,
    /// Client certificate and private key (PEM), for servers that require one.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Timeout of calls with one reply; streams have none.
    pub timeout: Option<Duration>,
}

impl Options {
    /// Options with the API key of the environment variable `DJINN_KEY`, if it is set.
    pub fn from_env() -> Self {
        let key = env::var("DJINN_KEY").ok().filter(|key| !key.is_empty());
        Options {
            key,
            ..Options::default()
        }
    }

    /// Address of the environment variable `DJINN_SERVER` or `GENIE_SERVER_ADDRESS`. Default:
    /// `127.0.0.1:5556`.
    pub fn address() -> String {
        let variable = |name| env::var(name).ok().filter(|address| !address.is_empty());
        let named = variable("DJINN_SERVER").or_else(|| variable("GENIE_SERVER_ADDRESS"));
        named.unwrap_or_else(|| ADDRESS_DEFAULT.to_owned())
    }

    /// Endpoint of an address.
    pub(crate) fn endpoint(&self, address: &str) -> Result<Endpoint, Error> {
        let uri = self.uri(address);
        let wrong = || {
            let text =
                format!("'{address}' is not a valid address: use HOST:PORT or https://HOST:PORT");
            Error::new(ErrorCode::Local, text)
        };
        let endpoint = Endpoint::from_shared(uri.clone()).map_err(|_| wrong())?;
        if endpoint.uri().host().is_none_or(str::is_empty) || endpoint.uri().path().len() > 1 {
            return Err(wrong());
        }
        let endpoint = endpoint
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(2 * WINDOW)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE);
        if !uri.starts_with("https://") {
            return Ok(endpoint);
        }
        let tls = endpoint.tls_config(self.tls()?);
        tls.map_err(|error| Error::new(ErrorCode::Local, format!("{address}: {error}")))
    }

    /// URI of an address: `https` if the address begins with it or a certificate is set, `http`
    /// otherwise.
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
    fn addresses_are_completed_and_checked() {
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
