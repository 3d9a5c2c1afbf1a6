#!/usr/bin/env python3
"""Going on after block L with nothing kept: the prompt goes through blocks 1 to L again.

transformers, all in device memory, sdpa, no KV. What is timed is how long it takes until block
L + 1 can begin.
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
    """The pass came to where it was to end."""


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
    """Milliseconds for the prompt through the first blocks, from its tokens."""

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
                raise RuntimeError(f"the pass did not end behind block {layer}")
            synchronize(device)
        return (time.perf_counter() - began) * 1e3
    finally:
        hook.remove()


if __name__ == "__main__":
    main("recompute", "transformers, recompute", body)
