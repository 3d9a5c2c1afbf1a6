"""A session, for ``asyncio``."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal, overload

from djinn import _asks, _files, _forms, _turns
from djinn._life import Life, Settings
from djinn.aio._link import Link, Stream
from djinn.errors import NotFound, Unavailable
from djinn.outcome import Generation, Outcome
from djinn.types import At, Sampling, SessionInfo

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from djinn._forms import Part, Positions
    from djinn._tensors import Array
    from djinn.edits import Edits


class Session(Life):
    """A session of a model: as :class:`djinn.Session`, awaited, and with ``async with``."""

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

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for other in self._others:
            await other.__aexit__()
        if self._is_owned:
            with suppress(NotFound, Unavailable):
                await self.delete()

    @overload
    def generate(
        self,
        prompt: Any = None,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[False] = False,
    ) -> Coroutine[Any, Any, Generation]: ...

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
    ) -> Coroutine[Any, Any, Generation] | Stream:
        """Tells it something and lets it go on; without a prompt, from its last token."""
        turn = self._prompted(prompt, max_tokens, edits)
        return Stream(self._link, turn) if stream else self._generation(turn)

    async def _generation(self, turn: _turns.Turn) -> Generation:
        return _turns.generation(await self._link.outcome(turn))

    async def say(self, text: Any, max_tokens: int | None = None, *, edits: Edits = None) -> Generation:
        """Tells it more: another word for :meth:`generate`."""
        return await self.generate(text, max_tokens, edits=edits)

    async def run(self, prompt: Any = None, max_tokens: int | None = None, *, edits: Edits = None) -> Outcome:
        """Tells it something and lets it go on, to a breakpoint or to the end of its turn."""
        return await self._link.outcome(self._prompted(prompt, max_tokens, edits))

    async def breakpoint(
        self,
        hook: str,
        *,
        positions: Positions = None,
        step: int | None = None,
        token: int | None = None,
        norm_above: float | None = None,
        norm_below: float | None = None,
    ) -> None:
        """Stops where all of this holds."""
        text = _forms.breakpoint_at(
            hook,
            positions=positions,
            step=step,
            token=token,
            norm_above=norm_above,
            norm_below=norm_below,
        )
        await self.set_breakpoints([*self.breakpoints, text])

    async def set_breakpoints(self, breakpoints: list[str]) -> None:
        """Sets all of its breakpoints, in place of those it had."""
        if self.id is not None:
            await self._link.ask(_asks.set_breakpoints(self.id, breakpoints))
        self.breakpoints = breakpoints

    async def activation(self, *, part: Part = None, positions: Positions = None) -> Array:
        """What is at the hook where it stopped, ``[pos, …]``, or some of it: no more travels."""
        found = await self._link.gather(_asks.activation(self._named, part, positions))
        return _asks.only(found)

    async def resume(self, edit: Any = None, *, until: str | None = None) -> Outcome:
        """Goes on from where it stopped, with what is there changed first."""
        return await self._link.outcome(self._resumed(edit, until))

    async def branch(self, count: int) -> list[Session]:
        """So many sessions that stand where this one stopped, and share all that lies before."""
        names = await self._link.ask(_asks.branch(self._named, count))
        return [self._another(name, self.paused) for name in names]

    async def branch_back(self, hook: str, position: int, residual: Any) -> Session:
        """A session that stands at a hook which this one passed on its way to where it stopped."""
        told = await self._link.ask(_asks.branch_back(self._named, hook, position, residual))
        return self._another(told.session, told.paused)

    async def fork(self, **sampling: Unpack[Sampling]) -> Session:
        """Another session that goes on from where this one waits; its sampling may be another."""
        told = await self._link.ask(_asks.fork(self._named, sampling))
        return self._another(told.session, told.paused)

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[False] = False) -> Coroutine[Any, Any, Outcome]: ...

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[True]) -> Stream: ...

    def follow(self, from_: int = 0, *, stream: bool = False) -> Coroutine[Any, Any, Outcome] | Stream:
        """What it has generated from some token on, and goes on to."""
        turn = self._followed(from_)
        return Stream(self._link, turn) if stream else self._link.outcome(turn)

    async def recall(self) -> Outcome:
        """After the server was restarted: brings it to where it had stopped, to look."""
        return await self._link.outcome(self._recalled())

    @asynccontextmanager
    async def waiting(self, seconds: float | None = None) -> AsyncIterator[int]:
        """While you are away, and expect to be back after so many seconds: its KV makes room for others
        where they need it, and comes back ahead of you. Without a number it makes room at once."""
        reaction_us = await self._link.ask(_asks.waiting(self._named, seconds))
        try:
            yield reaction_us
        finally:
            await self._link.ask(_asks.resuming(self._named))

    async def renew(self) -> None:
        """Says that it is still wanted: its lease begins anew."""
        await self._link.ask(_asks.renew(self._named))

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it to a file, which any server with this model can load."""
        with _files.Writing(path) as write:
            await self._link.gather(_asks.save(self._named, write))

    async def info(self) -> SessionInfo:
        """The session as the server has it, with every token."""
        return await self._link.ask(_asks.session(self._named))

    async def delete(self) -> None:
        """Ends it, and gives its memory back."""
        await self._link.ask(_asks.delete(self._named))
        self._over = True

    def _another(self, session: str, at: At | None) -> Session:
        other = Session(self._link, self.model_name, self._settings, list(self.breakpoints))
        self._beside(other, session, at)
        self._others.append(other)
        return other
