"""Requests that run sessions, and how their events fold into a result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from djinn import _asks, _forms, _tensors, _wire, edits
from djinn.cache import Cache
from djinn.errors import ServerError, WrongState
from djinn.outcome import HELD, Generation, Logprob, Outcome, Paused, Token
from djinn.types import At, Options, Sampling, read

if TYPE_CHECKING:
    from djinn._tensors import Array
    from djinn.edits import Edits


@dataclass(frozen=True)
class Listener:
    """Callbacks of a turn."""

    opened: Callable[[str], object]
    said: Callable[[Token], object]
    ended: Callable[[Outcome], object]


class Turn:
    """Turn of a session: its request, and its events so far."""

    def __init__(self, method: str, request: Any, listener: Listener | None = None) -> None:
        self.method = method
        self.request = request
        self.pieces: list[Token] = []
        self.session = ""
        self.outcome: Outcome | None = None
        self._listener = listener
        self._opened: Any = None
        self._arrays: dict[str, Array] = {}
        self._assembler = _tensors.Assembler()

    def take(self, event: Any) -> Token | None:
        """Adds an event and returns its token or remaining text, if any."""
        what = event.WhichOneof("what")
        token = getattr(self, f"_take_{what}")(getattr(event, what)) if what else None
        if token is not None:
            self.pieces.append(token)
            if self._listener is not None:
                self._listener.said(token)
        if self.outcome is None and what in ("paused", "finished"):
            self._end(event)
        return token

    def result(self) -> Outcome:
        """Returns the result of the turn."""
        if self.outcome is None:
            raise ServerError("the connection ended before the turn did")
        return self.outcome

    def _take_opened(self, opened: Any) -> None:
        self._opened, self.session = opened, opened.session
        if self._listener is not None:
            self._listener.opened(opened.session)

    def _take_token(self, token: Any) -> Token:
        logprobs = tuple(Logprob(p.id, p.logprob, p.text) for p in token.logprobs)
        return Token(token.id, token.text, token.index, logprobs)

    def _take_captured(self, part: Any) -> None:
        whole = self._assembler.take(part)
        if whole is not None:
            self._arrays[whole[0]] = whole[1]

    def _take_paused(self, _: Any) -> None:
        pass

    def _take_finished(self, finished: Any) -> Token | None:
        if finished.why == "failed":
            raise ServerError(finished.failure or "the session failed")
        return Token(HELD, finished.text, finished.generated) if finished.text else None

    def _end(self, event: Any) -> None:
        captured, pieces = Cache(self._arrays), tuple(self.pieces)
        if event.WhichOneof("what") == "paused":
            at = read(At, event.paused)
            self.outcome = Paused(**vars(at), session=self.session, pieces=pieces, captured=captured)
        else:
            self.outcome = Generation(
                text="".join(piece.text for piece in pieces),
                pieces=pieces,
                finish=event.finished.why,
                prompt_tokens=self._opened.prompt_tokens,
                cached_tokens=event.finished.cached_tokens,
                seed=self._opened.seed,
                session=self.session,
                kept=event.finished.kept,
                captured=captured,
            )
        if self._listener is not None:
            self._listener.ended(self.outcome)


def generation(outcome: Outcome) -> Generation:
    """Returns the result as a generation; raises an error if the turn stopped at a breakpoint."""
    if isinstance(outcome, Paused):
        raise WrongState(f"{outcome}: use `run` to get the stop, and `resume` to continue")
    return outcome


def create(
    model: str,
    prompt: Any,
    *,
    max_tokens: int | None = None,
    captures: Any = None,
    capture_positions: Any = None,
    edits_: Edits = None,
    turn_edits: Edits = None,
    breakpoints: list[str] | None = None,
    keep: bool = False,
    lease_s: float | None = None,
    options: Options | None = None,
) -> Any:
    """Creates the request that opens a session."""
    how: Any = dict(options or {})
    given = {name: how.pop(name) for name in Sampling.__annotations__ if name in how}
    priority = how.pop("priority", None)
    request = _wire.CreateRequest(
        model=model,
        prompt=_asks.prompt(prompt),
        max_tokens=max_tokens,
        captures=_forms.captures(captures),
        capture_positions=_forms.positions(capture_positions),
        edits=edits.to_wire(edits_),
        turn_edits=edits.to_wire(turn_edits),
        breakpoints=breakpoints or [],
        keep=keep,
        lease_s=lease_s,
        stop=_forms.listed(how.pop("stop", None)),
        ignore_eos=how.pop("ignore_eos", False),
        deadline_s=how.pop("deadline_s", None),
        sampling=_asks.sampling(given) if given else None,  # type: ignore[arg-type]
    )
    if priority is not None:
        request.priority = _wire.enum("Priority", f"PRIORITY_{priority.upper()}")
    if how:
        raise TypeError(f"unknown options: {', '.join(sorted(how))}")
    return request


def generate(session: str, prompt: Any, max_tokens: int | None, edits_: Edits) -> Any:
    """Creates the request for another turn."""
    return _wire.GenerateRequest(
        session=session,
        prompt=_asks.prompt(prompt),
        max_tokens=max_tokens,
        edits=edits.to_wire(edits_),
    )


def follow(session: str, from_: int) -> Any:
    """Creates the request that follows a session."""
    request = _wire.FollowRequest(session=session)
    setattr(request, "from", from_)
    return request


def recall(session: str) -> Any:
    """Creates the request that brings a restored session back to its breakpoint."""
    return _wire.SessionRequest(session=session)


def resume(session: str, at: At | None, change: Any, until: str | None) -> Any:
    """Creates the request that resumes a session."""
    request = _wire.ResumeRequest(session=session, edits=_here(at, change))
    if until is None:
        request.breakpoint = True
    elif until == "hook":
        request.next_hook = True
    elif until == "block":
        request.next_block = True
    else:
        request.hook = until
    return request


def _here(at: At | None, change: Any) -> list[Any]:
    """Converts edits at a breakpoint to messages; an array replaces the activation."""
    is_array = hasattr(change, "__array__") or _tensors.is_torch(change)
    if not is_array:
        return edits.to_wire(change)
    if at is None:
        raise WrongState("the session is not at a breakpoint")
    return edits.to_wire(edits.replace(at.hook, change))
