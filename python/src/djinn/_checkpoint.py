"""Files of a checkpoint: from a folder, or generated from a live model."""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from djinn._parcel import FolderFile, MadeFile, Source
from djinn._safetensors import Entry, header

_DTYPES = {"torch.float32": "F32", "torch.float16": "F16", "torch.bfloat16": "BF16"}


def sources(model: Any, tokenizer: Any = None) -> tuple[str, list[Source]]:
    """Returns a name for a model, and its files."""
    if isinstance(model, (str, os.PathLike)):
        folder = Path(model).resolve()
        return folder.name, list(_folder(folder))
    if hasattr(model, "state_dict") and hasattr(model, "config"):
        return _name(model), [*_settings(model), _weights(model), *_texts(tokenizer)]
    raise TypeError(f"expected a checkpoint folder or a transformers model, not {type(model).__name__}")


def _folder(folder: Path) -> Iterator[Source]:
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(f"{folder} is not a checkpoint: config.json is missing")
    weights = _weight_files(folder)
    if not weights:
        raise FileNotFoundError(f"{folder} is not a checkpoint: it contains no .safetensors file")
    texts = sorted(p for p in folder.iterdir() if p.suffix in (".json", ".jinja", ".txt", ".model"))
    for path in [*texts, *weights]:
        if path.is_file() and path.stat().st_size:
            yield FolderFile(path)


def _weight_files(folder: Path) -> list[Path]:
    """Weight files: the shards of the index, the single file, or all .safetensors files."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        named = json.loads(index.read_text())["weight_map"].values()
        return [folder / name for name in sorted(set(named))]
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))


def _name(model: Any) -> str:
    path = getattr(model.config, "_name_or_path", "") or getattr(model, "name_or_path", "")
    return Path(path).name or type(model).__name__


def _settings(model: Any) -> Iterator[Source]:
    config = model.config.to_dict()
    config["architectures"] = [type(model).__name__]
    config["dtype"] = str(model.dtype).removeprefix("torch.")
    yield MadeFile.of("config.json", _json(config))
    generation = getattr(model, "generation_config", None)
    if generation is not None:
        yield MadeFile.of("generation_config.json", _json(generation.to_diff_dict()))


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, default=str).encode()


def _texts(tokenizer: Any) -> Iterator[Source]:
    if tokenizer is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for path in sorted(Path(folder).iterdir()):
            yield MadeFile.of(path.name, path.read_bytes())


def _weights(model: Any) -> Source:
    tensors = list(_tensors(model))
    entries = [Entry(name, _dtype(name, t), tuple(t.shape)) for name, t in tensors]
    head = header(entries)
    pieces: list[tuple[int, Callable[[], Any]]] = [(len(head), lambda: head)]
    for entry, (_, tensor) in zip(entries, tensors, strict=True):
        pieces.append((entry.bytes, partial(_bytes, tensor)))
    return MadeFile("model.safetensors", pieces)


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields the weights that a checkpoint stores: tied weights once."""
    stored = _as_stored(model)
    tied = getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or ()
    places = Counter(_place(tensor) for tensor in stored.values())
    for name, tensor in stored.items():
        if name not in tied or places[_place(tensor)] == 1:
            yield name, tensor


def _place(tensor: Any) -> tuple[Any, ...]:
    return (str(tensor.device), tensor.data_ptr(), tuple(tensor.shape), tensor.stride())


def _as_stored(model: Any) -> dict[str, Any]:
    """Returns the state dict under the names of the checkpoint, which transformers may have changed."""
    state: dict[str, Any] = model.state_dict()
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:
        return state
    return dict(revert_weight_conversion(model, state))


def _dtype(name: str, tensor: Any) -> str:
    try:
        return _DTYPES[str(tensor.dtype)]
    except KeyError:
        allowed = "float32, float16 and bfloat16"
        raise TypeError(f"{name} has dtype {tensor.dtype}, but only {allowed} can be pushed") from None


def _bytes(tensor: Any) -> Any:
    """Returns the bytes of a tensor as a numpy array. Copies only from a GPU or a non-contiguous tensor."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
