#!/usr/bin/env python3
"""llama-bench of llama.cpp: as many layers on the device as fit the budget, the others on the CPU.

The settings of the job or LLAMA_BENCH name the binary. It measures speed and compares no tokens, so
without a GGUF file the script writes one with random weights of the model's shape. A run consists
of the prompt and all generated tokens (`-pg`); the time to the first token is that of the prompt
alone (`-p`).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from common import (
    GB,
    MB,
    Absent,
    Memory,
    Report,
    kv_bytes_per_token,
    main,
    need,
    say,
)

CONTEXT_MB = 600.0
TRIES = 3
WRITERS = 8
# Folders of the CUDA libraries, for machines where the loader does not search them.
LIBRARIES = ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]


def body(job: dict[str, Any], report: Report) -> None:
    memory = Memory(job["device"], watch=0.25)
    settings = job.get("settings") or {}
    bench = Bench(find_binary(settings), job, settings)
    with tempfile.TemporaryDirectory(dir=roomy(job)) as spare:
        gguf = settings.get("gguf") or synthetic_gguf(job, Path(settings.get("scratch") or spare))
        measured(job, report, memory, bench, str(gguf))


def measured(job: dict[str, Any], report: Report, memory: Memory, bench: Bench, gguf: str) -> None:
    if not Path(gguf).is_file():
        raise Absent(f"the GGUF file is not found: {gguf}")
    layers = (job.get("settings") or {}).get("gpu_layers")
    chosen = layers is None
    another = layers_that_fit(job) if chosen else int(layers)
    for _ in range(TRIES):
        layers, began = another, time.perf_counter()
        tests, peak = bench.run(gguf, layers, memory)
        another = better(job, layers, peak) if chosen else layers
        if another == layers:
            break
        say(f"{layers} layers take {peak:.0f} MB of {job['budget_mb']:.0f}: {another} would be it")
    report.program = f"llama.cpp {tests[0]['build_commit']}, llama-bench"
    report.settings.update(described(job, bench, tests[0], gguf, layers, chosen))
    report.runs = runs(job, tests, peak)
    # The memory of an ended CPU process is zero.
    report.memory = [point for point in memory.curve(began) if point["used_mb"] > 0]


def find_binary(settings: dict[str, Any]) -> Path:
    named = settings.get("binary") or os.environ.get("LLAMA_BENCH") or shutil.which("llama-bench")
    if not named:
        raise Absent("llama-bench is not found: set settings.binary or LLAMA_BENCH")
    if not os.access(named, os.X_OK):
        raise Absent(f"llama-bench is not executable: {named}")
    return Path(named)


class Bench:
    """llama-bench with its best known settings."""

    def __init__(self, binary: Path, job: dict[str, Any], settings: dict[str, Any]) -> None:
        self.binary, self.job = binary, job
        self.cuda = job["device"].startswith("cuda")
        self.threads = settings.get("threads") or job.get("threads") or os.cpu_count() or 1
        self.environment = dict(os.environ)
        index = job["device"].partition(":")[2] or "0"
        if not self.cuda:
            self.environment["CUDA_VISIBLE_DEVICES"] = ""
        elif "CUDA_VISIBLE_DEVICES" not in os.environ:
            self.environment["CUDA_VISIBLE_DEVICES"] = index
        paths = [*os.environ.get("LD_LIBRARY_PATH", "").split(":"), *LIBRARIES, *torch_libraries()]
        self.environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        shown = subprocess.run(
            [binary, "--help"],
            check=False,
            capture_output=True,
            text=True,
            env=self.environment,
        )
        self.help = shown.stdout + shown.stderr
        if "--n-prompt" not in self.help:
            last = (self.help.strip().splitlines() or [f"exit {shown.returncode}"])[-1]
            raise Absent(f"llama-bench is not usable: {last}")

    def options(self) -> list[str]:
        job, prompt = self.job, len(self.job["prompt"])
        found = ["-p", str(prompt), "-n", "0", "-r", str(job["runs"]), "-t", str(self.threads)]
        if int(job["generate"]) > 1:
            found += ["-pg", f"{prompt},{int(job['generate']) - 1}"]
        # Computes the prompt in one pass, so that host weights cross the link once.
        rows = micro_batch(job)
        found += ["-b", str(max(2048, rows)), "-ub", str(rows)]
        if "--flash-attn" in self.help:
            found += ["-fa", "1" if self.cuda else "auto" if "auto>" in self.help else "0"]
        if self.cuda:
            # Without memory mapping, llama.cpp pins the weights in host memory.
            found += ["-lm", "none"] if "--load-mode" in self.help else ["-mmp", "0"]
        return found

    def run(self, gguf: str, layers: int, memory: Memory) -> tuple[list[dict[str, Any]], float]:
        """Runs llama-bench; returns its tests and the peak memory in MB."""
        command = [str(self.binary), "-m", str(gguf), "-ngl", str(layers), *self.options()]
        command += ["-o", "json"] + (["--progress"] if "--progress" in self.help else [])
        say(" ".join(command))
        began = time.perf_counter()
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.environment,
        )
        memory.pid = process.pid
        lines: list[str] = []
        reader = threading.Thread(target=relay, args=(process.stderr, lines))
        reader.start()
        try:
            written = process.stdout.read() if process.stdout else ""
            process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            reader.join()
        with memory.lock:
            peak = max((used for at, used in memory.samples if at >= began), default=0.0)
        if process.returncode != 0:
            why = next((line for line in lines if "out of memory" in line), None)
            why = why or (lines[-1] if lines else f"exit {process.returncode}")
            raise RuntimeError(f"llama-bench: {why.strip()}")
        return json.loads(written), peak


def relay(stream: Any, lines: list[str]) -> None:
    for line in stream:
        lines.append(line)
        sys.stderr.write(line)


def torch_libraries() -> list[str]:
    """Returns the folders in which pip installs the CUDA libraries of torch."""
    return [str(Path(path) / "nvidia/cu13/lib") for path in sys.path if path.endswith("-packages")]


def micro_batch(job: dict[str, Any]) -> int:
    return max(512, min(2048, 1 << (max(1, len(job["prompt"])) - 1).bit_length()))


def element_bytes(job: dict[str, Any]) -> int:
    return 4 if job["model"]["dtype"] == "float32" else 2


def layer_bytes(job: dict[str, Any]) -> float:
    """Returns the size of one block with its KV cache, in bytes."""
    config, shape = job["model"]["config"], shapes(job["model"]["config"])
    weights = sum(math.prod(size) for name, size in shape.items() if name.startswith("blk.0."))
    tokens = len(job["prompt"]) + int(job["generate"])
    kv = kv_bytes_per_token(job) / config["num_hidden_layers"] * tokens
    return weights * element_bytes(job) + kv


def layers_that_fit(job: dict[str, Any]) -> int:
    """Returns the number of layers for -ngl. llama.cpp places the head first, then blocks."""
    config, budget = job["model"]["config"], job.get("budget_mb")
    everything = int(config["num_hidden_layers"]) + 1
    if not job["device"].startswith("cuda"):
        return 0
    if budget is None:
        return everything
    hidden, inner, words = (
        config[key] for key in ("hidden_size", "intermediate_size", "vocab_size")
    )
    head = words * hidden * element_bytes(job)
    # Activations of the prompt, and two weight matrices that are copied for a product.
    passing = micro_batch(job) * (2 * inner + words + 8 * hidden) * 4
    passing += 2 * hidden * inner * element_bytes(job)
    room = float(budget) * MB - CONTEXT_MB * MB - passing - head
    return max(0, min(everything, 1 + math.floor(room / layer_bytes(job))))


def better(job: dict[str, Any], layers: int, peak_mb: float) -> int:
    """Returns fewer layers if the peak exceeded the budget, and more if another layer fits."""
    budget, everything = job.get("budget_mb"), int(job["model"]["config"]["num_hidden_layers"]) + 1
    if budget is None or not job["device"].startswith("cuda") or peak_mb <= 0:
        return layers
    layer_mb = layer_bytes(job) / MB
    if peak_mb > budget:
        return max(0, layers - math.ceil((peak_mb - budget) / layer_mb))
    if budget - peak_mb > 1.2 * layer_mb:
        return min(everything, layers + math.floor((budget - peak_mb) / layer_mb))
    return layers


def described(
    job: dict[str, Any], bench: Bench, test: dict[str, Any], gguf: str, layers: int, chosen: bool
) -> dict[str, Any]:
    return {
        "options": " ".join(bench.options()),
        "gpu_layers": layers,
        "gpu_layers_note": "as many as fit the budget" if chosen else "as configured",
        "budget_mb": job.get("budget_mb"),
        "budget_note": None
        if bench.cuda
        else "not applied: on a CPU the system decides which pages of the file stay in memory",
        "threads": bench.threads,
        "gguf": Path(gguf).name,
        "gguf_bytes": Path(gguf).stat().st_size,
        "weights": "as in the GGUF file; llama-bench measures speed only, tokens are not compared",
        "warm_up": "by llama-bench: one prompt, one token",
        "device": job["device"],
        "backends": test.get("backends"),
        "gpu_info": test.get("gpu_info"),
        "cpu_info": test.get("cpu_info"),
        "binary": Path(bench.binary).name,
    }


def runs(job: dict[str, Any], tests: list[dict[str, Any]], peak: float) -> list[dict[str, Any]]:
    """Returns the runs from the repetitions of llama-bench: prompt, and prompt with tokens."""
    prompts = next(test for test in tests if test["n_gen"] == 0)["samples_ns"]
    whole = next((test["samples_ns"] for test in tests if test["n_gen"] > 0), prompts)
    tokens, size = int(job["generate"]), tests[0]["model_size"] / GB
    prompt = statistics.median(prompts)
    found = []
    for number, (first, total) in enumerate(zip(prompts, whole, strict=True)):
        run: dict[str, Any] = {
            "run_id": number,
            "total_time_ms": total / 1e6,
            "first_token_ms": first / 1e6,
            "tokens": tokens,
            "passes": tokens,
            "model_size_gb": size,
            "vram_used_mb": round(peak, 1) or None,
            "effective_bandwidth_gbps": size * tokens / (total / 1e9),
        }
        if tokens > 1:
            run["per_token_ms"] = max(0.0, total - prompt) / 1e6 / (tokens - 1)
        found.append(run)
        say(f"run {number + 1} of {len(prompts)}: {run['total_time_ms']:.0f} ms")
    return found


# ---- a GGUF file of random weights ---------------------------------------------------------------


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor by its name in GGUF."""
    if config.get("model_type") not in ("llama", "mistral"):
        reason = f"the tensors of model_type {config.get('model_type')} are not known"
        raise Absent(f"llama.cpp is not usable: {reason}; set gguf and gpu_layers")
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or hidden // heads
    queries, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    found: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config["vocab_size"], hidden),
        "output_norm.weight": (hidden,),
    }
    if not config.get("tie_word_embeddings"):
        found["output.weight"] = (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, size in {
            "attn_norm": (hidden,),
            "attn_q": (queries, hidden),
            "attn_k": (keys, hidden),
            "attn_v": (keys, hidden),
            "attn_output": (hidden, queries),
            "ffn_norm": (hidden,),
            "ffn_gate": (inner, hidden),
            "ffn_up": (inner, hidden),
            "ffn_down": (hidden, inner),
        }.items():
            found[f"blk.{layer}.{name}.weight"] = size
    return found


def roomy(job: dict[str, Any]) -> str | None:
    """Returns /dev/shm if it has room for the file; None selects the default folder."""
    try:
        weights = sum(math.prod(size) for size in shapes(job["model"]["config"]).values())
        free = shutil.disk_usage("/dev/shm").free
    except (Absent, KeyError, OSError):
        return None
    return "/dev/shm" if free > 1.5 * weights * element_bytes(job) else None


def synthetic_gguf(job: dict[str, Any], scratch: Path) -> str:
    """Returns the path of a synthetic GGUF file for the job, and writes it if it does not exist."""
    config, dtype = job["model"]["config"], job["model"]["dtype"]
    wanted = shapes(config)
    need("numpy")
    gguf = need("gguf")
    key = json.dumps([config, dtype, 1], sort_keys=True)
    name = f"djinn-{hashlib.sha256(key.encode()).hexdigest()[:16]}.gguf"
    scratch.mkdir(parents=True, exist_ok=True)
    path = scratch / name
    if path.is_file():
        say(f"{path} exists")
        return str(path)
    began, part = time.perf_counter(), path.with_suffix(".part")
    size = write_gguf(gguf, config, dtype, wanted, part)
    part.rename(path)
    say(f"{path}: {size / GB:.1f} GB written in {time.perf_counter() - began:.0f} s")
    return str(path)


def write_gguf(
    gguf: Any,
    config: dict[str, Any],
    dtype: str,
    wanted: dict[str, tuple[int, ...]],
    path: Path,
) -> int:
    numpy = need("numpy")
    block = numpy.random.default_rng(1).standard_normal((1 << 24) + 7, dtype=numpy.float32)
    block *= 0.02
    kind = {
        "float16": gguf.GGMLQuantizationType.F16,
        "bfloat16": gguf.GGMLQuantizationType.BF16,
        "float32": gguf.GGMLQuantizationType.F32,
    }[dtype]
    if dtype == "float16":
        block = block.astype(numpy.float16)
    elif dtype == "bfloat16":
        block = (block.view(numpy.uint32) >> 16).astype(numpy.uint16)
    writer = gguf.GGUFWriter(path, "llama")
    describe(writer, config)
    norm = numpy.ones(max(size[0] for size in wanted.values()), dtype=numpy.float32)
    for name, size in wanted.items():
        source, how = (norm, gguf.GGMLQuantizationType.F32) if len(size) == 1 else (block, kind)
        bytes_there = math.prod(size) * source.itemsize
        writer.add_tensor_info(name, size, source.dtype, bytes_there, raw_dtype=how)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    (file,) = writer.fout
    writer.write_padding(file, file.tell())
    file.flush()
    at, pieces = file.tell(), []
    for size in wanted.values():
        raw = memoryview(norm if len(size) == 1 else block).cast("B")
        whole = math.prod(size) * (norm if len(size) == 1 else block).itemsize
        for begin in range(0, whole, len(raw)):
            pieces.append((at + begin, raw[: min(len(raw), whole - begin)]))
        at += writer.ggml_pad(whole, writer.data_alignment)
    os.ftruncate(file.fileno(), at)
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(lambda piece: write_at(file.fileno(), *piece), pieces))
    file.seek(at)
    writer.close()
    return at


def write_at(file: int, offset: int, raw: memoryview) -> None:
    while raw:
        written = os.pwrite(file, raw, offset)
        offset, raw = offset + written, raw[written:]


def describe(writer: Any, config: dict[str, Any]) -> None:
    """Writes the metadata that llama.cpp needs for a model without a vocabulary."""
    heads = config["num_attention_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    writer.add_context_length(config.get("max_position_embeddings") or 4096)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads") or heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta") or 10000.0)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps") or 1e-5)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")


if __name__ == "__main__":
    main("llama_cpp", "llama.cpp, llama-bench", body)
