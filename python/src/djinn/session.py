"""A session: tokens that go on from turn to turn, and stops in the middle of the model."""

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
    """A session of a model. Made by ``model.session(…)``, and found again by ``client.session(id)``.

    It begins on the server when it is first told something, and ends with its ``with`` unless it is
    kept; so do the branches and forks that are made of it. It stops at breakpoints: :meth:`run` then
    gives a :class:`djinn.Paused`, :meth:`activation` what is there, and :meth:`resume` goes on from
    there, with a change if one is given. Nothing is computed again.

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
        """One that is on the server already, and stays."""
        session = cls(link, info.model, Settings(), [], keep=True)
        session.id, session.paused = info.session, info.paused
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for other in self._others:
            other.__exit__()
        if self._is_owned:
            # It may be over by itself, or its server: either way there is nothing left to end.
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
        """Tells it something and lets it go on; without a prompt, from its last token.

        ``edits`` are for this turn alone. Where breakpoints may stop it, use :meth:`run`."""
        turn = self._told(prompt, max_tokens, edits)
        if stream:
            return Stream(self._link, turn)
        return _turns.generation(self._link.outcome(turn))

    def say(self, text: Any, max_tokens: int | None = None, *, edits: Edits = None) -> Generation:
        """Tells it more: another word for :meth:`generate`."""
        return self.generate(text, max_tokens, edits=edits)

    def run(self, prompt: Any = None, max_tokens: int | None = None, *, edits: Edits = None) -> Outcome:
        """Tells it something and lets it go on, to a breakpoint or to the end of its turn."""
        return self._link.outcome(self._told(prompt, max_tokens, edits))

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
        """Stops where all of this holds: at a hook (``*`` is any text), at these positions, in a step
        (0 is the prompt, n the n-th generated token), at a token, where a row is longer or shorter."""
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
        """Sets all of its breakpoints, in place of those it had: ``HOOK[@POSITIONS][,step=N]…``."""
        if self.id is not None:
            self._link.ask(_asks.set_breakpoints(self.id, breakpoints))
        self.breakpoints = breakpoints

    def activation(self, *, part: Part = None, positions: Positions = None) -> Array:
        """What is at the hook where it stopped, ``[pos, …]``, or some of it: no more travels."""
        return _asks.only(self._link.gather(_asks.activation(self._named, part, positions)))

    def resume(self, edit: Any = None, *, until: str | None = None) -> Outcome:
        """Goes on from where it stopped, to the next breakpoint; ``until`` the next ``"hook"``, the end
        of the ``"block"``, or a hook by name.

        ``edit`` changes what is there first: an array takes its place, or edits of that hook."""
        return self._link.outcome(self._resumed(edit, until))

    def branch(self, count: int) -> list[Session]:
        """So many sessions that stand where this one stopped, and share all that lies before."""
        names = self._link.ask(_asks.branch(self._named, count))
        return [self._another(name, self.paused) for name in names]

    def branch_back(self, hook: str, position: int, residual: Any) -> Session:
        """A session that stands at a hook which this one passed on its way to where it stopped, from a
        position on, with this residual there: ``[rows, d_model]``."""
        told = self._link.ask(_asks.branch_back(self._named, hook, position, residual))
        return self._another(told.session, told.paused)

    def fork(self, **sampling: Unpack[Sampling]) -> Session:
        """Another session that goes on from where this one waits; its sampling may be another."""
        told = self._link.ask(_asks.fork(self._named, sampling))
        return self._another(told.session, told.paused)

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[False] = False) -> Outcome: ...

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[True]) -> Stream: ...

    def follow(self, from_: int = 0, *, stream: bool = False) -> Outcome | Stream:
        """What it has generated from some token on, and goes on to: for who lost the connection."""
        turn = self._followed(from_)
        return Stream(self._link, turn) if stream else self._link.outcome(turn)

    def recall(self) -> Outcome:
        """After the server was restarted: brings it to where it had stopped, to look."""
        return self._link.outcome(self._recalled())

    @contextmanager
    def waiting(self, seconds: float | None = None) -> Iterator[int]:
        """While you are away, and expect to be back after so many seconds: its KV makes room for others
        where they need it, and comes back ahead of you. Without a number it makes room at once.

        Gives the microseconds that the server took to act on it."""
        reaction_us = self._link.ask(_asks.waiting(self._named, seconds))
        try:
            yield reaction_us
        finally:
            self._link.ask(_asks.resuming(self._named))

    def renew(self) -> None:
        """Says that it is still wanted: its lease begins anew."""
        self._link.ask(_asks.renew(self._named))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, which any server with this model can load."""
        with _files.Writing(path) as write:
            self._link.gather(_asks.save(self._named, write))

    def info(self) -> SessionInfo:
        """The session as the server has it, with every token."""
        return self._link.ask(_asks.session(self._named))

    def delete(self) -> None:
        """Ends it, and gives its memory back."""
        self._link.ask(_asks.delete(self._named))
        self._over = True

    def _another(self, session: str, at: At | None) -> Session:
        other = Session(self._link, self.model_name, self._settings, list(self.breakpoints))
        self._beside(other, session, at)
        self._others.append(other)
        return other
