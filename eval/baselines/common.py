"""Code that all baselines share: the job, the model, timing, memory and the result.

A baseline is a script that `djinn eval` runs as

    python3 SCRIPT.py --job JOB.json --output OUT.json

The script reports progress on stderr, always writes OUT.json, and exits with status 0. This module
imports the standard library only, so that a script can report which package is missing. MB and GB
are 10^6 and 10^9 bytes.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import importlib
import importlib.metadata
import importlib.util
import inspect
import json
import math
import os
import signal
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

MB = 1e6
GB = 1e9
# Memory of the kernels that CUDA loads on first use, after a first matrix product.
LATE_KERNELS_MB = 256.0
# Memory of a CUDA context, for machines where the driver's count cannot be read.
ASSUMED_CONTEXT_MB = 700.0
LOGIT_NORM_LIMIT = 0.1
SAMPLE_EVERY_S = 0.05
MEMORY_SAMPLES_MAX = 400
# Shortest warm-up on a GPU: the first seconds of a process are the slowest.
WARM_S = 6.0

# Prevents downloads during a measurement.
os.environ.setdefault("HF_HUB_OFFLINE", "1")


class Absent(Exception):
    """The program of this baseline is not installed or does not support this machine."""


class Stopped(Exception):
    """The process received a termination signal."""


class Report:
    """The `Baseline` object of a result file, under construction."""

    def __init__(self, baseline: str, program: str) -> None:
        self.baseline = baseline
        self.program = program
        self.status = "ran"
        self.reason: str | None = None
        self.settings: dict[str, Any] = {}
        self.warmup: list[dict[str, Any]] = []
        self.runs: list[dict[str, Any]] = []
        self.memory: list[dict[str, Any]] = []

    def out_of_memory(self, where: str) -> None:
        self.status = "out-of-memory"
        self.reason = where

    def write(self, path: Path) -> None:
        step = max(1, math.ceil(len(self.memory) / MEMORY_SAMPLES_MAX))
        found = {
            "baseline": self.baseline,
            "program": self.program,
            "status": self.status,
            "reason": self.reason,
            "settings": self.settings,
            "warmup": self.warmup,
            "runs": self.runs,
            "memory": self.memory[::step],
        }
        found = {key: value for key, value in clean(found).items() if value not in (None, [], {})}
        path.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")


def clean(value: Any) -> Any:
    """Removes values that JSON cannot represent."""
    if isinstance(value, dict):
        kept = {key: clean(item) for key, item in value.items()}
        return {key: item for key, item in kept.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [clean(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def main(baseline: str, program: str, body: Callable[[dict[str, Any], Report], None]) -> None:
    """Runs `body` on the job named on the command line and writes the result."""
    parser = argparse.ArgumentParser(description=f"Runs the baseline {baseline} of djinn eval.")
    parser.add_argument("--job", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    report = Report(baseline, program)
    signal.signal(signal.SIGTERM, stop)
    try:
        body(json.loads(arguments.job.read_text()), report)
    except Absent as missing:
        report.status, report.reason = "absent", str(missing)
    except BaseException as error:  # noqa: BLE001 - every error belongs in the result
        traceback.print_exc()
        report.status = "out-of-memory" if is_out_of_memory(error) else "failed"
        report.reason = last_line(error)
    report.write(arguments.output)
    say(f"{baseline}: {report.status}" + (f": {report.reason}" if report.reason else ""))


def stop(_signal: int, _frame: Any) -> None:
    raise Stopped("terminated by a signal")


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    name = type(error).__name__
    if not lines:
        return name
    # torch explains memory errors on a whole page; the first part names the failed allocation.
    text = lines[0].split(" GPU ")[0] if is_out_of_memory(error) else lines[-1]
    return f"{name}: {text}"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or of a CUDA library reports exhausted memory."""
    if type(error).__name__ == "OutOfMemoryError":
        return True
    message = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "out of memory" in message or "cublas_status_alloc_failed" in message
    )


