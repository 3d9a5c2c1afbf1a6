//! HTTP client: GET requests with redirects. Only the hub receives the token.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::request::Pull;
use super::response::HubResponse;
use super::retry::FetchFailure;
use crate::error::{HubError, ResponseProblem};
use crate::token::HubToken;

const REDIRECTS_MAX: usize = 8;
const CONNECT_MAX: Duration = Duration::from_secs(20);
const HEADERS_MAX: Duration = Duration::from_secs(60);
/// Longest time without data before a connection is dropped and the file is continued on another.
const STALL_MAX: Duration = Duration::from_secs(45);

/// HTTP client with connections to one hub and to the hosts it redirects to.
pub(super) struct HubClient {
    agent: Agent,
    /// Scheme, host and port of the hub. Only this origin receives the token.
    origin: String,
    token: Option<HubToken>,
}

impl HubClient {
    pub(super) fn new(request: &Pull) -> Result<Self, HubError> {
        let origin = origin(&request.endpoint).ok_or_else(|| HubError::BadEndpoint {
            given: request.endpoint.clone(),
        })?;
        let mut config = Agent::config_builder()
            .user_agent(concat!("djinn/", env!("CARGO_PKG_VERSION")))
            // Ranges count bytes of the file, so compression must be off.
            .accept_encoding("identity")
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT_MAX))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(HEADERS_MAX))
            .timeout_per_read(Some(STALL_MAX));
        if is_loopback(origin) {
            config = config.proxy(None);
        }
        if let Some(path) = &request.certificates {
            let roots = TlsConfig::builder().root_certs(roots_from(path)?);
            config = config.tls_config(roots.build());
        }
        Ok(Self {
            agent: config.build().new_agent(),
            origin: origin.to_owned(),
            token: request.token.clone(),
        })
    }

    /// Requests `url`, starting at byte `from`, and follows redirects.
    pub(super) fn get(&self, url: &str, from: u64) -> Result<HubResponse, FetchFailure> {
        let mut url = url.to_owned();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.send(&url, from)?;
            match location(&response) {
                None => {
                    let from_hub = origin(&url) == Some(&self.origin);
                    return Ok(HubResponse::new(without_query(&url), from_hub, response));
                }
                Some(location) => url = follow(&url, &location)?,
            }
        }
        Err(bad_redirect(&url, ResponseProblem::TooManyRedirects).into())
    }

    fn send(&self, url: &str, from: u64) -> Result<Response<Body>, FetchFailure> {
        let mut call = self.agent.get(url);
        if let Some(token) = &self.token
            && origin(url) == Some(&self.origin)
        {
            call = call.header("authorization", token.header());
        }
        if from > 0 {
            call = call.header("range", format!("bytes={from}-"));
        }
        call.call().map_err(|error| request_failure(url, &error))
    }
}

/// Returns the origin of a URL, such as `https://host:port`. Origins are compared as text: the
/// token is not sent to another spelling of the same host.
fn origin(url: &str) -> Option<&str> {
    let scheme = ["https://", "http://"];
    let host_at = scheme.iter().find(|s| url.starts_with(**s))?.len();
    let host = url[host_at..].split(['/', '?', '#']).next()?;
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
    (!host.is_empty() && !url.contains(odd)).then(|| &url[..host_at + host.len()])
}

/// Returns whether an origin is on this machine, where no proxy is used.
fn is_loopback(origin: &str) -> bool {
    let host = origin.split_once("://").map_or(origin, |(_, host)| host);
    ["127.0.0.1", "localhost", "[::1]"]
        .iter()
        .any(|local| host == *local || host.starts_with(&format!("{local}:")))
}

fn location(response: &Response<Body>) -> Option<String> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.headers().get("location")?.to_str().ok()?;
    Some(location.to_owned())
}

