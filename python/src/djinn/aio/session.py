"""Session, for ``asyncio``."""

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
    """Session of a model, like :class:`djinn.Session` with ``await`` and ``async with``."""

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
        """Appends a prompt and generates; without a prompt, continues from the last token."""
        turn = self._prompted(prompt, max_tokens, edits)
        return Stream(self._link, turn) if stream else self._generation(turn)

    async def _generation(self, turn: _turns.Turn) -> Generation:
        return _turns.generation(await self._link.outcome(turn))

    async def say(self, text: Any, max_tokens: int | None = None, *, edits: Edits = None) -> Generation:
        """Alias of :meth:`generate`."""
        return await self.generate(text, max_tokens, edits=edits)

    async def run(self, prompt: Any = None, max_tokens: int | None = None, *, edits: Edits = None) -> Outcome:
        """Appends a prompt and runs to a breakpoint or to the end of the turn."""
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
        """Adds a breakpoint, like :meth:`djinn.Session.breakpoint`."""
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
        """Replaces all breakpoints."""
        if self.id is not None:
            await self._link.ask(_asks.set_breakpoints(self.id, breakpoints))
        self.breakpoints = breakpoints

    async def activation(self, *, part: Part = None, positions: Positions = None) -> Array:
        """Returns the activation at the breakpoint, ``[pos, …]``, or a part of it."""
        found = await self._link.gather(_asks.activation(self._named, part, positions))
        return _asks.only(found)

    async def resume(self, edit: Any = None, *, until: str | None = None) -> Outcome:
        """Resumes from the breakpoint, after an optional edit; see :meth:`djinn.Session.resume`."""
        return await self._link.outcome(self._resumed(edit, until))

    async def branch(self, count: int) -> list[Session]:
        """Opens several sessions at the same breakpoint. All share the KV cache before it."""
        names = await self._link.ask(_asks.branch(self._named, count))
        return [self._another(name, self.paused) for name in names]

    async def branch_back(self, hook: str, position: int, residual: Any) -> Session:
        """Opens a session at a hook that this session passed before its breakpoint."""
        info = await self._link.ask(_asks.branch_back(self._named, hook, position, residual))
        return self._another(info.session, info.paused)

    async def fork(self, **sampling: Unpack[Sampling]) -> Session:
        """Opens a copy of a waiting session, with other sampling parameters if given."""
        info = await self._link.ask(_asks.fork(self._named, sampling))
        return self._another(info.session, info.paused)

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[False] = False) -> Coroutine[Any, Any, Outcome]: ...

    @overload
    def follow(self, from_: int = 0, *, stream: Literal[True]) -> Stream: ...

    def follow(self, from_: int = 0, *, stream: bool = False) -> Coroutine[Any, Any, Outcome] | Stream:
        """Replays what the session generated from a token on, then follows its turn."""
        turn = self._followed(from_)
        return Stream(self._link, turn) if stream else self._link.outcome(turn)

    async def recall(self) -> Outcome:
        """Brings the session back to its breakpoint after a restart of the server."""
        return await self._link.outcome(self._recalled())

    @asynccontextmanager
    async def waiting(self, seconds: float | None = None) -> AsyncIterator[int]:
        """Signals a pause of the client during the ``async with``; see :meth:`djinn.Session.waiting`."""
        reaction_us = await self._link.ask(_asks.waiting(self._named, seconds))
        try:
            yield reaction_us
        finally:
            await self._link.ask(_asks.resuming(self._named))

    async def renew(self) -> None:
        """Restarts the session's lease."""
        await self._link.ask(_asks.renew(self._named))

    async def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the session to a file that any server with the same model can load."""
        with _files.Writing(path) as write:
            await self._link.gather(_asks.save(self._named, write))

    async def info(self) -> SessionInfo:
        """Returns the session's state on the server, with all its tokens."""
        return await self._link.ask(_asks.session(self._named))

    async def delete(self) -> None:
        """Closes the session and frees its memory."""
        await self._link.ask(_asks.delete(self._named))
        self._over = True

    def _another(self, session: str, at: At | None) -> Session:
        other = Session(self._link, self.model_name, self._settings, list(self.breakpoints))
        self._beside(other, session, at)
        self._others.append(other)
        return other
