"""Model on a server, for ``asyncio``."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Literal, overload

from djinn import _asks, _forms, _reads, _turns
from djinn._about import About
from djinn._files import saved_parts
from djinn._life import Settings
from djinn.aio._link import Link, Stream
from djinn.aio.session import Session
from djinn.cache import Cache
from djinn.outcome import Generation
from djinn.types import Hook, ModelInfo, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from djinn._forms import Positions
    from djinn._reads import Names
    from djinn._tensors import Array
    from djinn.edits import Edits


class Model(About):
    """Model on a server, like :class:`djinn.Model` with ``await``."""

    def __init__(self, link: Link, info: ModelInfo) -> None:
        super().__init__(info)
        self._link = link

    @overload
    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Coroutine[Any, Any, Generation]: ...

    @overload
    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: Literal[True],
        **options: Unpack[Options],
    ) -> Stream: ...

    def generate(
        self,
        prompt: Any,
        max_tokens: int | None = None,
        *,
        edits: Edits = None,
        stream: bool = False,
        **options: Unpack[Options],
    ) -> Coroutine[Any, Any, Generation] | Stream:
        """Continues a prompt. ``await`` the result, or iterate over a ``stream`` with ``async for``."""
        request = _turns.create(self.name, prompt, max_tokens=max_tokens, edits_=edits, options=options)
        turn = _turns.Turn("Sessions.Create", request)
        return Stream(self._link, turn) if stream else self._generation(turn)

    async def _generation(self, turn: _turns.Turn) -> Generation:
        return _turns.generation(await self._link.outcome(turn))

    async def logits(self, prompt: Any, *, positions: Positions = None, edits: Edits = None) -> Array:
        """Returns the logits of a prompt, ``[pos, vocab]``; ``positions=-1`` returns only the last one."""
        reading = _reads.Reading(self.name, prompt, ["logits"], positions=positions, edits=edits)
        return reading.split(await self._link.outcome(reading.turn))[1]["logits"]

    async def run_with_cache(
        self,
        prompt: Any,
        names: Names,
        *,
        return_logits: bool = False,
        positions: Positions = None,
        edits: Edits = None,
    ) -> tuple[Array | None, Cache]:
        """Runs a prompt and returns ``(logits, cache)``; logits only if ``return_logits`` is set."""
        reading = _reads.Reading(
            self.name,
            prompt,
            await self._captures(names),
            logits=return_logits,
            positions=positions,
            edits=edits,
        )
        return reading.split(await self._link.outcome(reading.turn))

    async def run_with_hooks(
        self, prompt: Any, edits: Edits, names: Names = None, *, positions: Positions = None
    ) -> Array | tuple[Array | None, Cache]:
        """Runs a prompt with edits and returns its logits; with ``names``, ``(logits, cache)``."""
        if names is None:
            return await self.logits(prompt, positions=positions, edits=edits)
        return await self.run_with_cache(prompt, names, return_logits=True, positions=positions, edits=edits)

    def session(
        self,
        *,
        captures: str | Iterable[str] | None = None,
        capture_positions: Positions = None,
        edits: Edits = None,
        breakpoints: str | Iterable[str] | None = None,
        max_tokens: int | None = None,
        keep: bool = False,
        lease_s: float | None = None,
        **options: Unpack[Options],
    ) -> Session:
        """Creates a session for ``async with``. The first prompt opens it on the server."""
        settings = Settings(
            captures=_forms.captures(captures),
            capture_positions=_forms.positions(capture_positions),
            edits=edits,
            max_tokens=max_tokens,
            lease_s=lease_s,
            options=options,
        )
        return Session(self._link, self.name, settings, _forms.listed(breakpoints), keep=keep)

    async def load_session(self, path: str | os.PathLike[str]) -> Session:
        """Opens a session from a saved file."""
        reply = await self._link.send("Sessions.Load", saved_parts(self.name, path))
        return Session.found(self._link, _asks.loaded(reply))

    async def hooks(self, pattern: str = "") -> list[Hook]:
        """Lists the hooks that match a pattern; ``*`` matches any text. Default: all hooks."""
        return await self._link.ask(_asks.hooks(self.name, pattern))

    async def tokenize(self, text: Any, *, plain: bool = False) -> list[int]:
        """Converts text or messages to tokens. ``plain`` leaves out the token that begins a text."""
        return await self._link.ask(_asks.tokenize(self.name, text, plain))

    async def detokenize(self, tokens: Any, *, special: bool = False) -> str:
        """Converts tokens to text. ``special`` includes special tokens."""
        return await self._link.ask(_asks.detokenize(self.name, tokens, special))

    async def pieces(self, tokens: Any) -> list[str]:
        """Returns the text of every single token."""
        return await self._link.ask(_asks.pieces(self.name, tokens))

    async def _captures(self, names: Names) -> list[str]:
        if callable(names):
            return _reads.wanted(names, await self.hooks())
        return _forms.captures(names)
