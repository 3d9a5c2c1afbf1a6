"""Converts arrays to messages and back: raw bytes with dtype and shape.

The parts of a tensor are written into one preallocated array. bf16, which numpy lacks, is widened to float32
without loss.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from djinn import _wire

if TYPE_CHECKING:
    Array: TypeAlias = npt.NDArray[Any]

F32 = _wire.enum("DType", "DTYPE_F32")
F16 = _wire.enum("DType", "DTYPE_F16")
BF16 = _wire.enum("DType", "DTYPE_BF16")

_STORED: dict[int, Any] = {F32: np.dtype("<f4"), F16: np.dtype("<f2"), BF16: np.dtype("<u2")}


def to_wire(values: Any) -> Any:
    """Converts an array, a torch tensor, nested lists or a number to a tensor message."""
    dtype, array = _as_stored(values)
    return _wire.Tensor(dtype=dtype, shape=array.shape, data=array.tobytes())


def as_rows(values: Any) -> Array:
    """Converts numbers of any kind to an array."""
    dtype, array = _as_stored(values)
    return _widened(dtype, array)


def _as_stored(values: Any) -> tuple[int, Array]:
    if is_torch(values):
        return _from_torch(values)
    array = np.asarray(values)
    if array.dtype.name == "bfloat16":
        return BF16, array.view(np.uint16)
    if array.dtype == np.float16:
        return F16, array.astype("<f2", copy=False)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == np.bool_):
        raise TypeError(f"expected numbers, got dtype {array.dtype}")
    return F32, array.astype("<f4", copy=False)


def is_torch(values: Any) -> bool:
    """Whether the value is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(values, torch.Tensor)


def _from_torch(values: Any) -> tuple[int, Array]:
    torch = sys.modules["torch"]
    values = values.detach().cpu()
    if values.dtype == torch.bfloat16:
        return BF16, values.contiguous().view(torch.int16).numpy().view(np.uint16)
    if values.dtype == torch.float16:
        return F16, values.numpy()
    return F32, values.to(torch.float32).numpy()


def to_torch(array: Array) -> Any:
    """Converts an array to a torch tensor that shares its memory."""
    import torch

    return torch.from_numpy(array)


class Assembler:
    """Joins the parts of tensors."""

    def __init__(self) -> None:
        self._name = ""
        self._dtype = 0
        self._array: Array | None = None
        self._bytes = memoryview(b"")
        self._at = 0

    def take(self, part: Any) -> tuple[str, Array] | None:
        """Adds the next part. Returns name and tensor after the last part."""
        if self._array is None:
            self._begin(part)
        data = part.data
        end = self._at + len(data)
        if part.offset != self._at or end > len(self._bytes):
            raise ValueError(f"{self._name!r}: a part starts at byte {part.offset}, expected {self._at}")
        self._bytes[self._at : end] = data
        self._at = end
        return self._finish() if part.last else None

    def _begin(self, part: Any) -> None:
        if part.dtype not in _STORED:
            raise ValueError(f"{part.name!r} has an unknown dtype: {part.dtype}")
        self._name, self._dtype, self._at = part.name, part.dtype, 0
        flat = np.empty(math.prod(part.shape), dtype=_STORED[part.dtype])
        self._bytes = flat.view(np.uint8).data if flat.size else memoryview(bytearray())
        self._array = flat.reshape(tuple(part.shape))

    def _finish(self) -> tuple[str, Array]:
        assert self._array is not None
        if self._at != len(self._bytes):
            raise ValueError(f"{self._name!r} ended after {self._at} of {len(self._bytes)} bytes")
        whole = _widened(self._dtype, self._array)
        self._array, self._bytes = None, memoryview(b"")
        return self._name, whole


def _widened(dtype: int, array: Array) -> Array:
    if dtype != BF16:
        return array
    return np.left_shift(array, 16, dtype="<u4", casting="unsafe")[...].view("<f4")
