#!/usr/bin/env python3
"""Resumes after block L without saved state: blocks 1 to L are computed again from the prompt.

Uses transformers with all weights in device memory, sdpa and no KV cache. The script measures the
time until block L + 1 can begin.
"""

from __future__ import annotations

import time
from typing import Any

from common import (
    Memory,
    Report,
    blocks_of,
    limit_where_weights_fit,
    load_model,
    main,
    measure,
    need,
    settle_torch,
    synchronize,
    versions,
)


class Reached(Exception):
    """The pass reached its last block."""


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    torch = settle_torch(job, report)
    need("transformers")
    report.program = f"{versions('transformers', 'torch')}, recompute"
    limit_where_weights_fit(job, report, memory)
    report.settings.update(attention="sdpa", kept="nothing", weights_in="device memory")
    model = load_model(job, job["device"])
    blocks = blocks_of(model)
    layers = [layer for layer in job["layers"] if 1 <= layer <= len(blocks)]
    report.settings["layers"] = layers
    prompt = torch.tensor([job["prompt"]], device=job["device"])

    def once() -> dict[str, Any]:
        points = []
        for layer in layers:
            ms = through(torch, model, blocks, layer, prompt, job["device"])
            points.append({"series": "resume", "x": layer, "ms": ms})
        return {"total_time_ms": sum(point["ms"] for point in points), "points": points}

    first = measure(job, report, memory, once)
    report.memory = memory.curve(first)


def through(torch: Any, model: Any, blocks: Any, layer: int, prompt: Any, device: str) -> float:
    """Returns the time for the prompt through the first blocks, in milliseconds."""

    def end(_module: Any, _inputs: Any, _output: Any) -> None:
        raise Reached

    hook = blocks[layer - 1].register_forward_hook(end)
    try:
        synchronize(device)
        began = time.perf_counter()
        with torch.inference_mode():
            try:
                model(input_ids=prompt, use_cache=False)
            except Reached:
                pass
            else:
                raise RuntimeError(f"the pass did not end after block {layer}")
            synchronize(device)
        return (time.perf_counter() - began) * 1e3
    finally:
        hook.remove()


if __name__ == "__main__":
    main("recompute", "transformers, recompute", body)
