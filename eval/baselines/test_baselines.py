"""Tests of the baselines as `djinn eval` runs them, on the CPU with tiny models.

Needs pytest. Tests that need torch, transformers or llama.cpp are skipped if these are not
installed or LLAMA_BENCH does not name llama-bench.

    pytest eval/baselines
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import struct
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
FOLDER = HERE.parents[1] / "models" / "stories-7m"
TINY = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}
PARAMETERS = 2 * 320 * 64 + 64 + 4 * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 160 + 2 * 64)
# Keys and values, 4 layers, 2 heads of 16, 4 bytes each.
TOKEN_BYTES = 2 * 4 * 2 * 16 * 4
GENERATION = ["transformers_vram", "hf_accelerate"]
RESUME = ["recompute", "manual_offload"]
SCRIPTS = [
    *GENERATION,
    *RESUME,
    "pytorch_eager",
    "deepspeed_zero",
    "vllm_offload",
    "llama_cpp",
]
RUN_KEYS = {
    *("run_id", "total_time_ms", "model_size_gb", "vram_used_mb", "passes", "tokens"),
    *("effective_bandwidth_gbps", "first_token_ms", "per_token_ms", "logit_match", "logit_norm"),
    *("tokens_match", "sessions", "sessions_completed", "failures", "kv_demand_gb", "points"),
    *("resume_p50_ms", "resume_p99_ms"),
}
BASELINE_KEYS = {
    *("baseline", "program", "status", "reason", "settings", "warmup", "runs", "memory"),
}
MEMORY_KEYS = {"t_s", "used_mb", "kv_mb", "sessions"}


def here(*names: str) -> bool:
    return all(importlib.util.find_spec(name) for name in names)


def modules(monkeypatch: pytest.MonkeyPatch, *names: str) -> list[Any]:
    """Imports scripts as modules, to test their functions."""
    monkeypatch.syspath_prepend(str(HERE))
    return [importlib.import_module(name) for name in names]


torch_here = pytest.mark.skipif(not here("torch", "transformers"), reason="torch is not installed")
accelerate_here = pytest.mark.skipif(not here("accelerate"), reason="accelerate is not installed")


def scripts(names: list[str]) -> list[Any]:
    marks = {"hf_accelerate": [accelerate_here]}
    return [pytest.param(name, marks=marks.get(name, [])) for name in names]


def job(experiment: str, **changes: Any) -> dict[str, Any]:
    """Returns a job with a synthetic model."""
    found = {
        "experiment": experiment,
        "model": {"reference": "shape:tiny", "folder": None, "config": TINY, "dtype": "float32"},
        "device": "cpu",
        "budget_mb": None,
        "prompt": [1, 5, 9, 200, 31, 7],
        "generate": 6,
        "runs": 2,
        "warmup": 1,
        "threads": 1,
        "gc_between_runs": True,
        "disable_gc_during_run": True,
        "tuning": {
            "cuda_graphs": False,
            "torch_compile": False,
            "cudnn_benchmark": True,
            "pin_weights": True,
        },
        "sessions": 5,
        "turns": 2,
        "prompt_length": 20,
        "output": 3,
        "layers": [1, 2, 4],
        "agents": [1, 3],
        "think_s": 0.02,
        "answer": 2,
        "settings": {},
        "reference": {"tokens": None, "logits": None},
    }
    return found | changes


def run(
    folder: Path, script: str, asked: dict[str, Any], python: list[str] | None = None
) -> dict[str, Any]:
    """Runs a script, checks the format of its result, and returns it."""
    source, output = folder / "job.json", folder / "out.json"
    source.write_text(json.dumps(asked))
    command = [*(python or [sys.executable]), str(HERE / f"{script}.py")]
    command += ["--job", str(source), "--output", str(output)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text(), parse_constant=lambda name: pytest.fail(name))
    # The script must not be named like the package, which it would shadow.
    assert found["baseline"] == {"vllm_offload": "vllm"}.get(script, script)
    assert set(found) <= BASELINE_KEYS
    for one in found.get("runs", []) + found.get("warmup", []):
        assert set(one) <= RUN_KEYS, set(one) - RUN_KEYS
        assert one["total_time_ms"] > 0
    for sample in found.get("memory", []):
        assert set(sample) <= MEMORY_KEYS
        assert sample["used_mb"] > 0 and sample["t_s"] >= 0
    if found["status"] == "failed":
        pytest.fail(done.stderr)
    return found


@pytest.fixture(scope="session")
def story() -> dict[str, Any]:
    """Returns a prompt to the bundled model with the output of transformers in float32."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    prompt = [0, 300, 12, 45, 900, 77]
    ids, tokens, logits = torch.tensor([prompt]), [], None
    with torch.inference_mode():
        for _ in range(6):
            last = model(input_ids=ids).logits[0, -1]
            logits = last if logits is None else logits
            tokens.append(int(last.argmax()))
            ids = torch.cat([ids, torch.tensor([[tokens[-1]]])], dim=1)
    config = json.loads((FOLDER / "config.json").read_text())
    return {"prompt": prompt, "tokens": tokens, "logits": logits.tolist(), "config": config}