/// Returns the target of a redirect. A redirect from https to http is an error, because small
/// files have no hash.
fn follow(url: &str, location: &str) -> Result<String, HubError> {
    let location = location.split('#').next().unwrap_or_default();
    let target = if location.starts_with("//") {
        let scheme = url.split("//").next().unwrap_or_default();
        format!("{scheme}{location}")
    } else if location.starts_with('/') {
        format!("{}{location}", origin(url).unwrap_or_default())
    } else {
        location.to_owned()
    };
    if origin(&target).is_none() {
        return Err(bad_redirect(url, ResponseProblem::InvalidRedirect));
    }
    if url.starts_with("https:") && target.starts_with("http:") {
        return Err(bad_redirect(url, ResponseProblem::InsecureRedirect));
    }
    Ok(target)
}

fn bad_redirect(url: &str, problem: ResponseProblem) -> HubError {
    HubError::BadResponse {
        url: without_query(url),
        problem,
    }
}

/// Returns a URL for messages. The query of a redirect is left out, because it is a signature.
fn without_query(url: &str) -> String {
    url.split('?').next().unwrap_or_default().to_owned()
}

/// Converts an error of a request.
fn request_failure(url: &str, error: &ureq::Error) -> FetchFailure {
    use ureq::Error;
    let url = without_query(url);
    let reason = match error {
        Error::Io(error) => error.to_string(),
        other => other.to_string(),
    };
    match error {
        Error::Rustls(_) | Error::Tls(_) => HubError::Untrusted { url, reason }.into(),
        // rustls reports an untrusted certificate in this form through the socket.
        Error::Io(error) if error.kind() == ErrorKind::InvalidData => {
            HubError::Untrusted { url, reason }.into()
        }
        Error::BadUri(_) | Error::Http(_) | Error::InvalidProxyUrl => {
            HubError::Network { url, reason }.into()
        }
        _ => FetchFailure::transient(HubError::Network { url, reason }),
    }
}

fn roots_from(path: &Path) -> Result<RootCerts, HubError> {
    let bad = |reason: String| HubError::BadCertificates {
        path: path.to_owned(),
        reason,
    };
    let text = fs::read(path).map_err(|error| bad(error.to_string()))?;
    let mut certificates = Vec::new();
    for item in parse_pem(&text) {
        if let PemItem::Certificate(certificate) = item.map_err(|e| bad(e.to_string()))? {
            certificates.push(certificate);
        }
    }
    if certificates.is_empty() {
        return Err(bad("the file has no certificates".to_owned()));
    }
    Ok(RootCerts::from(certificates))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        for (url, expect) in [
            ("https://hub.co/a/b?c", Some("https://hub.co")),
            ("http://127.0.0.1:80", Some("http://127.0.0.1:80")),
            ("https://hub.co?x=/", Some("https://hub.co")),
            ("https://hub.co@evil.co/x", Some("https://hub.co@evil.co")),
            ("https://hub.co\\@evil.co/x", None),
            ("https:///x", None),
            ("ftp://hub.co", None),
            ("hub.co", None),
            ("https://hub.co/a b", None),
        ] {
            assert_eq!(origin(url), expect, "{url}");
        }
    }

    #[test]
    fn redirects_must_be_urls_and_stay_on_https() {
        let from = "https://hub.co/a/b?c";
        for (location, expect) in [
            ("/x/y?z", Some("https://hub.co/x/y?z")),
            ("//cdn.co/x", Some("https://cdn.co/x")),
            ("https://cdn.co/x#y", Some("https://cdn.co/x")),
            ("http://cdn.co/x", None),
            ("x/y", None),
            ("", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(follow(from, location).ok().as_deref(), expect, "{location}");
        }
    }

    #[test]
    fn loopback_addresses_are_recognised() {
        for (origin, expect) in [
            ("http://127.0.0.1:8080", true),
            ("http://localhost", true),
            ("http://[::1]:80", true),
            ("http://localhost.evil.co", false),
            ("https://huggingface.co", false),
        ] {
            assert_eq!(is_loopback(origin), expect, "{origin}");
        }
    }

    #[test]
    fn files_without_certificates_are_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = roots_from(file.path()).unwrap_err();
        assert!(matches!(error, HubError::BadCertificates { .. }), "{error}");
        assert!(roots_from(Path::new("/no/such/bundle.pem")).is_err());
    }
}