def need(name: str) -> Any:
    """Imports a module; raises `Absent` if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        raise Absent(f"{name} is not installed: {missing}") from missing


def need_found(*names: str) -> None:
    """Raises `Absent` if a module is not installed, without importing it."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise Absent(f"{name} is not installed")


def versions(*names: str) -> str:
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            module = sys.modules.get(name)
            found.append(f"{name} {getattr(module, '__version__', '')}".strip())
    return ", ".join(found)


# ---- memory --------------------------------------------------------------------------------------


class NvmlMemory(ctypes.Structure):
    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class Nvml:
    """GPU memory as the driver counts it, read without Python packages."""

    def __init__(self, index: int) -> None:
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.device = ctypes.c_void_p()
        place = ctypes.byref(self.device)
        if self.library.nvmlInit_v2() or self.library.nvmlDeviceGetHandleByIndex_v2(index, place):
            raise OSError(f"NVML has no device {index}")

    def used(self) -> float:
        info = NvmlMemory()
        if self.library.nvmlDeviceGetMemoryInfo(self.device, ctypes.byref(info)):
            raise OSError("NVML does not report memory")
        return float(info.used)


class Memory:
    """Device memory of this baseline: the increase over the memory in use when it started.

    Create the object before anything else uses the device. On a CPU it measures the memory of this
    process, or of the process whose id is in `pid`.

    On a GPU no samples are taken during a run, unless `watch` gives an interval in seconds, because
    sampling would delay the interpreter and the driver. torch keeps the memory that it has
    allocated, so a sample after the run still shows the peak.
    """

    def __init__(self, device: str, watch: float | None = None) -> None:
        self.cuda = device.startswith("cuda")
        self.pid: int | None = None
        self.nvml: Nvml | None = None
        self.before = 0.0
        if self.cuda:
            try:
                self.nvml = Nvml(card(device))
                self.before = min(self.settled())
            except OSError as error:
                say(f"using the memory count of torch: {error}")
        self.samples: list[tuple[float, float]] = []
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.every = watch or SAMPLE_EVERY_S
        if watch or not self.cuda:
            self.thread.start()

    def settled(self) -> Iterator[float]:
        """Yields several readings, because an ended process releases its memory with a delay."""
        for _ in range(5):
            yield self.nvml.used() if self.nvml else 0.0
            time.sleep(0.05)

    def used_mb(self) -> float:
        if self.nvml is not None:
            return max(0.0, self.nvml.used() - self.before) / MB
        if self.cuda:
            torch = sys.modules.get("torch")
            if torch is None or not torch.cuda.is_initialized():
                return 0.0
            return torch.cuda.memory_reserved() / MB + ASSUMED_CONTEXT_MB
        try:
            pages = Path(f"/proc/{self.pid or 'self'}/statm").read_text().split()[1]
        except (OSError, IndexError):
            return 0.0
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / MB

    def watch(self) -> None:
        while not self.done.wait(self.every):
            self.sample()

    def sample(self) -> float:
        now, used = time.perf_counter(), self.used_mb()
        with self.lock:
            self.samples.append((now, used))
        return used

    def peak_mb(self, since: float) -> float:
        self.sample()
        with self.lock:
            return max(used for at, used in self.samples if at >= since)

    def close(self) -> None:
        self.done.set()
        if self.thread.is_alive():
            self.thread.join()

    def curve(self, start: float) -> list[dict[str, Any]]:
        """Returns the samples since `start`."""
        with self.lock:
            return [
                {"t_s": round(at - start, 3), "used_mb": round(used, 1)}
                for at, used in self.samples
                if at >= start
            ]


def card(device: str) -> int:
    """Returns the GPU number of the driver, which ignores CUDA_VISIBLE_DEVICES."""
    index = int(device.partition(":")[2] or 0)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return int(visible[index]) if index < len(visible) and visible[index].isdigit() else index


