"""Measure how long one claim takes in a large cluster: ``python -m tests.bench.allocation_bench``. Each figure is one
process with start and imports, without reading the cluster. Exit status 1 if a budget is exceeded."""

import argparse
import gc
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

BUDGETS = {"whole": 0.25, "mig": 2.0}
MEMORY_BUDGET_MIB = 1024.0
QUESTIONS = ("first", "profile", "busy", "nowhere")
_ROOT = Path(__file__).resolve().parents[2]
_FULL = 1000
_RUNS = {"whole": 5, "mig": 1}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure allocation against clusters of H100 nodes")
    parser.add_argument("--nodes", type=int, default=_FULL, help="nodes of the largest cluster")
    parser.add_argument("--child", nargs=3, metavar=("KIND", "NODES", "QUESTION"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return _measure(args.child[0], int(args.child[1]), args.child[2])
    print("one claim for one device; seconds without reading the cluster, with start of the process")
    print("  first: the first GPU fits   profile: a MIG profile   busy: all whole GPUs are taken   nowhere: no match")
    breached = False
    for kind in ("whole", "mig"):
        for nodes in sorted({max(1, args.nodes // 8), max(1, args.nodes // 4), max(1, args.nodes // 2), args.nodes}):
            breached |= _row(kind, nodes)
    return 1 if breached else 0


def _row(kind: str, nodes: int) -> bool:
    """Print one cluster's line; return whether a budget (for a thousand nodes) is exceeded. The best of short runs
    counts."""
    cells, breached, memory = [], False, 0.0
    for question in QUESTIONS:
        if kind == "whole" and question == "profile":
            continue
        found = min((_run(kind, nodes, question) for _ in range(_RUNS[kind])), key=lambda run: run["seconds"])
        over = nodes <= _FULL and found["seconds"] > BUDGETS[kind]
        breached |= over
        memory = max(memory, found["mib"])
        cells.append(f"{question} {found['seconds']:.3f}{' OVER' if over else ''}")
    breached |= memory > MEMORY_BUDGET_MIB
    devices = nodes * (208 if kind == "mig" else 8)
    budget = f"budget {BUDGETS[kind]:g} s, {MEMORY_BUDGET_MIB:g} MiB"
    print(
        f"{kind:<6}{nodes:>6} nodes {devices:>7} devices  {'  '.join(cells)}  {memory:.0f} MiB  ({budget})", flush=True
    )
    return breached


def _run(kind: str, nodes: int, question: str) -> dict[str, float]:
    command = [sys.executable, "-m", "tests.bench.allocation_bench", "--child", kind, str(nodes), question]
    started = time.monotonic()
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=600)
    took = time.monotonic() - started
    found: dict[str, float] = json.loads(done.stdout)
    return {"seconds": took - found["reading"], "mib": found["mib"]}


def _measure(kind: str, nodes: int, question: str) -> int:
    from dra_driver.scheduler.allocation import Allocator

    started = time.monotonic()
    from tests.bench import allocation_cluster as cluster

    gc.disable()  # as a command does that reads once and ends
    parts = cluster.SharedParts()
    slices = [
        json.loads(text, object_pairs_hook=parts.join)
        for index in range(nodes)
        for text in cluster.slices(index, mig=kind == "mig")
    ]
    where = [cluster.node(index) for index in range(nodes)]
    every_gpu = [f"gpu-{minor}" for minor in range(cluster.GPUS)]
    held = [cluster.holding(index, *every_gpu) for index in range(nodes)] if question == "busy" else []
    gc.enable()
    gc.freeze()
    reading = time.monotonic() - started

    claims = [_claim(question)]
    asked = Allocator(slices=slices, classes=cluster.classes(), allocated=held).question(claims)
    fits = sum(asked.on(node).allocations is not None for node in where)
    expected = nodes if question in ("first", "profile") else 0
    assert fits == expected, f"{fits} of {nodes} nodes fit, expected {expected}"
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"reading": reading, "mib": mib}), flush=True)
    return 0


def _claim(question: str) -> dict[str, object]:
    from tests.bench.allocation_cluster import claim

    if question == "profile":
        return claim("mig.nvidia.com", "device.attributes['gpu.nvidia.com'].profile == '1g.20gb'")
    if question == "nowhere":
        return claim(expression="device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'")
    return claim()


if __name__ == "__main__":
    sys.exit(main())
