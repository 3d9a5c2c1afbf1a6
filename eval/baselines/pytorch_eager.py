#!/usr/bin/env python3
"""Sessions in plain PyTorch: the KV cache of every session stays in device memory.

memory-pressure: every session computes its prompt and generates tokens, then every session
continues with its next turn. If memory runs out, the run records how far it came. agents: agents
pause between turns; the script measures the time from the end of a pause to the next token, with
one turn computed at a time.
"""

from __future__ import annotations

import gc
import heapq
import os
import time
from collections.abc import Callable
from typing import Any

from common import (
    GB,
    MB,
    Absent,
    Memory,
    Report,
    cache_tensors,
    greedy,
    is_out_of_memory,
    last_line,
    limit_allocator,
    load_model,
    main,
    measure,
    need,
    percentile,
    plain_step,
    settle_torch,
    tensor_bytes,
    versions,
    weight_bytes,
)

# Reduces the fragmentation that caches cause when they grow token by token.
ALLOCATOR = "expandable_segments:True"


def body(job: dict[str, Any], report: Report) -> None:
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", ALLOCATOR)
    memory = Memory(job["device"])
    torch = settle_torch(job, report)
    need("transformers")
    report.program = f"{versions('transformers', 'torch')}, eager"
    limit = limit_allocator(job, report, memory)
    report.settings.update(
        attention="sdpa",
        cache="a DynamicCache for each session, in device memory",
        allocator=os.environ["PYTORCH_CUDA_ALLOC_CONF"] if memory.cuda else None,
    )
    model = load_model(job, job["device"])
    desk = Desk(torch, job, model, memory, limit)
    if job["experiment"] == "memory-pressure":
        pressure(job, report, desk)
    elif job["experiment"] == "agents":
        agents(job, report, desk)
    else:
        raise Absent(f"pytorch_eager is not available for {job['experiment']}")


class Desk:
    """Computes turns of sessions and keeps their KV caches."""

    def __init__(
        self, torch: Any, job: dict[str, Any], model: Any, memory: Memory, limit: float | None
    ) -> None:
        self.torch, self.job, self.memory, self.limit = torch, job, memory, limit
        self.step = plain_step(model)
        self.weights = weight_bytes(model)
        self.vocabulary = model.config.vocab_size
        self.caches: dict[int, Any] = {}
        self.last: dict[int, int] = {}
        self.kv: dict[int, int] = {}

    def turn(self, session: int, first: bool) -> float:
        """Computes a turn of a session; returns the arrival time of its first token."""
        job = self.job
        length = int(job["prompt_length"] if first else job.get("answer") or 1)
        words = self.words(session, length)
        if not first:
            words = [self.last[session], *words]
        ids = self.torch.tensor([words], device=job["device"])
        cache: list[Any] = [self.caches.get(session)]

        def step(ids: Any, _cache: Any) -> tuple[Any, Any]:
            logits, cache[0] = self.step(ids, cache[0])
            return logits, cache[0]

        found = greedy(step, ids, int(job["output"]), cache[0])
        self.caches[session], self.last[session] = cache[0], found.tokens[-1]
        self.kv[session] = tensor_bytes(cache_tensors(cache[0]))
        self.charge()
        return found.times[0]

    def words(self, session: int, length: int) -> list[int]:
        """Returns the prompt tokens of a session, which are the same in every run."""
        seed = self.torch.Generator().manual_seed(1000 + session)
        return self.torch.randint(self.vocabulary, (length,), generator=seed).tolist()

    def charge(self) -> None:
        """Applies the budget on a CPU, where the allocator itself has no limit."""
        if self.memory.cuda or self.limit is None:
            return
        held = self.weights + sum(self.kv.values())
        if held > self.limit:
            reason = f"weights and KV take {held / MB:.0f} of {self.limit / MB:.0f} MB"
            raise self.torch.OutOfMemoryError(reason)

    def kv_mb(self) -> float:
        return sum(self.kv.values()) / MB

    def clear(self) -> None:
        self.caches.clear()
        self.last.clear()
        self.kv.clear()
        gc.collect()
        if self.memory.cuda:
            self.torch.cuda.empty_cache()


def attempt(work: Callable[[], Any]) -> str | None:
    """Calls `work`; returns the error message if memory ran out, after releasing its frame."""
    try:
        work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return last_line(error)
    return None


