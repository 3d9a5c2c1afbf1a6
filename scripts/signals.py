"""Measures the time from the signal that a session waits to the start of its page-out.

Needs the Python package and a server whose device memory does not hold the KV cache of all sessions:

    djinn serve --device cuda:0 --model 'm=shape:llama-2-13b?dtype=f16' --memory 60GB --kv 6GB \
        --host-memory 30GB --context 2048 --batch 8 --sessions 12
    python scripts/signals.py 127.0.0.1:5556
"""

from __future__ import annotations

import statistics
import sys
import threading
import time

import djinn

SIGNALS = 50
PROMPT = [(i * 7919) % 31_000 for i in range(1024)]


def measure(session: djinn.Session) -> tuple[list[int], list[int]]:
    """Returns the reaction time of each signal in microseconds, and the number of pages it moved."""
    times, moved = [], []
    for _ in range(SIGNALS):
        before = session.info().pages_away
        with session.waiting() as reaction_us:
            times.append(reaction_us)
            moved.append(session.info().pages_away - before)
        time.sleep(0.12)  # until the pages are back on the device
    return times, moved


def generate(model: djinn.Model, number: int, stop: threading.Event) -> None:
    """Generates tokens until `stop` is set."""
    while not stop.is_set():
        for _ in model.generate([5, 6, 7, number], max_tokens=400, stream=True, ignore_eos=True):
            if stop.is_set():
                break


def main() -> None:
    model = djinn.connect(sys.argv[1] if len(sys.argv) > 1 else None).model()
    with model.session(ignore_eos=True) as session:
        session.generate(PROMPT, max_tokens=2)
        for others in (0, 1, 4):
            stop = threading.Event()
            threads = [threading.Thread(target=generate, args=(model, i, stop)) for i in range(others)]
            for thread in threads:
                thread.start()
            time.sleep(1)
            times, moved = measure(session)
            stop.set()
            for thread in threads:
                thread.join()
            tenth = sorted(times)[SIGNALS * 9 // 10]
            print(
                f"{others} other sessions: median {statistics.median(times):.0f} µs, 90 % in {tenth} µs, "
                f"at most {max(times)} µs, {min(moved)} to {max(moved)} pages"
            )


if __name__ == "__main__":
    main()
