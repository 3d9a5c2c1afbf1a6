#!/usr/bin/env python3
"""DeepSpeed's ZeRO-Inference: stage 3, parameters in pinned host memory, one process, no launcher.

Weights that fit the budget stay on the device (the model's persistence threshold); DeepSpeed
fetches the others ahead of their use. The budget covers both. After running out of memory, the
script tries again with fewer weights on the device. Every attempt is a separate process, because
DeepSpeed keeps state that would disturb the next attempt.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import (
    MB,
    Absent,
    Memory,
    Report,
    generation,
    kv_bytes_per_token,
    limit_allocator,
    load_model,
    main,
    need,
    need_found,
    plain_step,
    say,
    settle_torch,
    tuning,
    versions,
    weight_bytes,
)

# Fragmentation of the allocator, and freed memory that another stream still uses.
SPARE = 768 * MB
# Shares of the computed room for resident weights, one for each attempt.
SHARES = (1.0, 0.85, 0.7, 0.5, 0.25, 0.0)


def body(job: dict[str, Any], report: Report) -> None:
    settings = job.get("settings") or {}
    if "share" in settings:
        attempt(job, report, settings["share"])
        return
    need_found("torch", "transformers", "deepspeed")
    for share in SHARES:
        found = in_a_process(job | {"settings": settings | {"share": share}})
        kept = (found.get("settings") or {}).get("resident_mb")
        if found["status"] != "out-of-memory" or kept == 0:
            break
        say(f"out of memory with {share:.0%} of the computed room for resident weights")
    for key, value in found.items():
        setattr(report, key, value)


def in_a_process(job: dict[str, Any]) -> dict[str, Any]:
    """Runs this script with another job in a separate process, and returns its result."""
    with tempfile.TemporaryDirectory() as scratch:
        asked, output = Path(scratch) / "job.json", Path(scratch) / "out.json"
        asked.write_text(json.dumps(job))
        command = [sys.executable, __file__, "--job", str(asked), "--output", str(output)]
        with subprocess.Popen(command) as process:
            try:
                process.wait()
            except BaseException:
                process.kill()
                raise
        if not output.exists():
            raise RuntimeError(f"an attempt ended with exit status {process.returncode}")
        return json.loads(output.read_text())


def attempt(job: dict[str, Any], report: Report, share: float) -> None:
    cuda = job["device"].startswith("cuda")
    one_process(cuda)
    memory = Memory(job["device"])
    torch = settle_torch(job, report)
    need("transformers")
    deepspeed = need("deepspeed")
    report.program = f"{versions('deepspeed', 'transformers', 'torch')}, ZeRO-Inference stage 3"
    if job["model"]["dtype"] == "float16" and not cuda:
        raise Absent("ZeRO-Inference is not available in float16 on a CPU")
    if cuda:
        torch.cuda.set_device(torch.device(job["device"]))
    deepspeed.init_distributed("nccl" if cuda else "gloo")
    try:
        # Allocates the memory of the communicator before the rest of the budget is distributed.
        torch.distributed.all_reduce(torch.ones(1, device=job["device"]))
        limit = limit_allocator(job, report, memory)
        model = load_model(job, "cpu")
        size = weight_bytes(model)
        config = zero_config(job, report, model, size, limit, share)
        engine = initialized(deepspeed, torch, model, config, job["device"])
        generation(job, report, memory, plain_step(engine.module), size)
    finally:
        torch.distributed.destroy_process_group()


def one_process(cuda: bool) -> None:
    """Sets the environment of a single process, as a launcher would, before the import."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    world = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "DS_ACCELERATOR": "cuda" if cuda else "cpu",
        "LOCAL_SIZE": "1",
    }
    for key, value in world.items():
        os.environ.setdefault(key, value)


def zero_config(
    job: dict[str, Any], report: Report, model: Any, size: int, limit: float | None, share: float
) -> dict[str, Any]:
    element = 4 if job["model"]["dtype"] == "float32" else 2
    hidden = model.config.hidden_size
    largest = max(parameter.numel() for parameter in model.parameters())
    tokens = len(job["prompt"]) + int(job["generate"])
    # One of the largest in use, two in flight, and one more before DeepSpeed notices the limit.
    fetching = 3 * largest
    room = size
    if limit is not None:
        room = limit - kv_bytes_per_token(job) * tokens - SPARE - (fetching + largest) * element
        room -= len(job["prompt"]) * (8 * hidden + 3 * 4 * hidden) * element
    resident = int(share * max(0, min(size, room)) / element)
    pinned = job["device"].startswith("cuda") and tuning(job, "pin_weights") is not False
    zero = {
        "stage": 3,
        "offload_param": {"device": "cpu", "pin_memory": pinned},
        "stage3_prefetch_bucket_size": int(2 * largest),
        # Resident weights do not count here; otherwise DeepSpeed would fetch more ahead.
        "stage3_max_live_parameters": int(fetching),
        "stage3_max_reuse_distance": 0,
        # Any parameter may stay on the device, up to this number of elements in total.
        "stage3_param_persistence_threshold": int(largest),
        "stage3_model_persistence_threshold": int(resident),
        "overlap_comm": True,
        "contiguous_gradients": False,
    }
    report.settings["share_of_room_kept"] = share
    report.settings["zero_optimization"] = zero
    report.settings["resident_mb"] = round(resident * element / MB)
    report.settings["attention"] = "sdpa"
    return {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": 1,
        "steps_per_print": 1 << 30,
        "fp16": {"enabled": job["model"]["dtype"] == "float16"},
        "bf16": {"enabled": job["model"]["dtype"] == "bfloat16"},
        "zero_optimization": zero,
    }


def initialized(deepspeed: Any, torch: Any, model: Any, config: dict[str, Any], device: str) -> Any:
    """Creates the engine. It converts parameters one by one, so the device never holds all."""
    deepspeed.zero.Init(
        module=model,
        config_dict_or_path=config,
        dtype=next(model.parameters()).dtype,
        mem_efficient_linear=False,
    )
    for module in model.modules():
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = buffer.to(torch.device(device))
    engine, *_ = deepspeed.initialize(model=model, config=config)
    engine.module.eval()
    return engine


if __name__ == "__main__":
    main("deepspeed_zero", "deepspeed, ZeRO-Inference stage 3", body)
