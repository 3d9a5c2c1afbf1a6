"""Pushes models to a server: a checkpoint folder, or a live transformers model."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from djinn import _asks, _checkpoint
from djinn._parcel import WAITS_S, Parcel
from djinn.client import Client, connect
from djinn.errors import Unavailable, WrongState
from djinn.model import Model
from djinn.types import Limits, OnProgress

if TYPE_CHECKING:
    from typing_extensions import Unpack


def push(
    model: Any,
    tokenizer: Any = None,
    *,
    client: Client | None = None,
    name: str | None = None,
    progress: OnProgress | None = None,
    **limits: Unpack[Limits],
) -> Model:
    """Pushes a model to a server and registers it.

    ``model`` is a checkpoint folder or a live transformers model, ``tokenizer`` its tokenizer. Files that
    the server has are not sent again, and an interrupted push resumes. Nothing is pickled: the server
    receives JSON and safetensors.

    >>> import djinn
    >>> client = djinn.connect()
    >>> def show(progress):
    ...     if progress.stage == "send" and progress.done_bytes == progress.total_bytes:
    ...         print(progress.total_bytes, "bytes sent")
    >>> model = djinn.push("models/stories-7m", client=client, progress=show)  # doctest: +SKIP
    14790324 bytes sent
    """
    client = client or connect()
    default, sources = _checkpoint.sources(model, tokenizer)
    parcel = Parcel(sources, progress)
    link = client._link
    for wait_s in WAITS_S:
        try:
            offered = link.ask(_asks.offer(parcel.offer))
            if offered.complete:
                break
            link.send("Models.Push", parcel.parts(offered))
        except (Unavailable, WrongState):
            if wait_s is None:
                raise
            time.sleep(wait_s)
    return client.register(f"pushed:{offered.push}", name or default, progress=progress, **limits)
