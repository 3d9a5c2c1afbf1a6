//! Error codes: the machine-readable half of every error that a server returns.

use tonic::Code;

/// Name of the gRPC metadata entry that carries [`ErrorCode::name`] with an error status.
pub const ERROR_CODE_METADATA: &str = "djinn-error-code";

/// Class of an error. The class tells which side can fix the error, and whether a retry can
/// succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The request is malformed or impossible; change the request.
    Invalid,
    /// The request is valid, but this server does not implement the requested feature.
    Unsupported,
    /// The request has no API key, or an API key that the server does not know.
    Unauthenticated,
    /// The API key lacks the permission for this operation.
    Forbidden,
    /// No model, session, file or path of that name exists for this API key.
    NotFound,
    /// The operation conflicts with the current state of the session or the model.
    Conflict,
    /// The request exceeds a size limit of the server; send less.
    TooLarge,
    /// A rate limit, a quota or a full queue rejected the request; retry later.
    Limited,
    /// The operation did not finish before its deadline.
    Timeout,
    /// Another client follows the session now, or the session was closed.
    Replaced,
    /// The server or the model is starting, shutting down or unreachable; retry later.
    Unavailable,
    /// The server failed; its log has the details.
    Internal,
    /// A file, an address or a certificate on the client's machine is wrong. A client raises this code
    /// itself; no server sends it.
    Local,
}

impl ErrorCode {
    /// All codes that a server can send.
    pub const SENT: [ErrorCode; 12] = [
        ErrorCode::Invalid,
        ErrorCode::Unsupported,
        ErrorCode::Unauthenticated,
        ErrorCode::Forbidden,
        ErrorCode::NotFound,
        ErrorCode::Conflict,
        ErrorCode::TooLarge,
        ErrorCode::Limited,
        ErrorCode::Timeout,
        ErrorCode::Replaced,
        ErrorCode::Unavailable,
        ErrorCode::Internal,
    ];

    /// Name of the code in gRPC metadata, metrics and traces, for example `not-found`.
    pub fn name(self) -> &'static str {
        match self {
            ErrorCode::Invalid => "invalid",
            ErrorCode::Unsupported => "unsupported",
            ErrorCode::Unauthenticated => "unauthenticated",
            ErrorCode::Forbidden => "forbidden",
            ErrorCode::NotFound => "not-found",
            ErrorCode::Conflict => "conflict",
            ErrorCode::TooLarge => "too-large",
            ErrorCode::Limited => "limited",
            ErrorCode::Timeout => "timeout",
            ErrorCode::Replaced => "replaced",
            ErrorCode::Unavailable => "unavailable",
            ErrorCode::Internal => "internal",
            ErrorCode::Local => "local",
        }
    }

    /// Code that [`ErrorCode::name`] names, if a server can send it.
    pub fn from_name(name: &str) -> Option<Self> {
        ErrorCode::SENT.into_iter().find(|code| code.name() == name)
    }

    /// gRPC status code that carries this error.
    pub fn grpc(self) -> Code {
        match self {
            ErrorCode::Invalid => Code::InvalidArgument,
            ErrorCode::Unsupported => Code::Unimplemented,
            ErrorCode::Unauthenticated => Code::Unauthenticated,
            ErrorCode::Forbidden => Code::PermissionDenied,
            ErrorCode::NotFound => Code::NotFound,
            ErrorCode::Conflict => Code::FailedPrecondition,
            ErrorCode::TooLarge => Code::OutOfRange,
            ErrorCode::Limited => Code::ResourceExhausted,
            ErrorCode::Timeout => Code::DeadlineExceeded,
            ErrorCode::Replaced => Code::Aborted,
            ErrorCode::Unavailable => Code::Unavailable,
            ErrorCode::Internal => Code::Internal,
            ErrorCode::Local => Code::Unknown,
        }
    }

    /// Code of an error that carries only a gRPC status code, as gRPC's own layers produce it.
    pub fn from_grpc(code: Code) -> Self {
        match code {
            Code::AlreadyExists => ErrorCode::Conflict,
            Code::Cancelled => ErrorCode::Unavailable,
            code => {
                let mut sent = ErrorCode::SENT.into_iter();
                sent.find(|known| known.grpc() == code)
                    .unwrap_or(ErrorCode::Internal)
            }
        }
    }

    /// HTTP status that carries this error.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorCode::Invalid | ErrorCode::Unsupported | ErrorCode::Local => 400,
            ErrorCode::Unauthenticated => 401,
            ErrorCode::Forbidden => 403,
            ErrorCode::NotFound => 404,
            ErrorCode::Conflict | ErrorCode::Replaced => 409,
            ErrorCode::TooLarge => 413,
            ErrorCode::Limited => 429,
            ErrorCode::Internal => 500,
            ErrorCode::Unavailable => 503,
            ErrorCode::Timeout => 504,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ErrorCode;

    #[test]
    fn every_code_survives_its_name_and_its_grpc_status() {
        for code in ErrorCode::SENT {
            assert_eq!(ErrorCode::from_name(code.name()), Some(code));
            assert_eq!(ErrorCode::from_grpc(code.grpc()), code);
        }
        assert_eq!(ErrorCode::from_name(ErrorCode::Local.name()), None);
    }
}
