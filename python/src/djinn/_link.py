"""Channel to a server, and calls over it. ``aio._link`` is the same for ``asyncio``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from djinn import _wire
from djinn.errors import Cancelled, from_status, translated
from djinn.outcome import Outcome, Token

if TYPE_CHECKING:
    from djinn._address import Address
    from djinn._asks import Ask, Gather
    from djinn._turns import Turn

T = TypeVar("T")


class Parts:
    """Parts of a sent stream. An error while they are produced is raised instead of the broken call."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = parts
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._parts
        except Exception as error:
            # gRPC runs this on another thread: end the stream, and let the caller raise the error.
            self._error = error

    def check(self) -> None:
        """Raises the error of the producer, if any."""
        if self._error is not None:
            raise self._error


class Link:
    """Channel to a server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        credentials, options = address.credentials(), address.options()
        self._channel = (
            grpc.insecure_channel(address.target, options)
            if credentials is None
            else grpc.secure_channel(address.target, credentials, options)
        )

    def close(self) -> None:
        """Closes the channel and cancels its calls."""
        self._channel.close()

    def ask(self, ask: Ask[T]) -> T:
        """Calls a method and reads its reply."""
        method = _wire.method(ask.method)
        call = self._channel.unary_unary(method.path, method.write, method.read)
        with translated(self.address.target):
            reply = call(ask.request, metadata=self.address.metadata, timeout=self.address.timeout_s)
        return ask.read(reply)

    def gather(self, gather: Gather[T]) -> T | None:
        """Calls a method and reads replies until one completes the result, or the stream ends."""
        call = self.listen(gather.method, gather.request)
        try:
            with translated(self.address.target):
                for reply in call:
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

    def send(self, name: str, parts: Iterable[Any]) -> Any:
        """Calls a method with a stream of parts and returns its reply."""
        method = _wire.method(name)
        start = self._channel.stream_unary(method.path, method.write, method.read)
        whole = Parts(parts)
        call: Any = start.future(iter(whole), metadata=self.address.metadata)
        try:
            with translated(self.address.target):
                return call.result()
        finally:
            call.cancel()
            whole.check()

    def outcome(self, turn: Turn) -> Outcome:
        """Runs a turn to its end."""
        return Stream(self, turn).result()


class Stream:
    """Tokens of a turn while they are generated.

    Leaving the loop early, :meth:`close` and the end of a ``with`` also end the turn on the server. A kept
    session continues there.

    >>> import djinn
    >>> model = djinn.connect().model()
    >>> for token in model.generate("Once upon a time", temperature=0, stream=True):
    ...     print(token, end="")
    ...     if token.index == 3:
    ...         break
    , there was a
    """

    def __init__(self, link: Link, turn: Turn) -> None:
        self._turn = turn
        self._target = link.address.target
        self._call = link.listen(turn.method, turn.request)
        self._closed = False

    def __next__(self) -> Token:
        try:
            for event in self._call:
                token = self._turn.take(event)
                if token is not None:
                    return token
        except grpc.RpcError as error:
            if self._closed:
                raise StopIteration from None
            raise from_status(error, self._target) from None
        except BaseException:
            self.close()
            raise
        raise StopIteration

    def __iter__(self) -> Iterator[Token]:
        try:
            while (token := next(self, None)) is not None:
                yield token
        finally:
            self.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pieces(self) -> list[Token]:
        """Tokens received so far."""
        return self._turn.pieces

    @property
    def text(self) -> str:
        """Text received so far."""
        return "".join(piece.text for piece in self.pieces)

    def result(self) -> Outcome:
        """Reads the rest of the turn and returns its result."""
        if self._closed and self._turn.outcome is None:
            raise Cancelled("the stream was closed before its turn ended")
        for _ in self:
            pass
        return self._turn.result()

    def close(self) -> None:
        """Cancels the call if it is still running."""
        self._closed = True
        self._call.cancel()
