"""What a session is and was, without how calls are made: both ``Session`` classes are shells of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from djinn import _html, _turns
from djinn.cache import Cache
from djinn.errors import WrongState
from djinn.outcome import HELD, Generation, Outcome, Paused, Token
from djinn.types import At, Options

if TYPE_CHECKING:
    from djinn.edits import Edits


@dataclass(frozen=True)
class Settings:
    """What a session begins with."""

    captures: list[str] = field(default_factory=list)
    capture_positions: str = ""
    edits: Edits = None
    max_tokens: int | None = None
    lease_s: float | None = None
    options: Options = field(default_factory=Options)

    @property
    def means(self) -> list[str]:
        """Hooks of which the mean is read: it does not go on from turn to turn."""
        read = [text.split("|")[0] for text in self.captures if text.endswith("|mean")]
        return [text.split("@")[0].split("[")[0] for text in read]


class Life:
    """A session's life so far."""

    def __init__(self, model: str, settings: Settings, breakpoints: list[str], *, keep: bool = False) -> None:
        self.id: str | None = None
        """What the server calls it, once it has begun."""
        self.paused: At | None = None
        """Where it stands, if it stopped."""
        self.breakpoints = breakpoints
        """Where it stops."""
        self.captured = Cache()
        """What was read so far, turn after turn."""
        self.model_name = model
        """The model it is of."""
        self._settings = settings
        self._heard: dict[int, Token] = {}
        self._keep = keep
        self._over = False

    @property
    def tokens(self) -> list[int]:
        """What it has generated so far, as it was heard here."""
        return [self._heard[index].id for index in sorted(self._heard)]

    @property
    def _named(self) -> str:
        """Its id; an error where it has not begun."""
        if self.id is None:
            raise WrongState("the session has not begun: tell it something first")
        return self.id

    @property
    def _is_owned(self) -> bool:
        """Whether it is on the server, and ends here."""
        return self.id is not None and not self._keep and not self._over

    def detach(self) -> str:
        """Leaves it on the server, for ``client.session(id)`` to find again."""
        self._keep = True
        return self._named

    def _prompted(self, prompt: Any, max_tokens: int | None, edits: Edits) -> _turns.Turn:
        """The turn in which it is told something: its first, or another."""
        settings = self._settings
        most = settings.max_tokens if max_tokens is None else max_tokens
        if self.id is not None:
            request = _turns.generate(self.id, prompt, most, edits)
            return self._turn("Sessions.Generate", request)
        request = _turns.create(
            self.model_name,
            prompt,
            max_tokens=most,
            captures=settings.captures,
            capture_positions=settings.capture_positions,
            edits_=settings.edits,
            turn_edits=edits,
            breakpoints=self.breakpoints,
            keep=True,
            lease_s=settings.lease_s,
            options=settings.options,
        )
        return self._turn("Sessions.Create", request)

    def _resumed(self, edit: Any, until: str | None) -> _turns.Turn:
        """The turn that goes on from where it stopped."""
        request = _turns.resume(self._named, self.paused, edit, until)
        return self._turn("WhiteBox.Resume", request)

    def _followed(self, from_: int) -> _turns.Turn:
        """The turn that it is in, heard from a token on."""
        return self._turn("Sessions.Follow", _turns.follow(self._named, from_))

    def _recalled(self) -> _turns.Turn:
        """The turn that brings it back to where it had stopped."""
        return self._turn("WhiteBox.Recall", _turns.recall(self._named))

    def _turn(self, method: str, request: Any) -> _turns.Turn:
        return _turns.Turn(method, request, _turns.Listener(self._opened, self._said, self._ended))

    def _opened(self, session: str) -> None:
        """It runs."""
        self.id, self.paused = session, None

    def _said(self, token: Token) -> None:
        """It says something."""
        if token.id != HELD:
            self._heard[token.index] = token

    def _ended(self, outcome: Outcome) -> None:
        """Its turn is over, or it stopped."""
        self.paused = outcome if isinstance(outcome, Paused) else None
        self._over = isinstance(outcome, Generation) and not outcome.kept
        patterns = self._settings.means
        means = [n for n in outcome.captured if any(fnmatchcase(n, p) for p in patterns)]
        self.captured = self.captured.joined(outcome.captured, frozenset(means))

    def _beside(self, other: Life, session: str, at: At | None) -> None:
        """Makes another session one that goes on from where this one is."""
        other.id, other.paused = session, at
        other._heard, other.captured = dict(self._heard), self.captured

    def __repr__(self) -> str:
        state = "not begun" if self.id is None else "over" if self._over else self.id
        at = f", stands at {self.paused.hook}" if self.paused else ""
        return f"<djinn.Session {state} of {self.model_name}: {len(self._heard)} tokens{at}>"

    def _repr_html_(self) -> str:
        pairs: list[tuple[str, object]] = [
            ("model", self.model_name),
            ("generated", f"{len(self._heard)} tokens"),
            ("stands at", self.paused or "no breakpoint"),
            ("breakpoints", ", ".join(self.breakpoints) or "none"),
            ("captured", ", ".join(self.captured) or "nothing"),
        ]
        return _html.facts(f"session {self.id or 'not begun'}", pairs)
