"""Atomic writes of files, and saved sessions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from djinn import _wire

_PART_BYTES = 512 << 10


class Writing:
    """Writes a file that gets its name only when it is complete."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._beside = self._path.with_name(f"{self._path.name}.part")

    def __enter__(self) -> Callable[[Any], object]:
        self._file = self._beside.open("wb")
        return self._file.write

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        if kind is None:
            self._beside.replace(self._path)
        else:
            self._beside.unlink()


def saved_parts(model: str, path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yields the parts of a saved session."""
    with Path(path).open("rb") as file:
        name = model
        while data := file.read(_PART_BYTES):
            yield _wire.SavedPart(model=name, data=data)
            name = ""
