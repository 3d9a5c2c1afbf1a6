"""State of a session that both ``Session`` classes share; independent of how calls are made."""

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
    """Settings of a new session."""

    captures: list[str] = field(default_factory=list)
    capture_positions: str = ""
    edits: Edits = None
    max_tokens: int | None = None
    lease_s: float | None = None
    options: Options = field(default_factory=Options)

    @property
    def means(self) -> list[str]:
        """Hooks captured as a mean, which covers one turn only."""
        read = [text.split("|")[0] for text in self.captures if text.endswith("|mean")]
        return [text.split("@")[0].split("[")[0] for text in read]


class Life:
    """State of a session."""

    def __init__(self, model: str, settings: Settings, breakpoints: list[str], *, keep: bool = False) -> None:
        self.id: str | None = None
        """Id of the session on the server; ``None`` until it is opened."""
        self.paused: At | None = None
        """Breakpoint where the session stands, if it does."""
        self.breakpoints = breakpoints
        """Breakpoints of the session."""
        self.captured = Cache()
        """Captures of all turns so far."""
        self.model_name = model
        """Name of the session's model."""
        self._settings = settings
        self._heard: dict[int, Token] = {}
        self._keep = keep
        self._over = False

    @property
    def tokens(self) -> list[int]:
        """Tokens generated so far, as received by this object."""
        return [self._heard[index].id for index in sorted(self._heard)]

    @property
    def _named(self) -> str:
        """Id of the session; raises an error if it is not open yet."""
        if self.id is None:
            raise WrongState("the session is not open yet: send a prompt first")
        return self.id

    @property
    def _is_owned(self) -> bool:
        """Whether the session is open on the server and belongs to this object."""
        return self.id is not None and not self._keep and not self._over

    def detach(self) -> str:
        """Keeps the session open on the server and returns its id for ``client.session(id)``."""
        self._keep = True
        return self._named

    def _prompted(self, prompt: Any, max_tokens: int | None, edits: Edits) -> _turns.Turn:
        """Creates the turn for a prompt: the first turn, or another one."""
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
        """Creates the turn that resumes from the breakpoint."""
        request = _turns.resume(self._named, self.paused, edit, until)
        return self._turn("WhiteBox.Resume", request)

    def _followed(self, from_: int) -> _turns.Turn:
        """Creates the turn that follows the session from a token on."""
        return self._turn("Sessions.Follow", _turns.follow(self._named, from_))

    def _recalled(self) -> _turns.Turn:
        """Creates the turn that brings a restored session back to its breakpoint."""
        return self._turn("WhiteBox.Recall", _turns.recall(self._named))

    def _turn(self, method: str, request: Any) -> _turns.Turn:
        return _turns.Turn(method, request, _turns.Listener(self._opened, self._said, self._ended))

    def _opened(self, session: str) -> None:
        """Records the beginning of a turn."""
        self.id, self.paused = session, None

    def _said(self, token: Token) -> None:
        """Records a token."""
        if token.id != HELD:
            self._heard[token.index] = token

    def _ended(self, outcome: Outcome) -> None:
        """Records the end of a turn or a stop."""
        self.paused = outcome if isinstance(outcome, Paused) else None
        self._over = isinstance(outcome, Generation) and not outcome.kept
        patterns = self._settings.means
        means = [n for n in outcome.captured if any(fnmatchcase(n, p) for p in patterns)]
        self.captured = self.captured.joined(outcome.captured, frozenset(means))

    def _beside(self, other: Life, session: str, at: At | None) -> None:
        """Copies the state of this session to a branch or fork."""
        other.id, other.paused = session, at
        other._heard, other.captured = dict(self._heard), self.captured

    def __repr__(self) -> str:
        state = "not open" if self.id is None else "closed" if self._over else self.id
        at = f", stopped at {self.paused.hook}" if self.paused else ""
        return f"<djinn.Session {state} of {self.model_name}: {len(self._heard)} tokens{at}>"

    def _repr_html_(self) -> str:
        pairs: list[tuple[str, object]] = [
            ("model", self.model_name),
            ("generated", f"{len(self._heard)} tokens"),
            ("stopped at", self.paused or "no breakpoint"),
            ("breakpoints", ", ".join(self.breakpoints) or "none"),
            ("captured", ", ".join(self.captured) or "nothing"),
        ]
        return _html.facts(f"session {self.id or 'not open'}", pairs)
