#!/usr/bin/env python3
"""transformers with the whole model in device memory, without a budget: its fastest configuration.

Attention uses sdpa. If the tuning of the job enables cuda_graphs or torch_compile, decode steps use
a static cache and are captured and replayed, compiled, or both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from common import (
    Memory,
    Report,
    generation,
    greedy,
    load_model,
    main,
    need,
    plain_step,
    settle_torch,
    tuning,
    versions,
    weight_bytes,
)

Step = Callable[[Any, Any], tuple[Any, Any]]


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    settle_torch(job, report)
    transformers = need("transformers")
    report.program = f"{versions('transformers', 'torch')}, all in device memory"
    report.settings.update(
        attention="sdpa",
        budget_mb=None,
        budget_note="not applied: this baseline shows the speed with all weights in device memory",
    )
    model = load_model(job, job["device"])
    step, new_cache = plain_step(model), no_cache
    graphs = bool(tuning(job, "cuda_graphs")) and memory.cuda
    compiled = bool(tuning(job, "torch_compile"))
    cache = "static" if graphs or compiled else "dynamic"
    report.settings.update(torch_compile=compiled, cuda_graphs=graphs, cache=cache)
    if graphs or compiled:
        fast = compiled_step(model, graphs) if compiled else Captured(model)
        step, new_cache = over_a_static_cache(job, model, transformers, fast)
        if not compiled:
            check_replayed(job, plain_step(model), step, new_cache)
    generation(job, report, memory, step, weight_bytes(model), new_cache)


def no_cache() -> None:
    return None


def compiled_step(model: Any, graphs: bool) -> Step:
    torch = need("torch")
    mode = "reduce-overhead" if graphs else "default"
    fast = torch.compile(model.forward, mode=mode, dynamic=False)

    def step(ids: Any, cache: Any) -> tuple[Any, Any]:
        torch.compiler.cudagraph_mark_step_begin()
        out = fast(input_ids=ids, past_key_values=cache, use_cache=True)
        return out.logits, cache

    return step


class Captured:
    """A decode step as a CUDA graph, captured on first use."""

    def __init__(self, model: Any) -> None:
        self.plain = plain_step(model)
        self.graph: Any = None

    def __call__(self, ids: Any, cache: Any) -> tuple[Any, Any]:
        if self.graph is None:
            return self.capture(ids, cache)
        self.ids.copy_(ids)
        self.graph.replay()
        return self.logits, cache

    def capture(self, ids: Any, cache: Any) -> tuple[Any, Any]:
        """Runs the step on a side stream, as capturing requires, then captures the graph."""
        torch = need("torch")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = self.plain(ids, cache)
        torch.cuda.current_stream().wait_stream(side)
        self.ids, graph = ids.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.logits, _ = self.plain(self.ids, cache)
        self.graph = graph
        return found


def over_a_static_cache(
    job: dict[str, Any], model: Any, transformers: Any, fast: Step
) -> tuple[Step, Callable[[], Any]]:
    """Returns a step that runs the prompt eagerly and decodes with `fast` on a static cache."""
    torch = need("torch")
    length = len(job["prompt"]) + int(job["generate"])
    cache = transformers.StaticCache(config=model.config, max_cache_len=length)
    eager = plain_step(model)

    def step(ids: Any, cache: Any) -> tuple[Any, Any]:
        return eager(ids, cache) if ids.shape[1] > 1 else fast(ids, cache)

    def new_cache() -> Any:
        with torch.inference_mode():
            cache.reset()
        return cache

    return step, new_cache


def check_replayed(
    job: dict[str, Any], plain: Step, replayed: Step, new_cache: Callable[[], Any]
) -> None:
    """Checks that replayed steps generate the same tokens as eager steps."""
    prompt = need("torch").tensor([job["prompt"]], device=job["device"])
    found = [greedy(step, prompt, int(job["generate"]), new_cache()) for step in (plain, replayed)]
    if found[0].tokens != found[1].tokens:
        raise RuntimeError(
            f"replayed steps generate {found[1].tokens}, eager steps {found[0].tokens}"
        )


if __name__ == "__main__":
    main("transformers_vram", "transformers, all in device memory", body)
