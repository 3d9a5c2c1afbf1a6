"""Arrays in messages, without a server."""

from __future__ import annotations

import numpy as np
import pytest

from djinn import _tensors, _wire, add, clamp
from djinn._tensors import BF16, F16, F32


def parts(array, dtype, sizes):
    """Splits a tensor into parts of these sizes, as a server sends it."""
    data, at = array.tobytes(), 0
    for i, size in enumerate(sizes):
        first = dict(name="h", dtype=dtype, shape=array.shape) if i == 0 else {}
        end = min(at + size, len(data))
        yield _wire.TensorPart(offset=at, data=data[at:end], last=i == len(sizes) - 1, **first)
        at = end


def assembled(pieces):
    assembler = _tensors.Assembler()
    *before, last = [assembler.take(piece) for piece in pieces]
    assert before == [None] * len(before)
    return last


@pytest.mark.parametrize("sizes", [[1 << 20], [4, 1 << 20], [7, 1, 0, 50, 1 << 20]])
def test_parts_are_joined_to_one_array(sizes):
    numbers = np.random.default_rng(0).normal(size=(5, 3, 4))
    for dtype, kind in [(F32, "<f4"), (F16, "<f2")]:
        name, found = assembled(parts(numbers.astype(kind), dtype, sizes))
        assert name == "h" and found.dtype == kind and found.flags.writeable
        assert np.array_equal(found, numbers.astype(kind))


def test_bf16_is_widened_exactly():
    wide = np.array([[1.0, -2.5], [3e38, 1e-40]], dtype="<f4")
    stored = (wide.view("<u4") >> 16).astype("<u2")
    _, found = assembled(parts(stored, BF16, [3, 5]))
    assert found.dtype == np.float32
    assert np.array_equal(found.view("<u4"), stored.astype("<u4") << 16)


@pytest.mark.parametrize("shape", [(), (0, 4), (1,)])
def test_small_shapes(shape):
    array = np.ones(shape, dtype="<f4")
    _, found = assembled(parts(array, F32, [1 << 20]))
    assert found.shape == shape and np.array_equal(found, array)


def test_invalid_parts_are_rejected():
    array = np.arange(6, dtype="<f4")
    first, second = parts(array, F32, [12, 12])
    for pieces in [
        [first, first],
        [second],
        [_wire.TensorPart(name="h", dtype=F32, shape=[2], data=b"12345678", offset=4)],
        [_wire.TensorPart(name="h", dtype=F32, shape=[1], data=b"12345678")],
        [_wire.TensorPart(name="h", dtype=F32, shape=[2], data=b"1234", last=True)],
    ]:
        assembler = _tensors.Assembler()
        with pytest.raises(ValueError):
            for piece in pieces:
                assembler.take(piece)


def test_arrays_are_sent_in_their_dtype():
    for given, dtype, kind in [
        (np.ones((2, 3), "<f4"), F32, "<f4"),
        (np.ones((2, 3), "<f2"), F16, "<f2"),
        (np.ones((2, 3), "<f8"), F32, "<f4"),
        (np.ones((2, 3), ">f4"), F32, "<f4"),
        (np.ones((3, 2), "<f4").T, F32, "<f4"),
        ([[1, 1, 1], [1, 1, 1]], F32, "<f4"),
    ]:
        message = _tensors.to_wire(given)
        assert message.dtype == dtype and list(message.shape) == [2, 3]
        assert message.data == np.ones((2, 3), kind).tobytes()
    with pytest.raises(TypeError):
        _tensors.to_wire(["a"])


def test_edits_are_displayed():
    assert repr(add("h", [1, 2], 0.5, positions=range(2, 4))) == "add 0.5 x float32[2] at h@2..4"
    assert repr(clamp("h", -1, 1, part=[0, 2])) == "clamp -1.0..1.0 at h[0,2]"
    with pytest.raises(ValueError):
        add("h", [1], positions=slice(0, 8, 2))
