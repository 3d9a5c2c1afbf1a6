"""What can go wrong, by type. Each error says in the server's words what was asked and why not.

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
    """Whatever a server, or the way to it, answers that is not an answer."""


class NotFound(DjinnError, LookupError):
    """There is no model, session or hook of that name, or not for you."""


class Refused(DjinnError, ValueError):
    """What was asked makes no sense: an unknown hook, a wrong shape, numbers that are none."""


class WrongState(DjinnError):
    """Not now: a session that runs is not resumed, one that did not stop has no activation."""


class QuotaExceeded(DjinnError):
    """More than there is, or than you may have."""


class Unauthenticated(DjinnError, PermissionError):
    """The server wants a key, or another one."""


class Forbidden(DjinnError, PermissionError):
    """The key is good, but not for this."""


class AlreadyExists(DjinnError):
    """Something of that name is there, and it is something else."""


class Unavailable(DjinnError, ConnectionError):
    """No server there, or it is going away."""


class TimedOut(DjinnError, TimeoutError):
    """It took longer than it may."""


class Cancelled(DjinnError):
    """The call was given up."""


class Unsupported(DjinnError):
    """The server does not do that."""


class ServerError(DjinnError):
    """The server's own mistake, or a session that broke down."""


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
    """The error that a call's status stands for."""
    code: grpc.StatusCode = error.code()
    words = error.details() or code.name.lower().replace("_", " ")
    kind = _BY_CODE.get(code, ServerError)
    if kind is Unavailable:
        words = f"no answer from {address}: {words} (does `djinn serve` run there?)"
    return kind(words)


@contextmanager
def told(address: str) -> Iterator[None]:
    """Lets calls to a server fail with the errors of this module."""
    try:
        yield
    except grpc.RpcError as error:
        raise from_status(error, address) from None
