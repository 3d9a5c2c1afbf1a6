"""Captured activations by hook."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from djinn import _forms, _html, _safetensors, _tensors

if TYPE_CHECKING:
    from djinn._tensors import Array


class Cache(Mapping[str, "Array"]):
    """Activations by hook, as numpy arrays.

    >>> import djinn
    >>> model = djinn.connect().model()
    >>> _, cache = model.run_with_cache("Once upon a time", "blocks.*.hook_resid_post@-1")
    >>> cache["blocks.3.hook_resid_post"].shape
    (1, 256)
    >>> cache["resid_post", 3] is cache["blocks.3.hook_resid_post"]
    True
    >>> cache.stack("resid_post").shape
    (8, 1, 256)
    """

    def __init__(self, arrays: Mapping[str, Array] | None = None) -> None:
        self._arrays: dict[str, Array] = dict(arrays or {})

    def __getitem__(self, name: str | tuple[str, int]) -> Array:
        whole = name if isinstance(name, str) else _forms.hook_name(*name)
        try:
            return self._arrays[whole]
        except KeyError:
            held = ", ".join(self._arrays) or "nothing"
            raise KeyError(f"{whole} was not captured; captured hooks: {held}") from None

    def __contains__(self, name: object) -> bool:
        if isinstance(name, tuple):
            name = _forms.hook_name(*name)
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping):
            return NotImplemented
        return self.keys() == other.keys() and all(np.array_equal(self[n], other[n]) for n in self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        width = max((len(name) for name in self), default=0)
        lines = [f"  {name:{width}}  {described(array)}" for name, array in self.items()]
        return "\n".join([f"Cache of {len(self)} hooks, {size(self.nbytes)}", *lines])

    def _repr_html_(self) -> str:
        rows = [
            (name, described(array), f"{np.linalg.norm(array):.4g}", f"{array.mean():.4g}")
            for name, array in self.items()
        ]
        return _html.table(("hook", "shape", "norm", "mean"), rows, caption=size(self.nbytes))

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(array.nbytes for array in self.values())

    def stack(self, name: str) -> Array:
        """Stacks the captures of one hook over all blocks, in order: ``stack("resid_post")``."""
        pattern = re.compile(re.escape(_forms.hook_name(name, 0)).replace("0", r"(\d+)", 1))
        found = [(int(m[1]), hook) for hook in self if (m := pattern.fullmatch(hook))]
        if not found:
            raise KeyError(f"{name} was not captured in any block")
        return np.stack([self._arrays[hook] for _, hook in sorted(found)])

    def torch(self) -> dict[str, Any]:
        """Converts the arrays to torch tensors that share their memory."""
        return {name: _tensors.to_torch(array) for name, array in self.items()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the arrays to a safetensors file."""
        _safetensors.write(path, self._arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cache:
        """Loads a safetensors file that :meth:`save` or ``djinn trace --out`` wrote."""
        return cls(_safetensors.read(path))

    def joined(self, later: Cache, means: frozenset[str] = frozenset()) -> Cache:
        """Concatenates this cache and a later one along the positions.

        Hooks in ``means`` hold a mean; the later one replaces the earlier."""
        arrays = dict(self._arrays)
        for name, array in later.items():
            is_new = name not in arrays or name in means
            arrays[name] = array if is_new else _after(name, arrays[name], array)
        return Cache(arrays)


def described(array: Array) -> str:
    """Returns shape and dtype as text."""
    return f"{list(array.shape)} {array.dtype}"


def size(count: int) -> str:
    """Formats a number of bytes."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def _after(name: str, first: Array, later: Array) -> Array:
    if not name.endswith("hook_pattern"):
        return np.concatenate([first, later])
    # [head, query, key]: later queries have more keys; earlier ones are padded with zeros.
    keys = max(first.shape[2], later.shape[2])
    padded = [np.pad(a, ((0, 0), (0, 0), (0, keys - a.shape[2]))) for a in (first, later)]
    return np.concatenate(padded, axis=1)
