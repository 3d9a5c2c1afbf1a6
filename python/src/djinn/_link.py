"""A connection, and calls over it: the plain shell. Its twin for ``asyncio`` is ``aio._link``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import grpc

from djinn import _wire
from djinn.errors import Cancelled, from_status, told
from djinn.outcome import Outcome, Token

if TYPE_CHECKING:
    from djinn._address import Address
    from djinn._asks import Ask, Gather
    from djinn._turns import Turn

T = TypeVar("T")


class Parts:
    """Parts of what is sent; if they cannot be made, that is the error, and not that the call broke."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self._parts = parts
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._parts
        except Exception as error:
            # Here is another thread: they end, and whoever waits for the answer hears why.
            self._error = error

    def check(self) -> None:
        """Raises what went wrong."""
        if self._error is not None:
            raise self._error


class Link:
    """A channel to a server."""

    def __init__(self, address: Address) -> None:
        self.address = address
        credentials, options = address.credentials(), address.options()
        self._channel = (
            grpc.insecure_channel(address.target, options)
            if credentials is None
            else grpc.secure_channel(address.target, credentials, options)
        )

    def close(self) -> None:
        """Hangs up: calls under way end."""
        self._channel.close()

    def ask(self, ask: Ask[T]) -> T:
        """Calls, and reads the answer."""
        method = _wire.method(ask.method)
        call = self._channel.unary_unary(method.path, method.write, method.read)
        with told(self.address.target):
            reply = call(ask.request, metadata=self.address.metadata, timeout=self.address.timeout_s)
        return ask.read(reply)

    def gather(self, gather: Gather[T]) -> T | None:
        """Calls, and reads answers until they come to something, or end."""
        call = self.listen(gather.method, gather.request)
        try:
            with told(self.address.target):
                for reply in call:
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

    def send(self, name: str, parts: Iterable[Any]) -> Any:
        """Calls with a stream of parts, for one answer."""
        method = _wire.method(name)
        start = self._channel.stream_unary(method.path, method.write, method.read)
        whole = Parts(parts)
        call: Any = start.future(iter(whole), metadata=self.address.metadata)
        try:
            with told(self.address.target):
                return call.result()
        finally:
            call.cancel()
            whole.check()

    def outcome(self, turn: Turn) -> Outcome:
        """Runs a turn to its end."""
        return Stream(self, turn).result()


class Stream:
    """The tokens of a turn as they come.

    To leave its loop early ends the turn on the server too, as :meth:`close` does and the end of a
    ``with``; a session that is kept goes on by itself.

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
        """What came so far."""
        return self._turn.pieces

    @property
    def text(self) -> str:
        """The text of what came so far."""
        return "".join(piece.text for piece in self.pieces)

    def result(self) -> Outcome:
        """What the turn came to, once all of it has come."""
        if self._closed and self._turn.outcome is None:
            raise Cancelled("the stream was closed before its turn was over")
        for _ in self:
            pass
        return self._turn.result()

    def close(self) -> None:
        """Gives the call up, if it is not over."""
        self._closed = True
        self._call.cancel()
