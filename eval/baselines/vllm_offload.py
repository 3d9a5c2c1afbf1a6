#!/usr/bin/env python3
"""vLLM with part of the weights in host memory (cpu_offload_gb), prefetched if vLLM supports it.

vLLM takes a share of the GPU memory, so the budget is given as a share. Synthetic weights are those
of vLLM (load_format dummy), from the configuration of the job in a folder.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from common import (
    GB,
    MB,
    Absent,
    Memory,
    Report,
    compared,
    hollow_model,
    kv_bytes_per_token,
    main,
    measure,
    need,
    settle_torch,
    versions,
    weight_bytes,
)

# Memory of activations, captured graphs and the CUDA context.
WORKING_GB = 2.5
GROUP = 8


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"])
    if not job["device"].startswith("cuda"):
        need("vllm")
        raise Absent("offloading of vLLM is not available on a CPU")
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    vllm = need("vllm")
    torch = settle_torch(job, report)
    report.program = f"{versions('vllm', 'torch')}, cpu_offload_gb"
    size = weight_bytes(hollow_model(job))
    with tempfile.TemporaryDirectory() as folder:
        options = engine_options(job, report, vllm, torch, size, folder)
        engine = vllm.LLM(**options)
        serve(job, report, memory, vllm, engine, size)


def engine_options(
    job: dict[str, Any], report: Report, vllm: Any, torch: Any, size: int, folder: str
) -> dict[str, Any]:
    settings = job.get("settings") or {}
    total = torch.cuda.get_device_properties(job["device"]).total_memory
    budget = float(job["budget_mb"]) * MB if job.get("budget_mb") else 0.9 * total
    length = len(job["prompt"]) + int(job["generate"]) + 1
    kv = kv_bytes_per_token(job) * length
    offload = settings.get("cpu_offload_gb")
    if offload is None:
        offload = max(0.0, math.ceil((size + kv - budget) / GB + WORKING_GB))
    options: dict[str, Any] = {
        "model": job["model"].get("folder") or folder,
        "dtype": job["model"]["dtype"],
        "skip_tokenizer_init": True,
        "max_model_len": length,
        "max_num_seqs": 1,
        "gpu_memory_utilization": min(0.95, budget / total),
        "cpu_offload_gb": offload,
        "enable_prefix_caching": False,
        "enforce_eager": not (job.get("tuning") or {}).get("cuda_graphs"),
        "seed": 0,
    }
    if not job["model"].get("folder"):
        (Path(folder) / "config.json").write_text(json.dumps(job["model"]["config"]))
        options["load_format"] = "dummy"
    depth = int(settings.get("prefetch_depth") or 2)
    known = inspect.signature(vllm.EngineArgs).parameters
    if offload and "offload_prefetch_step" in known:
        # Offloads the last layers of every group of eight.
        away = math.ceil(GROUP * min(1.0, offload * GB / size))
        options |= {
            "cpu_offload_gb": 0,
            "offload_group_size": GROUP,
            "offload_num_in_group": away,
            "offload_prefetch_step": depth,
        }
        if "offload_backend" in known:
            options["offload_backend"] = "prefetch"
    else:
        report.settings["prefetch_note"] = "vLLM does not prefetch, or no weights are offloaded"
    report.settings.update({k: v for k, v in options.items() if k != "model"})
    report.settings["budget_mb"] = job.get("budget_mb")
    return options


def serve(
    job: dict[str, Any], report: Report, memory: Memory, vllm: Any, engine: Any, size: int
) -> None:
    tokens = int(job["generate"])
    prompt = {"prompt_token_ids": list(job["prompt"])}

    def ask(count: int) -> tuple[float, list[int]]:
        sampling = vllm.SamplingParams(
            temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False
        )
        began = time.perf_counter()
        (answer,) = engine.generate([prompt], sampling, use_tqdm=False)
        return (time.perf_counter() - began) * 1e3, list(answer.outputs[0].token_ids)

    def once() -> dict[str, Any]:
        first, _ = ask(1)
        total, found = ask(tokens)
        run: dict[str, Any] = {
            "total_time_ms": total,
            "first_token_ms": first,
            "tokens": len(found),
            "passes": len(found),
            "model_size_gb": size / GB,
            "effective_bandwidth_gbps": size / GB * len(found) / (total / 1e3),
        }
        if tokens > 1:
            run["per_token_ms"] = max(0.0, total - first) / (tokens - 1)
        only_tokens = dict(job, reference={"tokens": (job.get("reference") or {}).get("tokens")})
        return run | compared(only_tokens, found, None)

    began = measure(job, report, memory, once)
    report.memory = memory.curve(began)


if __name__ == "__main__":
    main("vllm", "vLLM, cpu_offload_gb", body)
