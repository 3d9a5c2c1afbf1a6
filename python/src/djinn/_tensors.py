"""Arrays to messages and back: raw bytes with a dtype and a shape.

What comes in pieces is written into one array that was made for all of them; what is stored as bf16,
which numpy has not, is widened to float32, exactly.
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
    """A tensor message of numbers: an array, a torch tensor, nested lists, or one number."""
    dtype, array = _as_stored(values)
    return _wire.Tensor(dtype=dtype, shape=array.shape, data=array.tobytes())


def as_rows(values: Any) -> Array:
    """Numbers as an array, wherever they come from."""
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
        raise TypeError(f"numbers are needed, and these are {array.dtype}")
    return F32, array.astype("<f4", copy=False)


def is_torch(values: Any) -> bool:
    """Whether these are torch's, without importing it."""
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
    """The same numbers as a torch tensor, which shares the array's memory."""
    import torch

    return torch.from_numpy(array)


class Assembler:
    """Makes tensors of the pieces they come in."""

    def __init__(self) -> None:
        self._name = ""
        self._dtype = 0
        self._array: Array | None = None
        self._bytes = memoryview(b"")
        self._at = 0

    def take(self, part: Any) -> tuple[str, Array] | None:
        """Takes in the next piece; gives the tensor that it was the last of."""
        if self._array is None:
            self._begin(part)
        data = part.data
        end = self._at + len(data)
        if part.offset != self._at or end > len(self._bytes):
            raise ValueError(f"a piece of {self._name!r} at byte {part.offset}, not {self._at}")
        self._bytes[self._at : end] = data
        self._at = end
        return self._finish() if part.last else None

    def _begin(self, part: Any) -> None:
        if part.dtype not in _STORED:
            raise ValueError(f"{part.name!r} has a dtype that is not known: {part.dtype}")
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
