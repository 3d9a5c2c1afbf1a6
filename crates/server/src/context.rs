//! Context of one request: its id, its sender, its deadline, and the figures of its line in the access log.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use djinn_wire::ErrorCode;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Id of the request that the current task serves.
    static REQUEST_ID: String;
}

/// Runs a future as part of the request with this id, so that its errors can name the request.
pub async fn in_request<F: Future>(id: &str, future: F) -> F::Output {
    REQUEST_ID.scope(id.to_owned(), future).await
}

/// Id of the request that the current task serves, if any.
pub fn current_request_id() -> Option<String> {
    REQUEST_ID.try_with(Clone::clone).ok()
}

/// Context of a request, from its arrival to the last byte of its answer.
pub struct RequestContext {
    /// Id of the request: the client's `x-request-id`, or a new one.
    pub id: String,
    /// Address of the client; `None` for a client in this process.
    pub peer: Option<SocketAddr>,
    /// Time at which the request arrived.
    pub started: Instant,
    /// Time at which the server gives the request up.
    pub deadline: Instant,
    /// Cancelled when the server closes its connections.
    pub closing: CancellationToken,
    model: OnceLock<String>,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    /// Microseconds from the arrival to the first token, plus one; 0 before it.
    first_token: AtomicU64,
    failure: Mutex<Option<ErrorCode>>,
}

/// Figures of a request that has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFigures {
    /// Tokens of the prompts.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generated_tokens: u64,
    /// Prompt tokens that the prefix cache had.
    pub cached_tokens: u64,
    /// Time from the arrival to the first token, if there was one.
    pub first_token: Option<Duration>,
}

impl RequestContext {
    /// Creates the context of a request that arrives now and may take `time`.
    pub fn new(
        id: String,
        peer: Option<SocketAddr>,
        time: Duration,
        closing: CancellationToken,
    ) -> Arc<Self> {
        let started = Instant::now();
        Arc::new(RequestContext {
            id,
            peer,
            started,
            deadline: started.checked_add(time).unwrap_or(started),
            closing,
            model: OnceLock::new(),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            first_token: AtomicU64::new(0),
            failure: Mutex::default(),
        })
    }

    /// Records the model that the request uses.
    pub fn set_model(&self, name: &str) {
        self.model.get_or_init(|| name.to_owned());
    }

    /// Model that the request uses; empty if none.
    pub fn model(&self) -> &str {
        self.model.get().map_or("", String::as_str)
    }

    /// Counts tokens of a prompt.
    pub fn add_prompt_tokens(&self, count: usize) {
        self.prompt_tokens
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts prompt tokens that the prefix cache had.
    pub fn add_cached_tokens(&self, count: usize) {
        self.cached_tokens
            .fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts a generated token.
    pub fn add_token(&self) {
        if self.generated_tokens.fetch_add(1, Ordering::Relaxed) == 0 {
            let since = self.started.elapsed().as_micros() as u64 + 1;
            self.first_token.store(since, Ordering::Relaxed);
        }
    }

    /// Records an error that ends the answer after its headers were sent.
    pub fn fail(&self, code: ErrorCode) {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(code);
    }

    /// Error that ended the answer after its headers were sent.
    pub fn failure(&self) -> Option<ErrorCode> {
        *self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Figures of the request so far.
    pub fn figures(&self) -> RequestFigures {
        let first = self.first_token.load(Ordering::Relaxed);
        RequestFigures {
            prompt_tokens: self.prompt_tokens.load(Ordering::Relaxed),
            generated_tokens: self.generated_tokens.load(Ordering::Relaxed),
            cached_tokens: self.cached_tokens.load(Ordering::Relaxed),
            first_token: (first > 0).then(|| Duration::from_micros(first - 1)),
        }
    }
}
