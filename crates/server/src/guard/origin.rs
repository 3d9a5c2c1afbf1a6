//! Protection of servers without keys from web pages.
//!
//! A web page in a browser on the same machine can send requests to a loopback address. A server without
//! keys cannot tell such a page from the user, except by the headers that browsers set: `Host` names the
//! server as the page knows it, and `Origin` names the page. Other programs send a loopback host and no
//! origin. Requests that are not JSON need no preflight from a browser, so the content type is checked too.

use std::net::IpAddr;

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Version, header},
};

use crate::ServeError;

/// Rules for the headers of a request.
pub struct OriginRules {
    /// Whether the host must be a loopback name: the server has no keys and listens on loopback only.
    pub loopback_only: bool,
    /// Whether the server has keys, which a web page does not know.
    pub has_keys: bool,
    /// Origins that the operator allows; `*` allows all.
    pub allowed: Vec<String>,
}

impl OriginRules {
    /// Refuses a request that a foreign web page may have sent.
    pub fn check(&self, request: &Request) -> Result<(), ServeError> {
        let headers = request.headers();
        if is_grpc(headers) && request.version() != Version::HTTP_2 {
            let error = "gRPC needs HTTP/2";
            return Err(ServeError::ContentType(error.to_owned()));
        }
        if self.loopback_only {
            let authority = request.uri().host();
            let host = authority.or_else(|| text(headers, &header::HOST));
            if !host.is_none_or(is_loopback) {
                return Err(ServeError::Forbidden(
                    "This server has no keys and answers to loopback names only, such as localhost; \
                     start it with --keys to use other names"
                        .to_owned(),
                ));
            }
        }
        if let Some(origin) = text(headers, &header::ORIGIN)
            && !self.has_keys
            && !self.is_allowed(origin)
            && !(self.loopback_only && origin_host(origin).is_some_and(is_loopback))
        {
            return Err(ServeError::Forbidden(
                "Web pages of this origin may not use this server; allow it with --cors-origin"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// Refuses a body that is not JSON where the API expects JSON.
    pub fn check_json(&self, request: &Request) -> Result<(), ServeError> {
        let headers = request.headers();
        let takes_json = request.method() == Method::POST && !is_grpc(headers);
        let kind = text(headers, &header::CONTENT_TYPE).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        match takes_json && !kind.eq_ignore_ascii_case("application/json") {
            true => Err(ServeError::ContentType(
                "Send the request as JSON, with the header 'content-type: application/json'"
                    .to_owned(),
            )),
            false => Ok(()),
        }
    }

    /// Whether the operator allows an origin.
    pub fn is_allowed(&self, origin: &str) -> bool {
        let is_same = |allowed: &String| allowed == "*" || allowed.eq_ignore_ascii_case(origin);
        self.allowed.iter().any(is_same)
    }

    /// Headers that let a browser show the answer to a page of an allowed origin.
    pub fn cors_headers(&self, headers: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
        let Some(origin) = headers.get(header::ORIGIN) else {
            return Vec::new();
        };
        if !origin.to_str().is_ok_and(|origin| self.is_allowed(origin)) {
            return Vec::new();
        }
        let fixed = HeaderValue::from_static;
        vec![
            (header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()),
            (
                header::ACCESS_CONTROL_ALLOW_METHODS,
                fixed("GET, POST, OPTIONS"),
            ),
            (
                header::ACCESS_CONTROL_ALLOW_HEADERS,
                fixed("authorization, content-type, x-request-id"),
            ),
            (
                header::ACCESS_CONTROL_EXPOSE_HEADERS,
                fixed("x-request-id, retry-after"),
            ),
            (header::ACCESS_CONTROL_MAX_AGE, fixed("600")),
            (header::VARY, fixed("origin")),
        ]
    }
}

/// Whether a request is a gRPC call.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

/// Host of an origin such as `http://localhost:3000`.
fn origin_host(origin: &str) -> Option<&str> {
    origin.split_once("://").map(|(_, host)| host)
}

/// Whether a host, with or without a port, is a loopback name or address.
fn is_loopback(host: &str) -> bool {
    let without_port = match host.rsplit_once(':') {
        // An address of version 6 contains colons; with a port it has brackets.
        Some((name, port)) if !name.contains(':') || name.ends_with(']') => {
            if port.chars().all(|c| c.is_ascii_digit()) {
                name
            } else {
                host
            }
        }
        _ => host,
    };
    let bare = without_port.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::{body::Body, extract::Request};

    use super::{OriginRules, is_loopback};

    #[test]
    fn loopback_hosts() {
        for host in [
            "localhost",
            "LOCALHOST:5556",
            "127.0.0.1:1",
            "127.1.2.3",
            "[::1]:80",
            "::1",
        ] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1:5556",
            "",
            "127.0.0.1.nip.io",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    fn request(headers: &[(&str, &str)]) -> Request {
        let mut request = Request::post("/v1/completions");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).unwrap()
    }

    #[test]
    fn web_pages_cannot_use_a_server_without_keys() {
        let rules = |has_keys: bool| OriginRules {
            loopback_only: !has_keys,
            has_keys,
            allowed: vec!["https://good.example".to_owned()],
        };
        let open = |headers: &[(&str, &str)]| rules(false).check(&request(headers)).is_ok();
        assert!(open(&[("host", "127.0.0.1:5556")]));
        assert!(open(&[
            ("host", "localhost"),
            ("origin", "http://localhost:3000")
        ]));
        assert!(open(&[
            ("host", "localhost"),
            ("origin", "https://good.example")
        ]));
        assert!(!open(&[("host", "evil.example")]));
        assert!(!open(&[
            ("host", "localhost"),
            ("origin", "https://evil.example")
        ]));
        assert!(!open(&[("host", "localhost"), ("origin", "null")]));
        let keyed = request(&[
            ("host", "djinn.example"),
            ("origin", "https://evil.example"),
        ]);
        assert!(
            rules(true).check(&keyed).is_ok(),
            "a page does not know the key"
        );
    }

    #[test]
    fn bodies_must_be_json() {
        let rules = OriginRules {
            loopback_only: true,
            has_keys: false,
            allowed: Vec::new(),
        };
        let json = |kind: &str| {
            rules
                .check_json(&request(&[("content-type", kind)]))
                .is_ok()
        };
        assert!(json("application/json") && json("Application/JSON; charset=utf-8"));
        assert!(!json("text/plain") && !json("application/x-www-form-urlencoded") && !json(""));
    }

    #[test]
    fn grpc_needs_http_2() {
        let rules = OriginRules {
            loopback_only: false,
            has_keys: false,
            allowed: Vec::new(),
        };
        let grpc = request(&[("content-type", "application/grpc")]);
        assert!(rules.check(&grpc).is_err());
    }
}
