//! Responses of the hub: numbers in the headers, and the meaning of error statuses.

use std::time::Duration;

use ureq::Body;
use ureq::http::Response;

use super::request::Pull;
use super::retry::FetchFailure;
use crate::error::HubError;

/// Response after all redirects.
pub(super) struct HubResponse {
    /// URL of the server that responded, without its query.
    pub url: String,
    /// Whether the hub responded, rather than a host that it redirects to.
    from_hub: bool,
    response: Response<Body>,
}

impl HubResponse {
    pub(super) fn new(url: String, from_hub: bool, response: Response<Body>) -> Self {
        Self {
            url,
            from_hub,
            response,
        }
    }

    pub(super) fn status(&self) -> u16 {
        self.response.status().as_u16()
    }

    pub(super) fn body(&mut self) -> &mut Body {
        self.response.body_mut()
    }

    /// Returns the offset of the body in the file.
    pub(super) fn range_start(&self) -> Option<u64> {
        let range = self.header("content-range")?.strip_prefix("bytes ")?;
        range.split_once('-')?.0.trim().parse().ok()
    }

    /// Returns the size of the whole file.
    pub(super) fn total(&self) -> Option<u64> {
        match self.status() {
            200 => self.header("content-length")?.parse().ok(),
            _ => self
                .header("content-range")?
                .rsplit_once('/')?
                .1
                .parse()
                .ok(),
        }
    }

    /// Returns the failure that an error status means, for the listing or for a file.
    pub(super) fn failure(&self, request: &Pull, file: Option<&str>) -> FetchFailure {
        let status = self.status();
        let (id, endpoint) = (request.id.to_string(), request.base().to_owned());
        let code = self.header("x-error-code").unwrap_or_default();
        match status {
            408 | 500.. => FetchFailure::transient(self.unexpected()),
            429 => FetchFailure::Transient {
                error: HubError::RateLimited { endpoint },
                after: self.retry_after(),
                advanced: false,
            },
            // A signed link has expired; the next request gets a new link.
            403 if !self.from_hub => FetchFailure::transient(self.unexpected()),
            _ if !self.from_hub => self.unexpected().into(),
            401 | 403 if code == "GatedRepo" => HubError::Gated { id, endpoint }.into(),
            401 if request.token.is_some() => HubError::TokenRefused { id, endpoint }.into(),
            401 => HubError::TokenNeeded { id, endpoint }.into(),
            403 => HubError::Gated { id, endpoint }.into(),
            404 => self.not_found(request, file, code).into(),
            _ => self.unexpected().into(),
        }
    }

    fn not_found(&self, request: &Pull, file: Option<&str>, code: &str) -> HubError {
        let (id, endpoint) = (request.id.to_string(), request.base().to_owned());
        match file {
            Some(file) => HubError::NoSuchFile {
                id,
                file: file.to_owned(),
                endpoint,
            },
            None if code == "RevisionNotFound" => HubError::NoSuchRevision {
                id,
                revision: request.revision.clone(),
                endpoint,
            },
            None => HubError::NoSuchModel { id, endpoint },
        }
    }

    fn unexpected(&self) -> HubError {
        HubError::Status {
            url: self.url.clone(),
            status: self.status(),
        }
    }

    /// Returns the delay that the server requests. The hub gives seconds; this function ignores a
    /// date.
    fn retry_after(&self) -> Option<Duration> {
        let seconds = self.header("retry-after")?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.response.headers().get(name)?.to_str().ok()
    }
}
