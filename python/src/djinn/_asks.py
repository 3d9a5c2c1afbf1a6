"""Requests to a server, and how their replies are read. Independent of how calls are made.

An :class:`Ask` has one reply, a :class:`Gather` a stream of replies with one result. ``_turns`` has the
requests that run sessions. The synchronous client and the one for ``asyncio`` both use these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from djinn import _forms, _tensors, _wire
from djinn.errors import ServerError
from djinn.types import (
    Capabilities,
    Hook,
    Limits,
    ModelInfo,
    OnProgress,
    Plan,
    Progress,
    Sampling,
    SessionInfo,
    read,
)

if TYPE_CHECKING:
    from djinn._forms import Part, Positions
    from djinn._tensors import Array

T = TypeVar("T")


@dataclass(frozen=True)
class Ask(Generic[T]):
    """Request with one reply."""

    method: str
    request: Any
    read: Callable[[Any], T]


@dataclass(frozen=True)
class Gather(Generic[T]):
    """Request with a stream of replies and one result. ``take`` reads each reply and returns the result
    once it is complete."""

    method: str
    request: Any
    take: Callable[[Any], T | None]


def capabilities() -> Ask[Capabilities]:
    return Ask("Server.Capabilities", _wire.CapabilitiesRequest(), lambda m: read(Capabilities, m))


def models() -> Ask[list[ModelInfo]]:
    return Ask(
        "Models.List",
        _wire.ListModelsRequest(),
        lambda reply: [read(ModelInfo, model) for model in reply.models],
    )


def register(
    reference: str, name: str | None, limits: Limits, progress: OnProgress | None
) -> Gather[ModelInfo]:
    def take(event: Any) -> ModelInfo | None:
        if event.WhichOneof("what") == "ready":
            return read(ModelInfo, event.ready)
        if progress is not None:
            loading = event.loading
            progress(Progress("load", loading.loaded_bytes, loading.total_bytes))
        return None

    request = _wire.RegisterRequest(reference=reference, name=name, limits=_limits(limits))
    return Gather("Models.Register", request, take)


def plan(reference: str, limits: Limits) -> Ask[Plan]:
    request = _wire.PlanRequest(reference=reference, limits=_limits(limits))
    return Ask("Models.Plan", request, lambda reply: read(Plan, reply))


def unload(name: str, force: bool, forget: bool) -> Ask[None]:
    request = _wire.UnloadRequest(name=name, force=force, forget=forget)
    return Ask("Models.Unload", request, lambda _: None)


def offer(request: Any) -> Ask[Any]:
    return Ask("Models.Offer", request, lambda reply: reply)


def tokenize(model: str, text: Any, plain: bool) -> Ask[list[int]]:
    request = _wire.TokenizeRequest(model=model, plain=plain)
    if isinstance(text, str):
        request.text = text
    else:
        request.chat.CopyFrom(_chat(text))
    return Ask("Models.Tokenize", request, lambda reply: list(reply.tokens))


def detokenize(model: str, tokens: Any, special: bool) -> Ask[str]:
    request = _detokenize(model, tokens, special, False)
    return Ask("Models.Detokenize", request, lambda reply: str(reply.text))


def pieces(model: str, tokens: Any) -> Ask[list[str]]:
    request = _detokenize(model, tokens, True, True)
    return Ask("Models.Detokenize", request, lambda reply: list(reply.pieces))


def _detokenize(model: str, tokens: Any, special: bool, each: bool) -> Any:
    ids = as_tokens([tokens] if np.ndim(tokens) == 0 else tokens)
    if ids is None:
        raise TypeError(f"tokens must be integers, not {type(tokens).__name__}")
    return _wire.DetokenizeRequest(model=model, tokens=ids, special=special, each=each)


def hooks(model: str, pattern: str) -> Ask[list[Hook]]:
    request = _wire.HooksRequest(model=model, pattern=pattern)
    return Ask("WhiteBox.Hooks", request, lambda reply: [read(Hook, hook) for hook in reply.hooks])


def sessions(model: str | None) -> Ask[list[SessionInfo]]:
    request = _wire.ListSessionsRequest(model=model)
    return Ask("Sessions.List", request, lambda r: [read(SessionInfo, s) for s in r.sessions])


def session(session: str) -> Ask[SessionInfo]:
    return Ask("Sessions.Get", _session(session), lambda reply: read(SessionInfo, reply))


def delete(session: str) -> Ask[None]:
    return Ask("Sessions.Delete", _session(session), lambda _: None)


def waiting(session: str, seconds: float | None) -> Ask[int]:
    signal = _wire.SignalRequest(session=session, waiting=_wire.Waiting(expected_s=seconds))
    return _signal(signal)


def resuming(session: str) -> Ask[int]:
    return _signal(_wire.SignalRequest(session=session, resuming=_wire.Resuming()))


def renew(session: str) -> Ask[int]:
    return _signal(_wire.SignalRequest(session=session, renew=_wire.Renew()))


def _signal(signal: Any) -> Ask[int]:
    return Ask("Sessions.Signal", signal, lambda reply: int(reply.reaction_us))


def fork(session: str, how: Sampling) -> Ask[SessionInfo]:
    request = _wire.ForkRequest(session=session, sampling=sampling(how) if how else None)
    return Ask("Sessions.Fork", request, lambda reply: read(SessionInfo, reply))


def branch(session: str, count: int) -> Ask[list[str]]:
    request = _wire.BranchRequest(session=session, count=count)
    return Ask("WhiteBox.Branch", request, lambda reply: list(reply.sessions))


def branch_back(session: str, hook: str, position: int, residual: Any) -> Ask[SessionInfo]:
    tensor = _tensors.to_wire(residual)
    request = _wire.BranchBackRequest(session=session, hook=hook, position=position, residual=tensor)
    return Ask("WhiteBox.BranchBack", request, lambda reply: read(SessionInfo, reply))


def set_breakpoints(session: str, breakpoints: list[str]) -> Ask[None]:
    request = _wire.SetBreakpointsRequest(session=session, breakpoints=breakpoints)
    return Ask("WhiteBox.SetBreakpoints", request, lambda _: None)


def activation(session: str, part: Part, positions: Positions) -> Gather[Array]:
    assembler = _tensors.Assembler()

    def take(piece: Any) -> Array | None:
        whole = assembler.take(piece)
        return None if whole is None else whole[1]

    request = _wire.ActivationRequest(
        session=session, part=_forms.part(part), positions=_forms.positions(positions)
    )
    return Gather("WhiteBox.Activation", request, take)


def save(session: str, write: Callable[[bytes], object]) -> Gather[None]:
    def take(part: Any) -> None:
        write(part.data)

    return Gather("Sessions.Save", _session(session), take)


def loaded(reply: Any) -> SessionInfo:
    """Reads the reply to a saved session."""
    return read(SessionInfo, reply)


def prompt(given: Any) -> Any:
    """Converts a prompt (text, tokens or a chat) to a message; ``None`` stays ``None``."""
    if given is None:
        return None
    if isinstance(given, str):
        return _wire.Prompt(text=given)
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], Mapping):
        return _wire.Prompt(chat=_chat(given))
    tokens = as_tokens(given)
    if tokens is None:
        raise TypeError("a prompt must be a text, a list of token ids, or a list of messages")
    return _wire.Prompt(tokens=_wire.Tokens(ids=tokens))


def as_tokens(given: Any) -> list[int] | None:
    """Converts token ids to a list; returns ``None`` for other values."""
    array = np.asarray(given)
    if not np.issubdtype(array.dtype, np.integer) and array.size:
        return None
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1:
        raise ValueError(f"expected one prompt, got tokens of shape {list(array.shape)}")
    return [int(token) for token in array]


def sampling(how: Sampling) -> Any:
    """Converts sampling parameters to a message."""
    unknown = set(how) - Sampling.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown options: {', '.join(sorted(unknown))}")
    return _wire.Sampling(**how)


def only(found: T | None) -> T:
    """Returns the result of a stream, or raises an error if the stream ended early."""
    if found is None:
        raise ServerError("the connection ended before the reply was complete")
    return found


def _session(session: str) -> Any:
    return _wire.SessionRequest(session=session)


def _limits(limits: Limits) -> Any:
    asked: dict[str, Any] = dict(limits)
    if "kv_dtype" in asked:
        asked["kv_dtype"] = _wire.enum("KvDtype", f"KV_DTYPE_{asked['kv_dtype'].upper()}")
    return _wire.ModelLimits(**asked)


def _chat(messages: Any) -> Any:
    return _wire.Chat(messages=[_wire.ChatMessage(role=m["role"], content=m["content"]) for m in messages])
