"""A connection, and calls over it, for ``asyncio``: the twin of ``djinn._link``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from djinn import _wire
from djinn._link import Parts
from djinn.errors import Cancelled, from_status, told
from djinn.outcome import Outcome, Token

if TYPE_CHECKING:
    from djinn._address import Address
    from djinn._asks import Ask, Gather
    from djinn._turns import Turn

T = TypeVar("T")

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Link:
    """A channel to a server, of the loop that runs."""

    def __init__(self, address: Address) -> None:
        self.address = address
        credentials, options = address.credentials(), address.options()
        self._channel: Any = (
            grpc.aio.insecure_channel(address.target, options)
            if credentials is None
            else grpc.aio.secure_channel(address.target, credentials, options)
        )

    async def close(self) -> None:
        """Hangs up: calls under way end."""
        await self._channel.close()

    async def ask(self, ask: Ask[T]) -> T:
        """Calls, and reads the answer."""
        method = _wire.method(ask.method)
        call = self._channel.unary_unary(method.path, method.write, method.read)
        with told(self.address.target):
            reply = await call(ask.request, metadata=self.address.metadata, timeout=self.address.timeout_s)
        return ask.read(reply)

    async def gather(self, gather: Gather[T]) -> T | None:
        """Calls, and reads answers until they come to something, or end."""
        call = self.listen(gather.method, gather.request)
        try:
            with told(self.address.target):
                async for reply in call:
                    found = gather.take(reply)
                    if found is not None:
                        return found
        finally:
            call.cancel()
        return None

    def listen(self, name: str, request: Any) -> Any:
        """Calls, for a stream of answers."""
        method = _wire.method(name)
        call = self._channel.unary_stream(method.path, method.write, method.read)
        return call(request, metadata=self.address.metadata)

    async def send(self, name: str, parts: Iterable[Any]) -> Any:
        """Calls with a stream of parts, for one answer."""
        method = _wire.method(name)
        start = self._channel.stream_unary(method.path, method.write, method.read)
        whole = Parts(parts)
        call = start(iter(whole), metadata=self.address.metadata)
        try:
            with told(self.address.target):
                return await call
        finally:
            call.cancel()
            whole.check()

    async def outcome(self, turn: Turn) -> Outcome:
        """Runs a turn to its end."""
        return await Stream(self, turn).result()


class Stream:
    """The tokens of a turn as they come: ``async for token in stream``.

    :meth:`close` ends the turn on the server too, as does the end of an ``async with`` and to leave the
    loop early; a session that is kept goes on by itself.
    """

    def __init__(self, link: Link, turn: Turn) -> None:
        self._turn = turn
        self._target = link.address.target
        self._call = link.listen(turn.method, turn.request)
        self._closed = False

    async def __anext__(self) -> Token:
        try:
            while (event := await self._call.read()) is not _EOF:
                token = self._turn.take(event)
                if token is not None:
                    return token
        except grpc.RpcError as error:
            if self._closed:
                raise StopAsyncIteration from None
            raise from_status(error, self._target) from None
        except BaseException:
            self.close()
            raise
        raise StopAsyncIteration

    async def __aiter__(self) -> AsyncIterator[Token]:
        try:
            while (token := await anext(self, None)) is not None:
                yield token
        finally:
            self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    @property
    def pieces(self) -> list[Token]:
        """What came so far."""
        return self._turn.pieces

    @property
    def text(self) -> str:
        """The text of what came so far."""
        return "".join(piece.text for piece in self.pieces)

    async def result(self) -> Outcome:
        """What the turn came to, once all of it has come."""
        if self._closed and self._turn.outcome is None:
            raise Cancelled("the stream was closed before its turn was over")
        async for _ in self:
            pass
        return self._turn.result()

    def close(self) -> None:
        """Gives the call up, if it is not over."""
        self._closed = True
        self._call.cancel()