def settle_torch(job: dict[str, Any], report: Report) -> Any:
    """Imports torch and applies the threads and switches of the job."""
    torch = need("torch")
    if job["device"].startswith("cuda") and not torch.cuda.is_available():
        raise Absent(f"torch {torch.__version__} sees no CUDA device")
    if job.get("threads"):
        torch.set_num_threads(int(job["threads"]))
    torch.backends.cudnn.benchmark = bool(tuning(job, "cudnn_benchmark"))
    torch.manual_seed(0)
    report.settings.update(
        device=job["device"],
        dtype=job["model"]["dtype"],
        cpu_threads=torch.get_num_threads(),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        gc_between_runs=bool(job.get("gc_between_runs")),
        gc_during_run=not job.get("disable_gc_during_run"),
        weights="from the model folder" if job["model"].get("folder") else "synthetic, random",
    )
    return torch


def tuning(job: dict[str, Any], key: str) -> Any:
    return (job.get("tuning") or {}).get(key)


def limit_allocator(job: dict[str, Any], report: Report, memory: Memory) -> float | None:
    """Limits torch so that it stays in the budget with its context; returns the limit in bytes."""
    torch = sys.modules["torch"]
    budget = job.get("budget_mb")
    report.settings["budget_mb"] = budget
    if budget is None:
        return None
    if not memory.cuda:
        return float(budget) * MB
    device = torch.device(job["device"])
    torch.cuda.set_device(device)
    square = torch.ones(64, 64, device=device, dtype=torch.float16)
    (square @ square).sum().item()
    torch.cuda.synchronize()
    used = memory.used_mb() if memory.nvml else ASSUMED_CONTEXT_MB
    context = max(0.0, used - torch.cuda.memory_reserved() / MB) + LATE_KERNELS_MB
    limit = (float(budget) - context) * MB
    total = torch.cuda.get_device_properties(device).total_memory
    if limit <= 0:
        raise RuntimeError(
            f"out of memory: the CUDA context takes {context:.0f} MB, the budget is {budget:.0f} MB"
        )
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
    report.settings["allocator_limit_mb"] = round(min(limit, total) / MB)
    report.settings["budget_note"] = (
        f"the CUDA context and its kernels take {context:.0f} MB of the budget; torch's allocator"
        " may use the rest"
    )
    return limit


def limit_where_weights_fit(job: dict[str, Any], report: Report, memory: Memory) -> None:
    """Limits torch if all weights fit the budget; otherwise the budget is not applied."""
    budget, size = job.get("budget_mb"), weight_bytes(hollow_model(job)) / MB
    if budget is None or size + ASSUMED_CONTEXT_MB + LATE_KERNELS_MB < budget:
        limit_allocator(job, report, memory)
    else:
        report.settings["budget_mb"] = None
        report.settings["budget_note"] = (
            f"not applied: all {size:.0f} MB of weights are on the device, above {budget:.0f} MB"
        )


# ---- models --------------------------------------------------------------------------------------


@contextmanager
def meta_parameters() -> Iterator[None]:
    """Modules created inside have parameters without memory; buffers keep their memory."""
    torch = need("torch")
    module = torch.nn.Module
    plain = module.register_parameter

    def register(self: Any, name: str, parameter: Any) -> None:
        plain(self, name, parameter)
        if parameter is not None:
            empty = torch.empty_like(parameter.data, device="meta")
            self._parameters[name] = torch.nn.Parameter(empty, requires_grad=False)

    module.register_parameter = register
    try:
        yield
    finally:
        module.register_parameter = plain


def hollow_model(job: dict[str, Any]) -> Any:
    """Returns the model of the job without memory for its weights."""
    torch, transformers = need("torch"), need("transformers")
    config = dict(job["model"]["config"])
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    dtype = getattr(torch, job["model"]["dtype"])
    with meta_parameters():
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation="sdpa"
        )
    model.tie_weights()
    return model.eval()


