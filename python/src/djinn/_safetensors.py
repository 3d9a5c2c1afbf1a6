"""Reads and writes safetensors files: a JSON header, then raw bytes."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from djinn._files import Writing

if TYPE_CHECKING:
    from djinn._tensors import Array

_DTYPES: dict[str, str] = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "<i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "<u1",
    "BOOL": "?",
}


@dataclass(frozen=True)
class Entry:
    """Tensor of a file to write."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * np.dtype(_DTYPES[self.dtype]).itemsize


def header(entries: list[Entry]) -> bytes:
    """Returns the header of a file with these tensors in order."""
    described: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for entry in entries:
        ends = [at, at + entry.bytes]
        described[entry.name] = {
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "data_offsets": ends,
        }
        at = ends[1]
    text = json.dumps(described, separators=(",", ":")).encode()
    # Aligns tensors to eight bytes, so that they can be memory-mapped.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write(path: str | os.PathLike[str], tensors: Mapping[str, Array]) -> None:
    """Writes arrays to a file atomically."""
    names = {np.dtype(stored): name for name, stored in _DTYPES.items() if name != "BF16"}
    stored = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    entries = [Entry(name, names[a.dtype.newbyteorder("<")], a.shape) for name, a in stored.items()]
    with Writing(path) as put:
        put(header(entries))
        for array in stored.values():
            put(array.astype(array.dtype.newbyteorder("<"), copy=False).data)


def read(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Reads the tensors of a file; bf16 is widened to float32."""
    whole = np.fromfile(path, dtype=np.uint8)
    length = int.from_bytes(whole[:8].tobytes(), "little")
    described = json.loads(whole[8 : 8 + length].tobytes())
    data = whole[8 + length :]
    described.pop("__metadata__", None)
    return {name: _tensor(data, entry) for name, entry in described.items()}


def _tensor(data: Array, entry: dict[str, Any]) -> Array:
    start, end = entry["data_offsets"]
    # Copies, since a tensor may be unaligned.
    array = np.frombuffer(data[start:end].tobytes(), dtype=_DTYPES[entry["dtype"]])
    if entry["dtype"] == "BF16":
        array = (array.astype("<u4") << 16).view("<f4")
    return array.reshape(entry["shape"])
