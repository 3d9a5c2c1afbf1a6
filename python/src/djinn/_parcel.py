"""Files of a push: their bytes, their hashes, and the parts they are sent in."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import blake3

from djinn import _wire
from djinn.types import OnProgress, Progress

PART_BYTES = 512 << 10
"""Bytes of a part; fastest over loopback."""

WAITS_S: tuple[float | None, ...] = (0.2, 0.4, 0.8, 1.6, None)
"""Seconds to wait before each retry of an interrupted push; ``None`` ends the retries."""


class Source(Protocol):
    """File to push, from any source."""

    name: str
    bytes: int

    def views(self, offset: int) -> Iterator[memoryview]:
        """Yields the bytes from ``offset`` on, in pieces of any size."""
        ...


class FolderFile:
    """File in a folder."""

    def __init__(self, path: Path) -> None:
        self.name = path.name
        self.bytes = path.stat().st_size
        self._path = path

    def views(self, offset: int) -> Iterator[memoryview]:
        if offset >= self.bytes:
            return
        with self._path.open("rb") as file:
            whole = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(whole, "madvise"):
            whole.madvise(mmap.MADV_SEQUENTIAL)
        yield memoryview(whole)[offset:]


class MadeFile:
    """File that is assembled from pieces in memory when it is read."""

    def __init__(self, name: str, pieces: Sequence[tuple[int, Callable[[], Any]]]) -> None:
        self.name = name
        self.bytes = sum(length for length, _ in pieces)
        self._pieces = pieces

    @classmethod
    def of(cls, name: str, data: bytes) -> MadeFile:
        """Creates a file from bytes."""
        return cls(name, [(len(data), lambda: data)])

    def views(self, offset: int) -> Iterator[memoryview]:
        for length, make in self._pieces:
            if offset < length:
                yield memoryview(make()).cast("B")[offset:]
            offset = max(0, offset - length)


class Parcel:
    """Files of a model with their hashes."""

    def __init__(self, sources: Sequence[Source], progress: OnProgress | None = None) -> None:
        self._sources = sources
        self._progress = progress if progress is not None else lambda _: None
        self.offer = _wire.OfferRequest(files=list(self._hashed()))

    def _hashed(self) -> Iterator[Any]:
        done, total = 0, sum(source.bytes for source in self._sources)
        for source in self._sources:
            digest = blake3.blake3(max_threads=blake3.blake3.AUTO)
            for view in source.views(0):
                digest.update(view)
            done += source.bytes
            self._progress(Progress("hash", done, total))
            yield _wire.PushFile(name=source.name, bytes=source.bytes, hash=digest.digest())

    def parts(self, offered: Any) -> Iterator[bytes]:
        """Yields the parts that the server is missing, in order."""
        here = list(offered.have)
        sent, total = 0, sum(s.bytes - have for s, have in zip(self._sources, here, strict=True))
        self._progress(Progress("send", 0, total))
        for file, (source, have) in enumerate(zip(self._sources, here, strict=True)):
            at = have
            for view in source.views(have):
                for start in range(0, len(view), PART_BYTES):
                    data = view[start : start + PART_BYTES]
                    yield _part(offered.push, file, at, data)
                    at += len(data)
                    sent += len(data)
                    self._progress(Progress("send", sent, total))


_DATA = bytes([_wire.PushPart.DESCRIPTOR.fields_by_name["data"].number << 3 | 2])


def _part(push: str, file: int, offset: int, data: memoryview) -> bytes:
    """Serializes a PushPart with one copy of its data; the message class makes two."""
    head = _wire.PushPart(push=push, file=file, offset=offset).SerializeToString()
    return b"".join((head, _DATA, _varint(len(data)), data))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)
