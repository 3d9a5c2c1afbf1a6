#!/usr/bin/env python3
"""transformers with the whole model in device memory, whatever the budget: it at its fastest.

Attention is sdpa's. Where the job's tuning asks for torch_compile or cuda_graphs, steps behind the
prompt are compiled over a static cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import (
    Memory,
    Report,
    generation,
    load_model,
    main,
    need,
    plain_step,
    settle_torch,
    tuning,
    versions,
    weight_bytes,
)


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    settle_torch(job, report)
    transformers = need("transformers")
    report.program = f"{versions('transformers', 'torch')}, all in device memory"
    report.settings.update(
        attention="sdpa",
        budget_mb=None,
        budget_note="ignored: this is what it does where everything fits",
    )
    model = load_model(job, job["device"])
    step, new_cache = plain_step(model), no_cache
    if tuning(job, "torch_compile") or tuning(job, "cuda_graphs"):
        step, new_cache = compiled_step(job, report, model, transformers)
    else:
        report.settings.update(torch_compile=False, cuda_graphs=False, cache="dynamic")
    generation(job, report, memory, step, weight_bytes(model), new_cache)


def no_cache() -> None:
    return None


def compiled_step(
    job: dict[str, Any], report: Report, model: Any, transformers: Any
) -> tuple[Callable[[Any, Any], tuple[Any, Any]], Callable[[], Any]]:
    """The prompt as it is, then compiled steps of one token over a cache that stays in place."""
    torch = need("torch")
    graphs = bool(tuning(job, "cuda_graphs")) and job["device"].startswith("cuda")
    report.settings.update(torch_compile=True, cuda_graphs=graphs, cache="static")
    length = len(job["prompt"]) + int(job["generate"])
    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    eager = plain_step(model)
    mode = "reduce-overhead" if graphs else "default"
    fast = torch.compile(model.forward, mode=mode, dynamic=False)

    def step(ids: Any, cache: Any) -> tuple[Any, Any]:
        if ids.shape[1] > 1:
            return eager(ids, cache)
        torch.compiler.cudagraph_mark_step_begin()
        out = fast(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.logits, cache

    def new_cache() -> Any:
        with torch.inference_mode():
            cache.reset()
        return cache

    return step, new_cache


if __name__ == "__main__":
    main("transformers_vram", "transformers, all in device memory", body)
