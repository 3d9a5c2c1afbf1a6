"""Exceptions of the client. Their messages come from the server; ``code`` is machine-readable.

>>> import djinn
>>> model = djinn.connect().model()
>>> model.hooks("blocks.0.hook_resid_mid")[0].shape
(256,)
>>> model.run_with_cache("Once", "blocks.99.hook_resid_post")
Traceback (most recent call last):
    ...
djinn.errors.Refused: ...
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import grpc


class DjinnError(Exception):
    """Base class of all errors of a server or of the connection to it."""

    code: str = "internal"
    """Machine-readable code, for example ``not-found``; see the gRPC reference for all codes."""


class NotFound(DjinnError, LookupError):
    """No model, session or hook of that name exists for this API key."""


class Refused(DjinnError, ValueError):
    """The request is invalid, for example an unknown hook, a wrong shape or NaN."""


class WrongState(DjinnError):
    """The session or model is in the wrong state, for example a running session cannot be resumed."""


class QuotaExceeded(DjinnError):
    """A rate limit, a quota or a full queue rejected the request."""


class Unauthenticated(DjinnError, PermissionError):
    """The server requires a valid API key."""


class Forbidden(DjinnError, PermissionError):
    """The API key lacks the permission for this operation."""


class AlreadyExists(DjinnError):
    """Another object has the same name."""


class Unavailable(DjinnError, ConnectionError):
    """The server cannot be reached or is shutting down."""


class TimedOut(DjinnError, TimeoutError):
    """The operation exceeded its time limit."""


class Cancelled(DjinnError):
    """The client cancelled the call."""


class Unsupported(DjinnError):
    """The server does not support this operation."""


class ServerError(DjinnError):
    """The server failed, or a session ended with an error."""


_CODE_METADATA = "djinn-error-code"

_BY_CODE: dict[grpc.StatusCode, type[DjinnError]] = {
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: Refused,
    grpc.StatusCode.OUT_OF_RANGE: Refused,
    grpc.StatusCode.FAILED_PRECONDITION: WrongState,
    grpc.StatusCode.ABORTED: WrongState,
    grpc.StatusCode.RESOURCE_EXHAUSTED: QuotaExceeded,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExists,
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: TimedOut,
    grpc.StatusCode.CANCELLED: Cancelled,
    grpc.StatusCode.UNIMPLEMENTED: Unsupported,
}


def from_status(error: grpc.RpcError, address: str) -> DjinnError:
    """Creates the exception of a failed call."""
    code: grpc.StatusCode = error.code()
    message = error.details() or code.name.lower().replace("_", " ")
    kind = _BY_CODE.get(code, ServerError)
    if kind is Unavailable:
        message = f"no answer from {address}: {message} (is `djinn serve` running there?)"
    raised = kind(message)
    raised.code = _sent_code(error) or code.name.lower().replace("_", "-")
    return raised


def _sent_code(error: grpc.RpcError) -> str | None:
    """Returns the server's own code from the metadata of a failed call."""
    sent = getattr(error, "trailing_metadata", lambda: None)() or ()
    for name, value in sent:
        if name == _CODE_METADATA:
            return str(value)
    return None


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Translates errors of gRPC calls to the exceptions of this module."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_status(error, address) from None
