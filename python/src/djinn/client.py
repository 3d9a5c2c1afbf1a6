"""A connection to a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from djinn import _about, _address, _asks
from djinn._link import Link
from djinn.model import Model
from djinn.session import Session
from djinn.types import Capabilities, Limits, ModelInfo, OnProgress, Plan, SessionInfo

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from djinn._address import Pem


def connect(
    address: str | None = None,
    key: str | None = None,
    *,
    tls: bool | None = None,
    ca: Pem = None,
    cert: tuple[Pem, Pem] | None = None,
    timeout: float | None = 60.0,
) -> Client:
    """Connects to a server.

    ``address`` is ``HOST:PORT``, with ``https://`` in front where it speaks TLS; by default what the
    environment says in ``DJINN_SERVER`` or ``GENIE_SERVER_ADDRESS``, or ``127.0.0.1:5556``. ``key`` is by
    default ``DJINN_KEY``. ``ca`` is whom to trust, ``cert`` a certificate and its key where the server
    wants to see one; each is a file or bytes. ``timeout`` is how many seconds an answer may take; what
    runs a model takes as long as that does.

    >>> import djinn
    >>> client = djinn.connect()
    >>> client.model().generate("Once upon a time", max_tokens=4, temperature=0).text
    ', there was a'
    """
    return Client(_address.settle(address, key, tls, ca, cert, timeout))


class Client:
    """A connection to a server. Made by :func:`djinn.connect`; closed by ``with`` or :meth:`close`."""

    def __init__(self, address: _address.Address) -> None:
        self._link = Link(address)
        try:
            self._capabilities = self._link.ask(_asks.capabilities())
        except BaseException:
            self._link.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        told = self._capabilities
        return f"<djinn {told.version} at {self._link.address.target} on {told.device}>"

    def close(self) -> None:
        """Hangs up. Sessions that are kept stay."""
        self._link.close()

    def capabilities(self) -> Capabilities:
        """What the server is and can do."""
        return self._link.ask(_asks.capabilities())

    def models(self) -> list[Model]:
        """Every model that is registered, loaded or not."""
        return [Model(self._link, info) for info in self._infos()]

    def model(self, name: str | None = None) -> Model:
        """A model by name; the first one where none is given."""
        return Model(self._link, _about.pick(self._infos(), name))

    def register(
        self,
        reference: str,
        name: str | None = None,
        *,
        progress: OnProgress | None = None,
        **limits: Unpack[Limits],
    ) -> Model:
        """Loads a model, or finds it loaded.

        ``reference`` is a folder of the server, a hub id, ``shape:NAME`` or ``pushed:HASH``; ``progress``
        is called with a :class:`djinn.Progress` now and then."""
        found = self._link.gather(_asks.register(reference, name, limits, progress))
        return Model(self._link, _asks.only(found))

    def plan(self, reference: str, **limits: Unpack[Limits]) -> Plan:
        """What would stay in memory and what would stream. Loads nothing."""
        return self._link.ask(_asks.plan(reference, limits))

    def unload(self, name: str, *, force: bool = False, forget: bool = False) -> None:
        """Gives a model's memory back; with ``force`` also where sessions would be lost."""
        self._link.ask(_asks.unload(name, force, forget))

    def push(self, model: Any, tokenizer: Any = None, *, name: str | None = None, **rest: Any) -> Model:
        """Sends a checkpoint's folder, or a live model: :func:`djinn.push`."""
        from djinn._push import push

        return push(model, tokenizer, client=self, name=name, **rest)

    def sessions(self, model: str | None = None) -> list[SessionInfo]:
        """Your sessions, or those of one model."""
        return self._link.ask(_asks.sessions(model))

    def session(self, session: str) -> Session:
        """Finds a session again, by its id. It stays when its ``with`` ends."""
        info = self._link.ask(_asks.session(session))
        return Session.found(self._link, info)

    def _infos(self) -> list[ModelInfo]:
        return self._link.ask(_asks.models())
