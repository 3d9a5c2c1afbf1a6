"""Connection to a server, for ``asyncio``."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from djinn import _about, _address, _asks, _checkpoint
from djinn._parcel import WAITS_S, Parcel
from djinn.aio._link import Link
from djinn.aio.model import Model
from djinn.aio.session import Session
from djinn.errors import Unavailable, WrongState
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
) -> Connecting:
    """Connects to a server like :func:`djinn.connect`. Use ``await`` or ``async with``."""
    return Connecting(_address.settle(address, key, tls, ca, cert, timeout))


class Connecting:
    """Pending connection."""

    def __init__(self, address: _address.Address) -> None:
        self._address = address
        self._client: Client | None = None

    def __await__(self) -> Generator[Any, None, Client]:
        return self._connected().__await__()

    async def __aenter__(self) -> Client:
        self._client = await self
        return self._client

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def _connected(self) -> Client:
        link = Link(self._address)
        try:
            return Client(link, await link.ask(_asks.capabilities()))
        except BaseException:
            await link.close()
            raise


class Client:
    """Connection to a server, created by :func:`djinn.aio.connect`."""

    def __init__(self, link: Link, capabilities: Capabilities) -> None:
        self._link = link
        self._capabilities = capabilities

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        about = self._capabilities
        return f"<djinn {about.version} at {self._link.address.target} on {about.device}>"

    async def close(self) -> None:
        """Closes the connection. Kept sessions stay open on the server."""
        await self._link.close()

    async def capabilities(self) -> Capabilities:
        """Returns the server's version, device and limits."""
        return await self._link.ask(_asks.capabilities())

    async def models(self) -> list[Model]:
        """Lists all registered models, loaded or not."""
        return [Model(self._link, info) for info in await self._infos()]

    async def model(self, name: str | None = None) -> Model:
        """Returns a model by its name. Default: the server's first model."""
        return Model(self._link, _about.pick(await self._infos(), name))

    async def register(
        self,
        reference: str,
        name: str | None = None,
        *,
        progress: OnProgress | None = None,
        **limits: Unpack[Limits],
    ) -> Model:
        """Registers and loads a model, like :meth:`djinn.Client.register`."""
        found = await self._link.gather(_asks.register(reference, name, limits, progress))
        return Model(self._link, _asks.only(found))

    async def plan(self, reference: str, **limits: Unpack[Limits]) -> Plan:
        """Plans which weights stay resident and which stream, without loading the model."""
        return await self._link.ask(_asks.plan(reference, limits))

    async def unload(self, name: str, *, force: bool = False, forget: bool = False) -> None:
        """Unloads a model. ``force`` unloads it even if open sessions are lost; ``forget`` also removes it
        from the server's list."""
        await self._link.ask(_asks.unload(name, force, forget))

    async def push(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        name: str | None = None,
        progress: OnProgress | None = None,
        **limits: Unpack[Limits],
    ) -> Model:
        """Pushes a checkpoint folder or a live model and registers it, like :func:`djinn.push`."""
        default, sources = _checkpoint.sources(model, tokenizer)
        parcel = await asyncio.to_thread(Parcel, sources, progress)
        for wait_s in WAITS_S:
            try:
                offered = await self._link.ask(_asks.offer(parcel.offer))
                if offered.complete:
                    break
                await self._link.send("Models.Push", parcel.parts(offered))
            except (Unavailable, WrongState):
                if wait_s is None:
                    raise
                await asyncio.sleep(wait_s)
        return await self.register(f"pushed:{offered.push}", name or default, progress=progress, **limits)

    async def sessions(self, model: str | None = None) -> list[SessionInfo]:
        """Lists your sessions, of all models or of one."""
        return await self._link.ask(_asks.sessions(model))

    async def session(self, session: str) -> Session:
        """Returns a session by its id. The end of its ``async with`` does not close the session."""
        return Session.found(self._link, await self._link.ask(_asks.session(session)))

    async def _infos(self) -> list[ModelInfo]:
        return await self._link.ask(_asks.models())
