"""Properties of a model that both ``Model`` classes share."""

from __future__ import annotations

from djinn import _html
from djinn.cache import size
from djinn.errors import NotFound
from djinn.types import Dims, ModelInfo


class About:
    """Description of a model at the time of the request."""

    def __init__(self, info: ModelInfo) -> None:
        self.info = info

    @property
    def name(self) -> str:
        """Name of the model on the server."""
        return self.info.name

    @property
    def dims(self) -> Dims:
        """Dimensions of the model: ``dims.blocks``, ``dims.d_model``, ``dims.heads``…"""
        return self.info.dims

    def __repr__(self) -> str:
        dims = self.dims
        shape = f"{dims.blocks} blocks of {dims.d_model}, {dims.heads} heads"
        return f"<djinn.Model {self.name}: {self.info.family}, {shape}, {self.info.state}>"

    def _repr_html_(self) -> str:
        info, dims = self.info, self.dims
        return _html.facts(
            f"{info.name} ({info.family}, {info.state})",
            [
                ("blocks", dims.blocks),
                ("d_model, d_mlp", f"{dims.d_model}, {dims.d_mlp}"),
                ("heads", f"{dims.heads} of {dims.d_head}, {dims.kv_heads} of keys and values"),
                ("vocabulary", dims.vocab),
                ("context", dims.context),
                ("memory", size(info.memory.total_bytes)),
                ("routing", info.routing),
            ],
        )


def pick(infos: list[ModelInfo], name: str | None) -> ModelInfo:
    """Returns a model by its name. Default: the first one."""
    found = [info for info in infos if name is None or info.name == name]
    if found:
        return found[0]
    if name is None:
        raise NotFound("the server has no models; register one")
    there = ", ".join(info.name for info in infos) or "none"
    raise NotFound(f"no model '{name}' on this server; registered models: {there}")
