#!/usr/bin/env python3
"""Compares the predictions of `djinn plan` with the measurements of `djinn run` at several budgets.

    scripts/plan_against_run.py --djinn target/release/djinn --model FOLDER --memory 1GB 2GB 4GB

Peak memory is the resident size of the process, as the kernel reports it. Needs only Python.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

CONTEXT = 32


def planned(djinn, model, memory):
    command = [djinn, "plan", "--model", model, "--memory", memory, "--context", str(CONTEXT), "--json"]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def measured(djinn, model, memory, tokens):
    """Runs djinn; returns its report and the peak memory of the process in bytes."""
    command = [djinn, "run", "--model", model, "--memory", memory, "--tokens", "1,2,3", "--ignore-eos",
               "--max-tokens", str(tokens), "--stats", "--json"]
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(command)}: status {status}")
        out.seek(0)
        return json.load(out), usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--djinn", default="target/release/djinn")
    parser.add_argument("--model", required=True)
    parser.add_argument("--memory", nargs="+", required=True, help="memory budgets, in the format of djinn --memory")
    parser.add_argument("--tokens", type=int, default=12, help="number of tokens to generate (default 12)")
    args = parser.parse_args()

    print("memory     predicted   measured   error    link GB/s, idle    peak memory   over the budget")
    worst = 0.0
    for memory in args.memory:
        plan = planned(args.djinn, args.model, memory)
        report, peak = measured(args.djinn, args.model, memory, args.tokens)
        passes = report["passes"][1:]
        pass_s = statistics.median(p["seconds"] for p in passes)
        link = statistics.median(p["link_gb_per_s"] for p in passes)
        predicted_s = plan["prediction"]["pass_s"]
        off = predicted_s / pass_s - 1
        worst = max(worst, abs(off))
        over = peak - plan["budget_bytes"]
        print(f"{memory:<9} {predicted_s * 1e3:8.0f} ms {pass_s * 1e3:7.0f} ms   {off:+6.1%}"
              f"   {link:5.2f}, {report['link_alone_gb_per_s']:5.2f}       {peak / 1e6:8.1f} MB   {over / 1e6:+8.1f} MB")
    print(f"largest difference {worst:.1%}")


if __name__ == "__main__":
    main()
