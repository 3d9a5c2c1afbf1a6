#!/usr/bin/env python3
"""transformers with the device map of accelerate: modules that do not fit the budget are offloaded.

On a GPU, offloaded modules are in host memory, pinned if the tuning of the job says so, and are
copied to the device when they are used. On a CPU they are in files.
"""

from __future__ import annotations

import tempfile
from typing import Any

from common import (
    MB,
    Memory,
    Report,
    fill,
    generation,
    hollow_model,
    kv_bytes_per_token,
    limit_allocator,
    load_model,
    main,
    need,
    plain_step,
    say,
    settle_torch,
    tuning,
    versions,
    weight_bytes,
)

# Fragmentation: blocks that the allocator cannot reuse because of their size.
FRAGMENTS = 256 * MB
PIN_FROM = 1 << 20


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    torch = settle_torch(job, report)
    accelerate = need("accelerate")
    need("transformers")
    report.program = f"{versions('accelerate', 'transformers', 'torch')}, device_map"
    limit = limit_allocator(job, report, memory)
    with tempfile.TemporaryDirectory(dir=(job.get("settings") or {}).get("scratch")) as scratch:
        model, size = dispatched(job, report, torch, accelerate, limit, scratch)
        generation(job, report, memory, plain_step(model), size)


def dispatched(
    job: dict[str, Any],
    report: Report,
    torch: Any,
    accelerate: Any,
    limit: float | None,
    scratch: str,
) -> tuple[Any, int]:
    """Returns the model, distributed by its device map, and its size in bytes."""
    cuda = job["device"].startswith("cuda")
    hollow = hollow_model(job)
    size = weight_bytes(hollow)
    places = device_map(job, report, accelerate, hollow, limit)
    if job["model"].get("folder"):
        model = load_model(job, "cpu")
    else:
        model = hollow
        fill(model, lambda name: "cpu" if place(places, name) == "disk" else place(places, name))
    pinned = 0
    if cuda and tuning(job, "pin_weights") is not False:
        pinned = pin(torch, model, places)
    away = "cpu" if cuda else "disk"
    report.settings.update(
        attention="sdpa",
        offload_buffers=False,
        offload_to="host memory" if cuda else "files",
        pinned_mb=round(pinned / MB),
        modules_on_device=sum(1 for where in places.values() if where != away),
        modules_offloaded=sum(1 for where in places.values() if where == away),
        offloaded_mb=round(offloaded(model, places, away) / MB),
    )
    model = accelerate.dispatch_model(
        model,
        device_map=places,
        offload_dir=scratch,
        offload_buffers=False,
        skip_keys=model._skip_keys_device_placement,
    )
    return model, size


def device_map(
    job: dict[str, Any], report: Report, accelerate: Any, model: Any, limit: float | None
) -> dict[str, Any]:
    """Returns accelerate's device map for the budget without KV cache and activations."""
    cuda = job["device"].startswith("cuda")
    index = int(job["device"].partition(":")[2] or 0)
    inside = index if cuda else "cpu"
    if limit is None:
        return {"": inside}
    no_split = list(model._no_split_modules or [])
    report.settings["no_split_module_classes"] = sorted(no_split)
    room = limit
    if cuda:
        # accelerate reserves memory for the largest block, but copies one module at a time.
        room += largest_block(model, no_split) - 2 * largest(model)
        room -= working_bytes(job, model) + FRAGMENTS
    room = max(0, int(room))
    most = {inside: room, "cpu": 1 << 50} if cuda else {inside: room, "disk": 1 << 50}
    report.settings["max_memory_mb"] = round(room / MB)
    places = accelerate.infer_auto_device_map(
        model, max_memory=most, no_split_module_classes=no_split, offload_buffers=False
    )
    return dict(places)


def working_bytes(job: dict[str, Any], model: Any) -> int:
    """Returns the memory of the KV cache and of the activations of a prompt, in bytes."""
    config = job["model"]["config"]
    tokens = len(job["prompt"]) + int(job["generate"])
    hidden = config.get("hidden_size") or config.get("n_embd")
    inner = config.get("intermediate_size") or 4 * hidden
    element = 4 if job["model"]["dtype"] == "float32" else 2
    activations = len(job["prompt"]) * (8 * hidden + 3 * inner) * element
    return kv_bytes_per_token(job) * tokens + activations + 16 * model.config.vocab_size


def largest(model: Any) -> int:
    return max(p.numel() * p.element_size() for p in model.parameters())


def largest_block(model: Any, classes: list[str]) -> int:
    sizes = [weight_bytes(m) for m in model.modules() if type(m).__name__ in classes]
    return max(sizes, default=0)


def place(places: dict[str, Any], name: str) -> Any:
    """Returns the device of a parameter: that of the longest prefix of its name in the map."""
    while name not in places and name:
        name = name.rpartition(".")[0]
    return places[name]


def offloaded(model: Any, places: dict[str, Any], away: str) -> int:
    return sum(
        p.numel() * p.element_size()
        for name, p in model.named_parameters()
        if place(places, name) == away
    )


def pin(torch: Any, model: Any, places: dict[str, Any]) -> int:
    """Pins offloaded weights in place, because a pinned copy would be larger."""
    bytes_pinned = 0
    for name, parameter in model.named_parameters():
        size = parameter.numel() * parameter.element_size()
        if place(places, name) != "cpu" or size < PIN_FROM:
            continue
        try:
            error = torch.cuda.cudart().cudaHostRegister(parameter.data_ptr(), size, 0)
            failed = int(error) != 0
        except RuntimeError as refused:
            failed, error = True, refused
        if failed or not parameter.data.is_pinned():
            say(f"{name} cannot be pinned in place and is copied: {error}")
            parameter.data = parameter.data.pin_memory()
        bytes_pinned += size
    return bytes_pinned


if __name__ == "__main__":
    main("hf_accelerate", "accelerate, device_map", body)
