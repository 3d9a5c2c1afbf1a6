//! What a client is told that did not get what it asked for: one error, in the words of gRPC, of HTTP and
//! of metrics.

use std::time::Duration;

use djinn_engine::EngineError;
use djinn_hub::HubError;
use djinn_model::ModelError;
use djinn_weights::WeightsError;
use djinn_wire::TensorError;
use tonic::Code;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The engine refused, or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A checkpoint that cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A model that is not at hand.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A tensor that lies.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// What was asked for makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// It is known, and not done here.
    #[error("{0}")]
    Unsupported(String),
    /// No key, or one that nobody has.
    #[error("a key is needed: send 'authorization: Bearer KEY' with one that this server knows")]
    Unauthenticated,
    /// A key that does not open this.
    #[error("{0}")]
    Forbidden(String),
    /// Nothing of that name.
    #[error("{0}")]
    NotFound(String),
    /// Not as things stand.
    #[error("{0}")]
    Conflict(String),
    /// More than is taken.
    #[error("{0}")]
    TooLarge(String),
    /// An owner that asks too often.
    #[error("too many requests: try again in {} s", .retry.as_secs_f64().ceil())]
    Rate {
        /// When the next one is taken.
        retry: Duration,
    },
    /// As much is under way as may be.
    #[error("{0}")]
    Busy(String),
    /// It took too long.
    #[error("{0}")]
    Timeout(String),
    /// The server goes down, or the model did.
    #[error("{0}")]
    Unavailable(String),
    /// Something broke.
    #[error("{0}")]
    Internal(String),
}

/// What kind of error it is: whose fault, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request has to be another.
    Invalid,
    /// Known, and not done here.
    Unsupported,
    /// A key is needed.
    Unauthenticated,
    /// Another key is needed.
    Forbidden,
    /// Nothing of that name.
    NotFound,
    /// Not as things stand.
    Conflict,
    /// Too much at once.
    TooLarge,
    /// Too much for now.
    Limited,
    /// Too long.
    Timeout,
    /// Later, or elsewhere.
    Unavailable,
    /// The server's fault.
    Internal,
}

impl Kind {
    /// As metrics call it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Invalid => "invalid",
            Kind::Unsupported => "unsupported",
            Kind::Unauthenticated => "unauthenticated",
            Kind::Forbidden => "forbidden",
            Kind::NotFound => "not-found",
            Kind::Conflict => "conflict",
            Kind::TooLarge => "too-large",
            Kind::Limited => "limited",
            Kind::Timeout => "timeout",
            Kind::Unavailable => "unavailable",
            Kind::Internal => "internal",
        }
    }

    /// As gRPC does.
    pub fn code(self) -> Code {
        match self {
            Kind::Invalid => Code::InvalidArgument,
            Kind::Unsupported => Code::Unimplemented,
            Kind::Unauthenticated => Code::Unauthenticated,
            Kind::Forbidden => Code::PermissionDenied,
            Kind::NotFound => Code::NotFound,
            Kind::Conflict => Code::FailedPrecondition,
            Kind::TooLarge => Code::OutOfRange,
            Kind::Limited => Code::ResourceExhausted,
            Kind::Timeout => Code::DeadlineExceeded,
            Kind::Unavailable => Code::Unavailable,
            Kind::Internal => Code::Internal,
        }
    }

    /// As HTTP does.
    pub fn status(self) -> u16 {
        match self {
            Kind::Invalid | Kind::Unsupported => 400,
            Kind::Unauthenticated => 401,
            Kind::Forbidden => 403,
            Kind::NotFound => 404,
            Kind::Conflict => 409,
            Kind::TooLarge => 413,
            Kind::Limited => 429,
            Kind::Internal => 500,
            Kind::Unavailable => 503,
            Kind::Timeout => 504,
        }
    }
}

impl ServeError {
    /// What kind of error it is.
    pub fn kind(&self) -> Kind {
        match self {
            ServeError::Engine(error) => kind_of(error),
            ServeError::Model(_) | ServeError::Tensor(_) | ServeError::Invalid(_) => Kind::Invalid,
            ServeError::Hub(_) | ServeError::NotFound(_) => Kind::NotFound,
            ServeError::Unsupported(_) => Kind::Unsupported,
            ServeError::Unauthenticated => Kind::Unauthenticated,
            ServeError::Forbidden(_) => Kind::Forbidden,
            ServeError::Conflict(_) => Kind::Conflict,
            ServeError::TooLarge(_) => Kind::TooLarge,
            ServeError::Rate { .. } | ServeError::Busy(_) => Kind::Limited,
            ServeError::Timeout(_) => Kind::Timeout,
            ServeError::Unavailable(_) => Kind::Unavailable,
            ServeError::Internal(_) => Kind::Internal,
        }
    }
}

fn kind_of(error: &EngineError) -> Kind {
    use EngineError as E;
    match error {
        E::Hook(_)
        | E::Edit { .. }
        | E::Parse(_)
        | E::Capture { .. }
        | E::NoStop(_)
        | E::EmptyPrompt
        | E::UnknownToken { .. }
        | E::PromptTooLong { .. }
        | E::Sampling { .. }
        | E::NoTokenizer { .. }
        | E::NotRead(_)
        | E::Weights(WeightsError::WorkerCount { .. })
        | E::File { .. } => Kind::Invalid,
        E::NoSession(_) => Kind::NotFound,
        E::NotKept(_)
        | E::NotThere(_)
        | E::NothingToRun(_)
        | E::State { .. }
        | E::OtherModel { .. }
        | E::Plan(_)
        | E::HostBudget { .. }
        | E::HostMemory { .. }
        | E::SpillNeedsHost { .. } => Kind::Conflict,
        E::Limit { what, .. } if *what != "sessions" => Kind::Invalid,
        E::Quota { .. }
        | E::Limit { .. }
        | E::OutOfPages(_)
        | E::NoRoom(_)
        | E::NoRoomToFork(_) => Kind::Limited,
        E::Device(_)
        | E::Spill(_)
        | E::Wal(_)
        | E::NotWritten(_)
        | E::Workers { .. }
        | E::Weights(_) => Kind::Internal,
    }
}

impl From<ServeError> for tonic::Status {
    fn from(error: ServeError) -> Self {
        let kind = error.kind();
        let mut status = tonic::Status::new(kind.code(), error.to_string());
        if let ServeError::Rate { retry } = error {
            let seconds = retry.as_secs_f64().ceil().to_string();
            if let Ok(seconds) = seconds.parse() {
                status.metadata_mut().insert("retry-after", seconds);
            }
        }
        status
    }
}