def story_job(folder: Path, story: dict[str, Any], experiment: str, **more: Any) -> dict[str, Any]:
    logits = folder / "logits.bin"
    logits.write_bytes(struct.pack(f"<{len(story['logits'])}f", *story["logits"]))
    model = {
        "reference": "stories-7m",
        "folder": str(FOLDER),
        "config": story["config"],
        "dtype": "float32",
    }
    reference = {"tokens": story["tokens"], "logits": str(logits)}
    return job(experiment, model=model, prompt=story["prompt"], reference=reference) | more


@pytest.mark.parametrize("script", SCRIPTS)
def test_programs_that_are_not_installed_are_absent(tmp_path: Path, script: str) -> None:
    """Runs Python with -S and -E: only the standard library is available."""
    alone = [sys.executable, "-S", "-E", "-c"]
    command = (
        "import runpy, sys; sys.path.insert(0, sys.argv[1].rpartition('/')[0]);"
        " sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    asked = job("virtual-memory", settings={"binary": str(tmp_path / "llama-bench")})
    found = run(tmp_path, script, asked, [*alone, command])
    assert found["status"] == "absent"
    assert "is not" in found["reason"], found["reason"]
    assert not found.get("runs")


@torch_here
@pytest.mark.parametrize("script", scripts(GENERATION))
def test_a_synthetic_model_generates(tmp_path: Path, script: str) -> None:
    found = run(tmp_path, script, job("virtual-memory"))
    assert found["status"] == "ran", found.get("reason")
    assert len(found["runs"]) == 2 and len(found["warmup"]) == 1
    for number, one in enumerate(found["runs"]):
        assert one["run_id"] == number
        assert one["tokens"] == one["passes"] == 6
        assert 0 < one["first_token_ms"] <= one["total_time_ms"]
        assert "tokens_match" not in one and "logit_match" not in one
        bandwidth = one["model_size_gb"] * one["passes"] / (one["total_time_ms"] / 1e3)
        assert one["effective_bandwidth_gbps"] == pytest.approx(bandwidth)
    assert found["runs"][0]["model_size_gb"] == pytest.approx(PARAMETERS * 4 / 1e9)


@torch_here
@pytest.mark.parametrize("budget_mb", [None, 8.0])
@pytest.mark.parametrize("script", scripts(GENERATION))
def test_the_bundled_model_matches_the_reference(
    tmp_path: Path, story: dict[str, Any], script: str, budget_mb: float | None
) -> None:
    asked = story_job(tmp_path, story, "virtual-memory", budget_mb=budget_mb)
    found = run(tmp_path, script, asked)
    assert found["status"] == "ran", found.get("reason")
    for one in found["runs"]:
        assert one["tokens_match"] is True
        assert one["logit_match"] is True and one["logit_norm"] < 1e-2
    if script == "hf_accelerate" and budget_mb is not None:
        assert found["settings"]["modules_offloaded"] > 0
        assert found["settings"]["modules_on_device"] > 0


@torch_here
@pytest.mark.parametrize("script", scripts(GENERATION))
def test_a_different_reference_does_not_match(
    tmp_path: Path, story: dict[str, Any], script: str
) -> None:
    wrong = dict(story, tokens=[token + 1 for token in story["tokens"]])
    wrong["logits"] = [value + 0.01 for value in story["logits"]]
    found = run(tmp_path, script, story_job(tmp_path, wrong, "virtual-memory"))
    assert found["status"] == "ran"
    for one in found["runs"]:
        assert one["tokens_match"] is False and one["logit_match"] is False
        assert one["logit_norm"] == pytest.approx(0.01 * len(story["logits"]) ** 0.5, rel=0.05)


@torch_here
def test_compiled_steps_match_the_reference(tmp_path: Path, story: dict[str, Any]) -> None:
    asked = story_job(tmp_path, story, "virtual-memory", runs=1)
    asked["tuning"]["torch_compile"] = True
    found = run(tmp_path, "transformers_vram", asked)
    assert found["settings"]["cache"] == "static"
    assert found["runs"][0]["tokens_match"] is True and found["runs"][0]["logit_match"] is True


@torch_here
def test_replayed_steps_are_compared_with_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    vram, common = modules(monkeypatch, "transformers_vram", "common")
    transformers = importlib.import_module("transformers")
    asked = job("virtual-memory")
    model = common.load_model(asked, "cpu")
    plain = common.plain_step(model)
    step, new_cache = vram.over_a_static_cache(asked, model, transformers, plain)
    vram.check_replayed(asked, plain, step, new_cache)

    def stale(ids: Any, cache: Any) -> tuple[Any, Any]:
        logits, cache = plain(ids, cache)
        return logits.roll(1, dims=-1), cache

    step, new_cache = vram.over_a_static_cache(asked, model, transformers, stale)
    with pytest.raises(RuntimeError, match="replayed steps generate"):
        vram.check_replayed(asked, plain, step, new_cache)


@torch_here
@pytest.mark.parametrize("script", RESUME)
@pytest.mark.parametrize("real", [False, True])
def test_resuming_is_timed_at_every_layer(
    tmp_path: Path, story: dict[str, Any], script: str, real: bool
) -> None:
    asked = job("resume-latency")
    if real:
        asked = story_job(tmp_path, story, "resume-latency", layers=[1, 8, 40])
    found = run(tmp_path, script, asked)
    assert found["status"] == "ran", found.get("reason")
    for one in found["runs"]:
        assert [point["x"] for point in one["points"]] == ([1, 8] if real else [1, 2, 4])
        assert all(point["series"] == "resume" and point["ms"] > 0 for point in one["points"])


@torch_here
def test_sessions_that_fit_complete(tmp_path: Path, story: dict[str, Any]) -> None:
    for asked in (job("memory-pressure"), story_job(tmp_path, story, "memory-pressure")):
        found = run(tmp_path, "pytorch_eager", asked)
        assert found["status"] == "ran", found.get("reason")
        for one in found["runs"]:
            assert one["sessions"] == one["sessions_completed"] == 5
            assert "failures" not in one
        assert [sample["sessions"] for sample in found["memory"]] == [1, 2, 3, 4, 5] + [5] * 5
        # 20 prompt tokens, 2 of the second turn, and 2 times 3 generated; the last has no KV yet.
        config = asked["model"]["config"]
        token = config["num_hidden_layers"] * 2 * config["num_key_value_heads"]
        token *= config["head_dim"] * 4
        assert found["memory"][-1]["kv_mb"] == pytest.approx(5 * 27 * token / 1e6, rel=1e-2)
        assert found["runs"][0]["kv_demand_gb"] == pytest.approx(5 * 27 * token / 1e9)


@torch_here
def test_sessions_that_do_not_fit_run_out_of_memory(tmp_path: Path) -> None:
    # Three sessions of 22 tokens fit, a fourth does not.
    budget_mb = (PARAMETERS * 4 + 3.5 * 22 * TOKEN_BYTES) / 1e6
    found = run(tmp_path, "pytorch_eager", job("memory-pressure", budget_mb=budget_mb))
    assert found["status"] == "out-of-memory"
    assert found["reason"].startswith("at session 4 of 5, turn 1: OutOfMemoryError")
    assert len(found["runs"]) == 2
    for one in found["runs"]:
        assert (one["sessions"], one["sessions_completed"]) == (5, 3)
        assert one["failures"] == [found["reason"]]
    assert [sample["sessions"] for sample in found["memory"]] == [1, 2, 3]


@torch_here
def test_agents_wait_for_the_next_token(tmp_path: Path) -> None:
    found = run(tmp_path, "pytorch_eager", job("agents", turns=3))
    assert found["status"] == "ran", found.get("reason")
    points = {(point["series"], point["x"]): point["ms"] for point in found["runs"][0]["points"]}
    assert set(points) == {("p50", 1), ("p99", 1), ("p50", 3), ("p99", 3)}
    assert all(points["p50", n] <= points["p99", n] for n in (1, 3))
    assert found["runs"][0]["resume_p99_ms"] == points["p99", 3]


@torch_here
def test_agents_stop_when_memory_runs_out(tmp_path: Path) -> None:
    # One agent of 27 tokens fits, and a second; a third does not.
    budget_mb = (PARAMETERS * 4 + 2.5 * 27 * TOKEN_BYTES) / 1e6
    found = run(tmp_path, "pytorch_eager", job("agents", budget_mb=budget_mb))
    assert found["status"] == "out-of-memory"
    assert found["reason"].startswith("at agent ")
    assert {point["x"] for point in found["runs"][0]["points"]} == {1}
    assert found["runs"][0]["failures"] == [found["reason"]]


@pytest.mark.skipif(not os.environ.get("LLAMA_BENCH"), reason="LLAMA_BENCH is not set")
@pytest.mark.skipif(not here("gguf", "numpy"), reason="gguf is not installed")
def test_llama_bench_runs_a_synthetic_model(tmp_path: Path) -> None:
    settings = {"scratch": str(tmp_path), "threads": 1}
    asked = job("virtual-memory", settings=settings)
    asked["model"]["dtype"] = "float16"
    found = run(tmp_path, "llama_cpp", asked)
    assert found["status"] == "ran", found.get("reason")
    assert len(found["runs"]) == 2
    for one in found["runs"]:
        assert one["tokens"] == one["passes"] == 6
        assert one["first_token_ms"] > 0 and one["per_token_ms"] > 0
    (written,) = tmp_path.glob("*.gguf")
    before = written.stat().st_mtime_ns
    assert run(tmp_path, "llama_cpp", asked)["status"] == "ran"
    assert written.stat().st_mtime_ns == before


@pytest.mark.skipif(not here("torch", "deepspeed"), reason="deepspeed is not installed")
def test_deepspeed_matches_the_reference(tmp_path: Path, story: dict[str, Any]) -> None:
    found = run(tmp_path, "deepspeed_zero", story_job(tmp_path, story, "virtual-memory"))
    if found["status"] == "absent":
        pytest.skip(found["reason"])
    assert found["status"] == "ran", found.get("reason")
    assert found["runs"][0]["tokens_match"] is True and found["runs"][0]["logit_match"] is True


def test_deepspeed_retries_with_fewer_resident_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, common = modules(monkeypatch, "deepspeed_zero", "common")
    tried = []

    def attempt(asked: dict[str, Any]) -> dict[str, Any]:
        tried.append(asked["settings"]["share"])
        if tried[-1] > 0.6:
            return {"status": "out-of-memory", "reason": "full", "settings": {}}
        return {"status": "ran", "settings": {"resident_mb": 7}, "runs": [{"run_id": 0}]}

    monkeypatch.setattr(zero, "in_a_process", attempt)
    monkeypatch.setattr(zero, "need_found", lambda *_: None)
    report = common.Report("deepspeed_zero", "DeepSpeed")
    zero.body(job("virtual-memory"), report)
    assert tried == [share for share in zero.SHARES if share >= 0.5]
    assert report.status == "ran" and report.reason is None
    assert report.settings == {"resident_mb": 7} and report.runs == [{"run_id": 0}]


def test_deepspeed_gives_up_without_resident_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    zero, common = modules(monkeypatch, "deepspeed_zero", "common")
    full = {"status": "out-of-memory", "reason": "full", "settings": {"resident_mb": 0}}
    tried = []
    monkeypatch.setattr(zero, "in_a_process", lambda asked: tried.append(asked) or full)
    monkeypatch.setattr(zero, "need_found", lambda *_: None)
    report = common.Report("deepspeed_zero", "DeepSpeed")
    zero.body(job("virtual-memory"), report)
    assert len(tried) == 1 and report.status == "out-of-memory"


@pytest.mark.parametrize("limit", [None, 20e6, 2e9])
def test_deepspeed_keeps_fewer_weights_with_every_attempt(
    monkeypatch: pytest.MonkeyPatch, limit: float | None
) -> None:
    zero, common = modules(monkeypatch, "deepspeed_zero", "common")
    monkeypatch.setattr(zero, "SPARE", 1e6)

    class Parameter:
        def numel(self) -> int:
            return 1 << 20

    class Model:
        config = type("Config", (), {"hidden_size": 64})

        def parameters(self) -> list[Parameter]:
            return [Parameter()] * 4

    kept = []
    for share in zero.SHARES:
        report = common.Report("deepspeed_zero", "DeepSpeed")
        found = zero.zero_config(job("virtual-memory"), report, Model(), 16 << 20, limit, share)
        kept.append(found["zero_optimization"]["stage3_model_persistence_threshold"])
    assert all(later < earlier for earlier, later in pairwise(kept)), kept
    assert kept[-1] == 0
    if limit is None or limit > 1e9:
        assert kept[0] == 4 << 20
