"""Session: a token sequence over several turns, with breakpoints inside the model."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, overload

from djinn import _asks, _files, _forms, _turns
from djinn._life import Life, Settings
from djinn._link import Link, Stream
from djinn.errors import NotFound, Unavailable
from djinn.outcome import Generation, Outcome
from djinn.types import At, Sampling, SessionInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from djinn._forms import Part, Positions
    from djinn._tensors import Array
    from djinn.edits import Edits


class Session(Life):
    """Session of a model, created by ``model.session(…)`` or found by ``client.session(id)``.

    The first prompt opens the session on the server. The end of its ``with`` closes the session, its
    branches and its forks, unless the session is kept. At a breakpoint, :meth:`run` returns a
    :class:`djinn.Paused`, :meth:`activation` the values there, and :meth:`resume` continues, with an edit if
    one is given. Nothing is computed twice.

    >>> import djinn
    >>> model = djinn.connect().model()
    >>> with model.session(temperature=0, max_tokens=6) as s:
    ...     s.breakpoint("blocks.3.hook_resid_post", step=0)
    ...     print(s.run("Once upon a time"))
    ...     there = s.activation()
    ...     there[-1] *= 0.5
    ...     print(s.resume(there).tokens == model.generate(
    ...         "Once upon a time", 6, temperature=0,
    ...         edits=djinn.scale("blocks.3.hook_resid_post", 0.5, positions=-1)).tokens)
    stopped at blocks.3.hook_resid_post [5, 256], positions 0 to 4
    True
    """

    def __init__(
        self,
        link: Link,
        model: str,
        settings: Settings,
        breakpoints: list[str],
        *,
        keep: bool = False,
    ) -> None:
        super().__init__(model, settings, breakpoints, keep=keep)
        self._link = link
        self._others: list[Session] = []

    @classmethod
    def found(cls, link: Link, info: SessionInfo) -> Self:
        """Creates the handle of a session that is open on the server and stays open."""
        session = cls(link, info.model, Settings(), [], keep=True)
        session.id, session.paused = info.session, info.paused
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for other in self._others:
            other.__exit__()
        if self._is_owned:
            # The session may have ended, or the server stopped: nothing is left to close.
            with suppress(NotFound, Unavailable):
                self.delete()

    @overload
    def generate(
        self,
        prompt: Any = None,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[False] = False,
    ) -> Generation: ...

    @overload
    def generate(
        self,
        prompt: Any = None,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[True],
    ) -> Stream: ...

    def generate(
        self,
        prompt: Any = None,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: bool = False,
    ) -> Generation | Stream:
        """Appends a prompt and generates; without a prompt, continues from the last token.

        ``edits`` apply to this turn only. Use :meth:`run` if breakpoints may stop the turn."""
        turn = self._prompted(prompt, max_tokens, edits)
        if stream:
            return Stream(self._link, turn)
        return _turns.generation(self._link.outcome(turn))

    def say(self, text: Any, max_tokens: int | None = None, *, edits: Edits = None) -> Generation:
        """Alias of :meth:`generate`."""
        return self.generate(text, max_tokens, edits=edits)

    def run(self, prompt: Any = None, max_tokens: int | None = None, *, edits: Edits = None) -> Outcome:
        """Appends a prompt and runs to a breakpoint or to the end of the turn."""
        return self._link.outcome(self._prompted(prompt, max_tokens, edits))

    def breakpoint(
        self,
        hook: str,
        *,
        positions: Positions = None,
        step: int | None = None,
        token: int | None = None,
        norm_above: float | None = None,
        norm_below: float | None = None,
    ) -> None:
        """Adds a breakpoint. All given conditions must hold: the hook (``*`` matches any text), the
        positions, the step (0 is the prompt, n the n-th generated token), the token, and the norm of a
        row."""
        text = _forms.breakpoint_at(
            hook,
            positions=positions,
            step=step,
            token=token,
            norm_above=norm_above,
            norm_below=norm_below,
        )
        self.set_breakpoints([*self.breakpoints, text])

    def set_breakpoints(self, breakpoints: list[str]) -> None:
        """Replaces all breakpoints: ``HOOK[@POSITIONS][,step=N]…``."""
        if self.id is not None:
            self._link.ask(_asks.set_breakpoints(self.id, breakpoints))
        self.breakpoints = breakpoints

    def activation(self, *, part: Part = None, positions: Positions = None) -> Array:
        """Returns the activation at the breakpoint, ``[pos, …]``, or a part of it."""
        return _asks.only(self._link.gather(_asks.activation(self._named, part, positions)))

    def resume(self, edit: Any = None, *, until: str | None = None) -> Outcome:
        """Resumes from the breakpoint to the next one, or ``until`` the next ``"hook"``, the end of the
        ``"block"``, or a hook by its name.

        ``edit`` changes the activation first: an array replaces it; edits of the hook also work."""
        return self._link.outcome(self._resumed(edit, until))

    def branch(self, count: int) -> list[Session]:
        """Opens several sessions at the same breakpoint. All share the KV cache before it."""
        names = self._link.ask(_asks.branch(self._named, count))
        return [self._another(name, self.paused) for name in names]

    def branch_back(self, hook: str, position: int, residual: Any) -> Session:
        """Opens a session at a hook that this session passed before its breakpoint, from a position on,
        with the given residual, ``[rows, d_model]``."""
        info = self._link.ask(_asks.branch_back(self._named, hook, position, residual))
        return self._another(info.session, info.paused)

    def fork(self, **sampling: Unpack[Sampling]) -> Session:
        """Opens a copy of a waiting session, with other sampling parameters if given."""
        info = self._link.ask(_asks.fork(self._named, sampling))
        return self._another(info.session, info.paused)

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[False] = False) -> Outcome: ...

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[True]) -> Stream: ...

    def follow(self, from_: int = 0, *, stream: bool = False) -> Outcome | Stream:
        """Replays what the session generated from a token on, then follows its turn. Use it after a lost
        connection."""
        turn = self._followed(from_)
        return Stream(self._link, turn) if stream else self._link.outcome(turn)

    def recall(self) -> Outcome:
        """Brings the session back to its breakpoint after a restart of the server."""
        return self._link.outcome(self._recalled())

    @contextmanager
    def waiting(self, seconds: float | None = None) -> Iterator[int]:
        """Signals a pause of the client for the body of the ``with``. The session's KV pages may leave the
        device, and return before the expected number of seconds has passed. Without a number they leave at
        once.

        Yields the server's reaction time in microseconds."""
        reaction_us = self._link.ask(_asks.waiting(self._named, seconds))
        try:
            yield reaction_us
        finally:
            self._link.ask(_asks.resuming(self._named))

    def renew(self) -> None:
        """Restarts the session's lease."""
        self._link.ask(_asks.renew(self._named))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the session to a file that any server with the same model can load."""
        with _files.Writing(path) as write:
            self._link.gather(_asks.save(self._named, write))

    def info(self) -> SessionInfo:
        """Returns the session's state on the server, with all its tokens."""
        return self._link.ask(_asks.session(self._named))

    def delete(self) -> None:
        """Closes the session and frees its memory."""
        self._link.ask(_asks.delete(self._named))
        self._over = True

    def _another(self, session: str, at: At | None) -> Session:
        other = Session(self._link, self.model_name, self._settings, list(self.breakpoints))
        self._beside(other, session, at)
        self._others.append(other)
        return other