def pressure(job: dict[str, Any], report: Report, desk: Desk) -> None:
    sessions, turns = int(job["sessions"]), int(job.get("turns") or 1)
    report.settings.update(
        sessions=sessions,
        turns=turns,
        sessions_completed="sessions that completed the last turn of the run",
        later_turns=f"{job.get('answer') or 1} prompt tokens, then {job['output']} generated",
    )

    def once() -> dict[str, Any]:
        desk.clear()
        began = time.perf_counter()
        samples: list[dict[str, Any]] = []
        failure = None
        for turn in range(turns):
            completed = 0
            for session in range(sessions):
                failure = attempt(lambda s=session, t=turn: desk.turn(s, t == 0))
                if failure is not None:
                    failure = f"at session {session + 1} of {sessions}, turn {turn + 1}: {failure}"
                    break
                samples.append(sample(desk))
                completed = session + 1
            if failure is not None:
                break
        total = (time.perf_counter() - began) * 1e3
        report.memory = samples
        found = {
            "total_time_ms": total,
            "sessions": sessions,
            "sessions_completed": completed,
            "kv_demand_gb": demand(desk, sessions),
            "model_size_gb": desk.weights / GB,
        }
        if failure is not None:
            report.out_of_memory(failure)
            found["failures"] = [failure]
        return found

    first = measure(job, report, desk.memory, once)
    # The samples of the last run, relative to the start of the first.
    for point in report.memory:
        point["t_s"] = round(point["t_s"] - first, 3)


def sample(desk: Desk) -> dict[str, Any]:
    return {
        "t_s": time.perf_counter(),
        "used_mb": round(desk.memory.used_mb(), 1),
        "kv_mb": round(desk.kv_mb(), 3),
        "sessions": len(desk.caches),
    }


def demand(desk: Desk, sessions: int) -> float | None:
    """Returns the KV cache of all sessions after their last turn, in GB."""
    job, turns = desk.job, int(desk.job.get("turns") or 1)
    if not desk.kv:
        return None
    tokens = int(job["prompt_length"]) + turns * int(job["output"])
    tokens += (turns - 1) * int(job.get("answer") or 1) - 1
    session, held = next(iter(desk.kv.items()))
    length = desk.caches[session].get_seq_length()
    return sessions * tokens * held / length / GB


def agents(job: dict[str, Any], report: Report, desk: Desk) -> None:
    turns = max(2, int(job.get("turns") or 2))
    counts = [int(count) for count in job["agents"]]
    report.settings.update(
        agents=counts,
        turns=turns,
        think_s=job["think_s"],
        order="one turn at a time, in the order in which pauses end",
    )

    def once() -> dict[str, Any]:
        points, samples, waits = [], [], {}
        for count in counts:
            desk.clear()
            waits[count] = []
            failure = attempt(lambda n=count: run_agents(desk, n, turns, waits[n], samples))
            if failure is not None:
                report.out_of_memory(f"at agent {len(desk.caches) + 1} of {count}: {failure}")
                break
            for series, share in (("p50", 0.5), ("p99", 0.99)):
                ms = percentile(waits[count], share)
                points.append({"series": series, "x": count, "ms": ms})
        report.memory = samples
        found: dict[str, Any] = {"points": points, "model_size_gb": desk.weights / GB}
        if points:
            found["resume_p50_ms"], found["resume_p99_ms"] = points[-2]["ms"], points[-1]["ms"]
        if report.reason:
            found["failures"] = [report.reason]
        return found

    # Warms the process up with one agent before the measurement.
    attempt(lambda: run_agents(desk, 1, turns, [], []))
    first = measure(job, report, desk.memory, once)
    for point in report.memory:
        point["t_s"] = round(point["t_s"] - first, 3)


def run_agents(
    desk: Desk, count: int, turns: int, waits: list[float], samples: list[dict[str, Any]]
) -> None:
    """Runs agents with pauses between turns; appends each waiting time in ms to `waits`."""
    now = time.perf_counter()
    ready = [(now, agent, 0) for agent in range(count)]
    while ready:
        at, agent, turn = heapq.heappop(ready)
        time.sleep(max(0.0, at - time.perf_counter()))
        came = desk.turn(agent, turn == 0)
        samples.append(sample(desk))
        if turn > 0:
            waits.append((came - at) * 1e3)
        if turn + 1 < turns:
            pause = pause_s(desk.job["think_s"], agent, count)
            heapq.heappush(ready, (time.perf_counter() + pause, agent, turn + 1))


def pause_s(think: Any, agent: int, count: int) -> float:
    """Returns the pause of an agent in seconds: fixed, or spread over a range."""
    if isinstance(think, (int, float)):
        return float(think)
    low, high = think
    return low + (high - low) * (agent + 0.5) / count


if __name__ == "__main__":
    main("pytorch_eager", "transformers, eager", body)