def fill(model: Any, device_of: Callable[[str], Any]) -> None:
    """Fills a model with seeded random weights, each parameter on the device from `device_of`."""
    torch = sys.modules["torch"]
    made: dict[int, Any] = {}
    block = torch.randn((1 << 20) + 7, generator=torch.Generator().manual_seed(1)) * 0.02
    blocks: dict[Any, Any] = {}
    for prefix, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            if id(parameter) not in made:
                full = f"{prefix}.{name}" if prefix else name
                value = torch.empty(parameter.shape, dtype=parameter.dtype, device=device_of(full))
                key = (value.device, value.dtype)
                if key not in blocks:
                    blocks[key] = block.to(value.device, value.dtype)
                tile(value.view(-1), blocks[key])
                if parameter.dim() == 1 and name == "weight":
                    value += 1.0  # weights of a norm
                # Keeps the old parameter alive, so that no other object gets its id.
                made[id(parameter)] = (parameter, torch.nn.Parameter(value, requires_grad=False))
            module._parameters[name] = made[id(parameter)][1]


def tile(flat: Any, block: Any) -> None:
    whole = flat.numel() // block.numel() * block.numel()
    if whole:
        flat[:whole].view(-1, block.numel()).copy_(block)
    flat[whole:].copy_(block[: flat.numel() - whole])


def load_model(job: dict[str, Any], device: str) -> Any:
    """Loads the whole model on one device."""
    torch, transformers = need("torch"), need("transformers")
    folder = job["model"].get("folder")
    if folder is None:
        model = hollow_model(job)
        fill(model, lambda _: device)
        return model.to(device)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=getattr(torch, job["model"]["dtype"]),
        attn_implementation="sdpa",
        local_files_only=True,
    )
    return model.eval().requires_grad_(False).to(device)


def blocks_of(model: Any) -> Any:
    """Returns the decoder blocks of a model."""
    torch = sys.modules["torch"]
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return max(lists, key=len)


def weight_bytes(model: Any) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def kv_bytes_per_token(job: dict[str, Any]) -> int:
    config = job["model"]["config"]
    hidden = config.get("hidden_size") or config.get("n_embd")
    heads = config.get("num_attention_heads") or config.get("n_head")
    layers = config.get("num_hidden_layers") or config.get("n_layer")
    kv_heads = config.get("num_key_value_heads") or heads
    head = config.get("head_dim") or hidden // heads
    size = 4 if job["model"]["dtype"] == "float32" else 2
    return 2 * layers * kv_heads * head * size


def cache_tensors(cache: Any) -> list[Any]:
    """Returns the keys and values of every layer of a DynamicCache."""
    return [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]


