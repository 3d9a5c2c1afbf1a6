"""Channel to a server, and calls over it, for ``asyncio``. ``djinn._link`` is the same without it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import grpc.aio

from djinn import _wire
from djinn._link import Parts
from djinn.errors import Cancelled, from_status, translated
from djinn.outcome import Outcome, Token

if TYPE_CHECKING:
    from djinn._address import Address
    from djinn._asks import Ask, Gather
    from djinn._turns import Turn

T = TypeVar("T")

_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]


class Link:
    """Channel to a server on the running event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        credentials, options = address.credentials(), address.options()
        self._channel: Any = (
            grpc.aio.insecure_channel(address.target, options)
            if credentials is None
            else grpc.aio.secure_channel(address.target, credentials, options)
        )

    async def close(self) -> None:
        """Closes the channel and cancels its calls."""
        await self._channel.close()

    async def ask(self, ask: Ask[T]) -> T:
        """Calls a method and reads its reply."""
        method = _wire.method(ask.method)
        call = self._channel.unary_unary(method.path, method.write, method.read)
        with translated(self.address.target):
            reply = await call(ask.request, metadata=self.address.metadata, timeout=self.address.timeout_s)
        return ask.read(reply)

    async def gather(self, gather: Gather[T]) -> T | None:
        """Calls a method and reads replies until one completes the result, or the stream ends."""
        call = self.listen(gather.method, gather.request)
        try:
            with translated(self.address.target):
                async for reply in call:
                    found = gather.take(reply)
                    if found is not None:
                        return found
        finally:
            call.cancel()
        return None

    def listen(self, name: str, request: Any) -> Any:
        """Calls a method that returns a stream."""
        method = _wire.method(name)
        call = self._channel.unary_stream(method.path, method.write, method.read)
        return call(request, metadata=self.address.metadata)

    async def send(self, name: str, parts: Iterable[Any]) -> Any:
        """Calls a method with a stream of parts and returns its reply."""
        method = _wire.method(name)
        start = self._channel.stream_unary(method.path, method.write, method.read)
        whole = Parts(parts)
        call = start(iter(whole), metadata=self.address.metadata)
        try:
            with translated(self.address.target):
                return await call
        finally:
            call.cancel()
            whole.check()

    async def outcome(self, turn: Turn) -> Outcome:
        """Runs a turn to its end."""
        return await Stream(self, turn).result()


class Stream:
    """Tokens of a turn while they are generated: ``async for token in stream``.

    Leaving the loop early, :meth:`close` and the end of an ``async with`` also end the turn on the server.
    A kept session continues there.
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
        """Tokens received so far."""
        return self._turn.pieces

    @property
    def text(self) -> str:
        """Text received so far."""
        return "".join(piece.text for piece in self.pieces)

    async def result(self) -> Outcome:
        """Reads the rest of the turn and returns its result."""
        if self._closed and self._turn.outcome is None:
            raise Cancelled("the stream was closed before its turn ended")
        async for _ in self:
            pass
        return self._turn.result()

    def close(self) -> None:
        """Cancels the call if it is still running."""
        self._closed = True
        self._call.cancel()
