#!/usr/bin/env python3
"""Resumes after block L with the KV cache and the residual in pinned host memory.

The script copies the KV cache of all layers and the residual after block L to host memory. It
measures the time until all of it is back on the device and block L + 1 can begin, and compares the
restored tensors with the originals.
"""

from __future__ import annotations

import time
from typing import Any

from common import (
    MB,
    Memory,
    Report,
    blocks_of,
    cache_tensors,
    limit_where_weights_fit,
    load_model,
    main,
    measure,
    need,
    plain_step,
    settle_torch,
    synchronize,
    tensor_bytes,
    versions,
)


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    torch = settle_torch(job, report)
    need("transformers")
    report.program = f"{versions('transformers', 'torch')}, manual offload"
    limit_where_weights_fit(job, report, memory)
    model = load_model(job, job["device"])
    blocks = blocks_of(model)
    layers = [layer for layer in job["layers"] if 1 <= layer <= len(blocks)]
    prompt = torch.tensor([job["prompt"]], device=job["device"])
    cache, residuals = prefilled(torch, model, blocks, layers, prompt)
    cuda = job["device"].startswith("cuda")
    kv = park(torch, cache, cuda)
    parked = {layer: [*kv, *park(torch, [residuals[layer]], cuda)] for layer in layers}
    report.settings.update(
        attention="sdpa",
        layers=layers,
        parked="KV of all layers and the residual, in pinned host memory" if cuda else "in memory",
        parked_mb=round(tensor_bytes(parked[layers[0]]) / MB, 1) if layers else 0,
        copies="one stream, non_blocking, one for each tensor",
    )

    def once() -> dict[str, Any]:
        points = []
        for layer in layers:
            ms, back = resumed(torch, parked[layer], job["device"])
            left = [*cache, residuals[layer]]
            if not all(torch.equal(a, b) for a, b in zip(back, left, strict=True)):
                raise RuntimeError(f"tensors restored at block {layer} differ from the originals")
            points.append({"series": "resume", "x": layer, "ms": ms})
        return {"total_time_ms": sum(point["ms"] for point in points), "points": points}

    first = measure(job, report, memory, once)
    report.memory = memory.curve(first)


def prefilled(
    torch: Any, model: Any, blocks: Any, layers: list[int], prompt: Any
) -> tuple[list[Any], dict[int, Any]]:
    """Returns keys and values of the prompt, and the residual after each of `layers`."""
    residuals: dict[int, Any] = {}

    def keep(layer: int) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            residual = output[0] if isinstance(output, tuple) else output
            residuals[layer] = residual.clone()

        return hook

    hooks = [blocks[layer - 1].register_forward_hook(keep(layer)) for layer in layers]
    with torch.inference_mode():
        _, cache = plain_step(model)(prompt, None)
    for hook in hooks:
        hook.remove()
    return cache_tensors(cache), residuals


def park(torch: Any, tensors: list[Any], cuda: bool) -> list[Any]:
    """Copies tensors to host memory, pinned for a GPU."""
    parked = []
    with torch.inference_mode():
        for tensor in tensors:
            host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=cuda)
            parked.append(host.copy_(tensor))
    return parked


def resumed(torch: Any, parked: list[Any], device: str) -> tuple[float, list[Any]]:
    """Copies the tensors to the device; returns the time in milliseconds and the copies."""
    with torch.inference_mode():
        synchronize(device)
        began = time.perf_counter()
        back = [tensor.to(device, non_blocking=True, copy=True) for tensor in parked]
        synchronize(device)
        return (time.perf_counter() - began) * 1e3, back


if __name__ == "__main__":
    main("manual_offload", "transformers, manual offload", body)
