"""Connection to a server."""

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

    ``address`` is ``HOST:PORT``, or ``https://HOST:PORT`` for TLS. Default: the environment variable
    ``DJINN_SERVER`` or ``GENIE_SERVER_ADDRESS``, or ``127.0.0.1:5556``. ``key`` is the API key. Default:
    ``DJINN_KEY``. ``ca`` is the CA certificate of the server, ``cert`` the client's certificate and private
    key if the server requires them; each is a file or bytes. ``timeout`` is the time limit of a reply in
    seconds; calls that run a model have none.

    >>> import djinn
    >>> client = djinn.connect()
    >>> client.model().generate("Once upon a time", max_tokens=4, temperature=0).text
    ', there was a'
    """
    return Client(_address.settle(address, key, tls, ca, cert, timeout))


class Client:
    """Connection to a server, created by :func:`djinn.connect`. ``with`` or :meth:`close` closes it."""

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
        about = self._capabilities
        return f"<djinn {about.version} at {self._link.address.target} on {about.device}>"

    def close(self) -> None:
        """Closes the connection. Kept sessions stay open on the server."""
        self._link.close()

    def capabilities(self) -> Capabilities:
        """Returns the server's version, device and limits."""
        return self._link.ask(_asks.capabilities())

    def models(self) -> list[Model]:
        """Lists all registered models, loaded or not."""
        return [Model(self._link, info) for info in self._infos()]

    def model(self, name: str | None = None) -> Model:
        """Returns a model by its name. Default: the server's first model."""
        return Model(self._link, _about.pick(self._infos(), name))

    def register(
        self,
        reference: str,
        name: str | None = None,
        *,
        progress: OnProgress | None = None,
        **limits: Unpack[Limits],
    ) -> Model:
        """Registers and loads a model.

        ``reference`` is a folder of the server, a hub id, ``shape:NAME`` or ``pushed:HASH``. ``progress``
        is called with a :class:`djinn.Progress` while the model loads."""
        found = self._link.gather(_asks.register(reference, name, limits, progress))
        return Model(self._link, _asks.only(found))

    def plan(self, reference: str, **limits: Unpack[Limits]) -> Plan:
        """Plans which weights stay resident and which stream, without loading the model."""
        return self._link.ask(_asks.plan(reference, limits))

    def unload(self, name: str, *, force: bool = False, forget: bool = False) -> None:
        """Unloads a model. ``force`` unloads it even if open sessions are lost; ``forget`` also removes it
        from the server's list."""
        self._link.ask(_asks.unload(name, force, forget))

    def push(self, model: Any, tokenizer: Any = None, *, name: str | None = None, **rest: Any) -> Model:
        """Pushes a checkpoint folder or a live model to the server; see :func:`djinn.push`."""
        from djinn._push import push

        return push(model, tokenizer, client=self, name=name, **rest)

    def sessions(self, model: str | None = None) -> list[SessionInfo]:
        """Lists your sessions, of all models or of one."""
        return self._link.ask(_asks.sessions(model))

    def session(self, session: str) -> Session:
        """Returns a session by its id. The end of its ``with`` does not close the session."""
        info = self._link.ask(_asks.session(session))
        return Session.found(self._link, info)

    def _infos(self) -> list[ModelInfo]:
        return self._link.ask(_asks.models())