def tensor_bytes(tensors: list[Any]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        sys.modules["torch"].cuda.synchronize()


# ---- runs ----------------------------------------------------------------------------------------


def measure(
    job: dict[str, Any], report: Report, memory: Memory, once: Callable[[], dict[str, Any]]
) -> float:
    """Performs the warm-up runs and the measured runs of the job; returns the start of the first.

    The result contains the requested number of warm-up runs, and the count of all of them.
    """
    warmup, runs = int(job.get("warmup") or 0), int(job["runs"])
    began, least = time.perf_counter(), WARM_S if memory.cuda and warmup else 0.0
    while len(report.warmup) < warmup:
        found = measured(job, memory, once)
        keep(report.warmup, found, f"warm-up {len(report.warmup) + 1}")
    more = 0
    while time.perf_counter() - began < least:
        measured(job, memory, once)
        more += 1
    report.settings["warm_up_runs"] = warmup + more
    first = time.perf_counter()
    while len(report.runs) < runs:
        found = measured(job, memory, once)
        keep(report.runs, found, f"run {len(report.runs) + 1} of {runs}")
    return first


def measured(
    job: dict[str, Any], memory: Memory, once: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    if job.get("gc_between_runs"):
        gc.collect()
    if job.get("disable_gc_during_run"):
        gc.disable()
    began = time.perf_counter()
    try:
        found = once()
    finally:
        gc.enable()
    found.setdefault("total_time_ms", (time.perf_counter() - began) * 1e3)
    found["vram_used_mb"] = round(memory.peak_mb(began), 1)
    return found


def keep(runs: list[dict[str, Any]], found: dict[str, Any], what: str) -> None:
    found["run_id"] = len(runs)
    runs.append(found)
    say(f"{what}: {found['total_time_ms']:.0f} ms")


class Generated:
    """Tokens, times and logits of a greedy run."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.times: list[float] = []
        self.logits: Any = None


def greedy(
    step: Callable[[Any, Any], tuple[Any, Any]], prompt: Any, count: int, cache: Any = None
) -> Generated:
    """Generates `count` tokens greedily; `step(ids, cache)` returns logits and the cache.

    The token is read back after every step, as for a user. Reading waits for the device, so the
    times are those of whole steps.
    """
    torch = sys.modules["torch"]
    found = Generated()
    with torch.inference_mode():
        ids = prompt
        for number in range(count):
            logits, cache = step(ids, cache)
            ids = logits[:, -1].argmax(dim=-1, keepdim=True)
            found.tokens.append(int(ids.item()))
            found.times.append(time.perf_counter())
            if number == 0:
                found.logits = logits[0, -1].detach().clone()
    found.logits = found.logits.float().cpu()
    return found


def plain_step(model: Any) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Returns a forward pass of a transformers model with a KV cache."""
    last = {}
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        last["logits_to_keep"] = 1

    def step(ids: Any, cache: Any) -> tuple[Any, Any]:
        out = model(input_ids=ids, past_key_values=cache, use_cache=True, **last)
        return out.logits, out.past_key_values

    return step


def generation(
    job: dict[str, Any],
    report: Report,
    memory: Memory,
    step: Callable[[Any, Any], tuple[Any, Any]],
    size: int,
    new_cache: Callable[[], Any] = lambda: None,
) -> None:
    """Performs the runs of virtual-memory: prefill, then decode."""
    torch = sys.modules["torch"]
    prompt = torch.tensor([job["prompt"]], device=job["device"])
    count = int(job["generate"])

    def once() -> dict[str, Any]:
        cache = new_cache()
        synchronize(job["device"])
        began = time.perf_counter()
        found = greedy(step, prompt, count, cache)
        if not bool(torch.isfinite(found.logits).all()):
            raise RuntimeError("logits are not finite")
        return timed(began, found.times, size) | compared(job, found.tokens, found.logits)

    first = measure(job, report, memory, once)
    report.memory = memory.curve(first)


def timed(began: float, times: list[float], size: int) -> dict[str, Any]:
    """Returns the metrics of a run from the arrival times of its tokens."""
    total = times[-1] - began
    between = [later - earlier for earlier, later in pairwise(times)]
    return {
        "total_time_ms": total * 1e3,
        "first_token_ms": (times[0] - began) * 1e3,
        "per_token_ms": statistics.median(between) * 1e3 if between else None,
        "tokens": len(times),
        "passes": len(times),
        "model_size_gb": size / GB,
        "effective_bandwidth_gbps": size / GB * len(times) / total,
    }


def compared(job: dict[str, Any], tokens: list[int], logits: Any) -> dict[str, Any]:
    """Compares tokens and logits with the reference; empty for synthetic weights."""
    reference = job.get("reference") or {}
    found: dict[str, Any] = {}
    if not job["model"].get("folder"):
        return found
    if reference.get("tokens") is not None:
        want = list(reference["tokens"])
        length = min(len(want), len(tokens))
        found["tokens_match"] = length > 0 and tokens[:length] == want[:length]
    if reference.get("logits"):
        torch = sys.modules["torch"]
        raw = bytearray(Path(reference["logits"]).read_bytes())
        want = torch.frombuffer(raw, dtype=torch.float32)
        if want.numel() != logits.numel():
            raise ValueError(
                f"the model has {logits.numel()} logits, but the reference has {want.numel()}"
            )
        norm = float((logits.double() - want.double()).norm())
        found["logit_norm"] = norm
        found["logit_match"] = norm < LOGIT_NORM_LIMIT
    return found


def percentile(values: list[float], share: float) -> float:
    """Returns the smallest value that a share of the values does not exceed."""
    ranked = sorted(values)
    return ranked[max(0, math.ceil(share * len(ranked)) - 1)]
