"""Measure ``kubectl dra explain`` in a large cluster: ``python -m tests.bench.explain_bench``. Each figure is the best
of several processes, with reading the state from a file. Exit status 1 if a budget is exceeded."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from tests.bench import allocation_cluster as cluster

BUDGET_S = 1.0
MEMORY_BUDGET_MIB = 128.0
_RUNS = 5
_IDLE, _BUSY = "idle.json", "busy.json"
_DEVICES_PER_NODE = 208
_PROFILE = "device.attributes['gpu.nvidia.com'].profile == '1g.20gb'"
QUESTIONS: dict[str, dict[str, Any]] = {
    "first": {},
    "profile": {"class_name": "mig.nvidia.com", "expression": _PROFILE},
    "nowhere": {"expression": "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA B200'"},
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure kubectl dra explain on clusters of H100 nodes")
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of the largest cluster")
    parser.add_argument("--json", action="store_true", help="print the figures as one line of JSON, too")
    parser.add_argument("--write", nargs=2, metavar=("NODES", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.write:
        _write(int(args.write[0]), Path(args.write[1]) / _IDLE, Path(args.write[1]) / _BUSY)
        return 0
    print("explain one claim; seconds with start of the process and reading the state, best of 5")
    print("  first: the first GPU fits   profile: a MIG profile   nowhere: no match   busy: all GPUs are in use")
    breached = False
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for nodes in sorted({max(1, args.nodes // 8), max(1, args.nodes // 4), max(1, args.nodes // 2), args.nodes}):
            row = _row(nodes, Path(folder))
            rows.append(row)
            breached |= row["seconds"] > BUDGET_S or row["mib"] > MEMORY_BUDGET_MIB
    if args.json:
        print(json.dumps(rows))
    return 1 if breached else 0


def _row(nodes: int, folder: Path) -> dict[str, Any]:
    idle, busy = folder / _IDLE, folder / _BUSY
    # In a process of its own: the kernel counts the memory of the parent at a fork as the child's peak.
    command = [sys.executable, "-m", "tests.bench.explain_bench", "--write", str(nodes), str(folder)]
    subprocess.run(command, check=True, timeout=600)
    found = {name: _best(idle, name) for name in QUESTIONS}
    found["busy"] = _best(busy, "first")
    seconds = max(one[0] for one in found.values())
    mib = max(one[1] for one in found.values())
    cells = "  ".join(f"{name} {one[0]:.3f}{' OVER' if one[0] > BUDGET_S else ''}" for name, one in found.items())
    size = idle.stat().st_size / (1 << 20)
    print(
        f"{nodes:>6} nodes {nodes * _DEVICES_PER_NODE:>7} devices  {cells}  {mib:.0f} MiB  file {size:.1f} MiB"
        f"  (budget {BUDGET_S:g} s, {MEMORY_BUDGET_MIB:g} MiB)",
        flush=True,
    )
    return {"nodes": nodes, "devices": nodes * _DEVICES_PER_NODE, "seconds": seconds, "mib": mib, "fileMib": size} | {
        name: one[0] for name, one in found.items()
    }


def _write(nodes: int, idle: Path, busy: Path) -> None:
    from dra_driver.kube.state_file import dump, load

    dump(cluster.state(nodes, claims=tuple(_question(name) for name in QUESTIONS)), idle)
    small = load(idle)
    dump(replace(small, claims=(*small.claims, *cluster.held(range(nodes)))), busy)


def _question(name: str) -> dict[str, Any]:
    claim = cluster.claim(**QUESTIONS[name])
    claim["metadata"] |= {"name": name, "uid": name}
    return claim


def _best(file: Path, question: str) -> tuple[float, float]:
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "explain", f"claim/{question}"]
    runs = [_run([*command, "--cluster-state", str(file)], f"claim default/{question}") for _ in range(_RUNS)]
    return min(seconds for seconds, _ in runs), max(mib for _, mib in runs)


def _run(command: list[str], start: str) -> tuple[float, float]:
    """Seconds and MiB of one process. Raises RuntimeError when its output does not begin as expected."""
    started = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, _, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
        process.returncode = 0  # waited for already
    if not text.startswith(start):
        raise RuntimeError(f"explain failed: {text[:500]}")
    return seconds, used.ru_maxrss / 1024


if __name__ == "__main__":
    sys.exit(main())
