"""Makes docs/internals/performance.md and its plots from the figures of the benches.

tests.bench.side_by_side writes docs/internals/performance/last-run.json, the benches of this driver alone write
docs/internals/performance/alone.json.

`make gen` writes them, `make check` compares. Pure: the same figures give the same bytes.
"""

import json
import statistics
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import svg_plot

DATA = Path("docs/internals/performance/last-run.json")
ALONE = Path("docs/internals/performance/alone.json")
PAGE = Path("docs/internals/performance.md")
FOLDER = Path("docs/internals/performance")
CASES = {"none": "no claim held", "32": "32 claims held", "128": "128 claims held", "batch8": "8 claims in one call"}
MEASURES = {"prepare_p50": "prepare, median", "prepare_p99": "prepare, 99th percentile", "again_p50": "prepare again"}
MEASURES["unprepare_p50"] = "unprepare, median"
# What the project set itself, as a share of the Go driver's figure.
BUDGETS: dict[tuple[str, ...], float] = {
    ("none", "prepare_p50"): 0.6,
    ("32", "prepare_p50"): 0.15,
    ("128", "prepare_p50"): 0.035,
    ("none", "unprepare_p50"): 1.0,
    ("128", "unprepare_p50"): 0.035,
    ("batch8", "prepare_p50"): 0.3,
    ("rss_start_mib",): 1.0,
    ("rss_128_mib",): 1.0,
    ("start_s",): 0.6,
}
FLOOR_BUDGET, IDLE_BUDGET = 2.0, 0.2
OURS, GO = "this driver", "NVIDIA's Go driver"


def generate(source: Path, target: Path) -> None:
    """Write page and plots below ``target``; nothing when ``source`` has no figures."""
    if not (source / DATA).exists():
        return
    found = json.loads((source / DATA).read_text())
    alone = json.loads((source / ALONE).read_text()) if (source / ALONE).exists() else {}
    (target / FOLDER).mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(found, alone))
    for name, text in plots(found).items():
        (target / FOLDER / name).write_text(text)


def outputs(root: Path) -> list[Path]:
    """The generated files that exist below ``root``."""
    return [path for path in (root / PAGE, *(root / FOLDER).glob("*.svg")) if path.exists()]


def plots(found: Mapping[str, Any]) -> dict[str, str]:
    held = {name: [(int(c) if c.isdigit() else 0, of(found, kind, c, "prepare_p50")) for c in ("none", "32", "128")]
            for name, kind in ((OURS, "ours"), (GO, "go"))}  # fmt: skip
    memory = {
        label: {name: round(of(found, kind, key), 1) for name, kind in ((OURS, "ours"), (GO, "go"))}
        for label, key in (("after start", "rss_start_mib"), ("128 claims prepared", "rss_128_mib"))
    }
    drawn = {
        "prepare.svg": svg_plot.lines("Prepare", "claims held", "median, ms", held, log=True),
        "memory.svg": svg_plot.bars("Resident memory", "MiB", memory),
    }
    if rows := found.get("explain"):
        points = {"slowest question": [(row["nodes"], round(row["seconds"], 3)) for row in rows]}
        drawn["explain.svg"] = svg_plot.lines("explain", "nodes with 208 devices each", "seconds", points)
    return drawn


def page(found: Mapping[str, Any], alone: Mapping[str, Any]) -> str:
    """The page as Markdown, of the run side by side and of the benches of this driver alone."""
    parts = [
        _head(found),
        "## The kubelet's calls\n\n"
        + "\n".join(call_rows(found))
        + "\n\n![Prepare over claims held](performance/prepare.svg)",
        "## The floor\n\n" + floor_text(found),
        "## Start, memory, idle\n\n" + "\n".join(process_rows(found)) + "\n\n" + MEMORY,
    ]
    if alone:
        parts.append("## This driver alone\n\n" + "\n".join(alone_rows(alone)))
    if found.get("explain"):
        parts.append("## `kubectl dra explain`\n\n" + "\n".join(explain_rows(found)) + "\n\n" + EXPLAIN)
    return "\n\n".join([*parts, REPEAT]) + "\n"


def _head(found: Mapping[str, Any]) -> str:
    """The parts before the tables, wrapped anew: numbers and versions have any length."""
    loads = " ".join(f"{each['load']:g}" for kind in ("ours", "go") for each in found[kind])
    text = HEAD.format(**{"nice": 0} | found["machine"], n=found["n"], rounds=len(found["ours"]), loads=loads)
    return "\n\n".join(part if part.startswith("|") else textwrap.fill(part, 116) for part in text.split("\n\n"))


def of(found: Mapping[str, Any], kind: str, *path: str) -> float:
    """The median over the rounds."""
    return statistics.median(_at(figures, path) for figures in found[kind])


def _at(figures: Mapping[str, Any], path: tuple[str, ...]) -> float:
    value: Any = figures
    for name in path:
        value = value[name]
    return float(value)


def call_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| call | this driver, ms | Go driver, ms | ratio | budget |"
    yield "|---|---|---|---|---|"
    for case, label in CASES.items():
        for measure, what in MEASURES.items():
            yield row(found, f"{what}, {label}", (case, measure), 2)


def process_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| what | this driver | Go driver | ratio | budget |"
    yield "|---|---|---|---|---|"
    yield row(found, "start to slices published, s", ("start_s",), 2)
    yield row(found, "RSS after the start, MiB", ("rss_start_mib",), 1)
    yield row(found, "RSS with 128 claims, MiB", ("rss_128_mib",), 1)
    yield row(found, "PSS with 128 claims, MiB", ("pss_128_mib",), 1)
    mine, theirs = of(found, "ours", "idle_percent"), of(found, "go", "idle_percent")
    yield f"| idle CPU with 128 claims, % of a core | {mine:.2f} | {theirs:.2f} | | {verdict(mine, IDLE_BUDGET)} |"


def row(found: Mapping[str, Any], label: str, path: tuple[str, ...], digits: int) -> str:
    cells = []
    for kind in ("ours", "go"):
        each = " ".join(f"{_at(figures, path):.{digits}f}" for figures in found[kind])
        cells.append(f"**{of(found, kind, *path):.{digits}f}** ({each})")
    ratio = of(found, "ours", *path) / of(found, "go", *path)
    held = verdict(ratio, BUDGETS[path]) if path in BUDGETS else ""
    return f"| {label} | {cells[0]} | {cells[1]} | {ratio:.3f} | {held} |"


def verdict(value: float, budget: float) -> str:
    return f"{budget:g}: {'held' if value <= budget else '**not held**'}"


def floor_text(found: Mapping[str, Any]) -> str:
    low = {name: statistics.median(each[name] for each in found["floor"]) for name in found["floor"][0]}
    times = of(found, "ours", "none", "prepare_p50") / low["total"]
    return textwrap.fill(FLOOR.format(**low, times=times, verdict=verdict(times, FLOOR_BUDGET)), 116)


def alone_rows(alone: Mapping[str, Any]) -> Iterator[str]:
    """A table for each bench, in the order of `TITLES`."""
    yield ALONE_TEXT
    for bench, title in TITLES.items():
        if bench not in alone:
            continue
        found = alone[bench]
        text = f"{title} Load average at the start {found['load']:g}, niceness {found['nice']}."
        yield f"\n{textwrap.fill(text, 116)}\n"
        yield "| what | figure | budget | |\n|---|---|---|---|"
        for each in found["rows"]:
            budget = "" if each["budget"] is None else verdict(each["value"], each["budget"])
            yield f"| {each['what']} | {each['value']:.2f} {each['unit']} | {budget} | {each['extra']} |"


def explain_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| nodes | devices | slowest question, s | peak memory, MiB |"
    yield "|---|---|---|---|"
    for each in found["explain"]:
        yield f"| {each['nodes']} | {each['devices']:,} | {each['seconds']:.3f} | {each['mib']:.0f} |"


HEAD = """# Performance

This page is generated by `scripts/performance_docs.py` from the files in `docs/internals/performance`; do not edit it.

This driver and NVIDIA's Go driver (kubernetes-sigs/dra-driver-nvidia-gpu {goDriver}) were measured in one run on one
machine: both on the same mock of NVML with eight H100 (NVIDIA/k8s-test-infra {mockNvml}), which has no MIG, both
against the same real API server, with the same client and the same claims for whole GPUs. Each of {rounds} rounds
starts both afresh, in alternating order. Tables have the **median** of the rounds and each round in brackets; one
round's figure is itself a median over {n} claims. *Prepare again* is a repeated call for a claim that is prepared.

| machine and versions | |
|---|---|
| machine | {cores} cores ({cpu}), {memoryGiB} GiB, shared with other work; Linux {kernel} |
| niceness of all parts, of both drivers alike | {nice} |
| load average at the starts | {loads} |
| Kubernetes | {kubernetes}: etcd (without syncs) and kube-apiserver alone |
| this driver | {driver}, Python {python} |
| hook | nvidia-cdi-hook of NVIDIA/nvidia-container-toolkit {cdiHook} |

No figure is from a real GPU: what NVML and hardware cost comes on top, for both drivers."""

FLOOR = """A prepare reads the claim from the API server, makes one durable write and answers a gRPC call. Measured
bare, from Python, in the same run: GET of a fresh claim {get:.2f} ms, 4 KiB and fdatasync {fdatasync:.2f} ms, a gRPC
call through a unix socket with both ends in Python {grpc:.2f} ms, together {total:.2f} ms. A prepare with no claim held
takes {times:.2f} times that; the budget is {verdict}."""

MEMORY = """![Resident memory](performance/memory.svg)

RSS counts every page that a process has mapped, also those of libraries that other processes share; PSS counts such a
page in part. On a node with one Python process, PSS is nearly RSS: here the measuring client shares Python's own pages,
so the PSS of this driver is smaller than on a node, and RSS is the figure to compare.

The mock of NVML brings a runtime of Go with threads of its own into the process that loads it. In this driver, which
looks at the GPUs every ten seconds, they wake some hundred times a second and are nearly half of the idle CPU of this
table; the table of this driver at rest, below, is without them. The Go driver does not look at its GPUs at rest."""

ALONE_TEXT = """Three benches of this driver on the same machine at other times, against budgets in absolute figures.
Other work on the CPU and the disk slows all calls; memory does not depend on it, idle CPU less.

As a pod of the chart on Kubernetes 1.36, with eight simulated GPUs, probes and `exporter.enabled`, without
claims and at a load average of 34, the node process took 0.27 % of a core by its cgroup over 300 s (budget 0.2:
**not held**) and 56.4 MiB."""

TITLES = {
    "idle_bench": "**At rest**, on the stand-in for NVIDIA's NVML of this project's tests, with MIG, health"
    " and policies on (`python -m tests.bench.idle_bench`).",
    "node": "**One GPU after the other**, simulated GPUs, embedded API server (`python -m tests.bench`).",
    "forms_bench": "**Every form**, simulated GPUs and files on the disk, embedded API server"
    " (`python -m tests.bench.forms_bench`). *First* is a claim on an unused GPU, *further* one beside another.",
}
"""Of the tables of the benches of this driver alone."""

EXPLAIN = """![Time of explain](performance/explain.svg)

One process from its start to its end, reading a state file of nodes with eight H100 in every MIG form; the slowest of
four questions, best of five runs."""

REPEAT = """## Repeat it

Build `kube-apiserver`, `etcd`, the Go driver, the mock of NVML and `nvidia-cdi-hook` from the sources above, name them
in the environment as the head of `tests/bench/side_by_side.py` says, and run

    python -m tests.bench.side_by_side --json docs/internals/performance/last-run.json
    python -m tests.bench.idle_bench --json docs/internals/performance/alone.json
    python -m tests.bench --json docs/internals/performance/alone.json
    python -m tests.bench.forms_bench --json docs/internals/performance/alone.json
    make gen

`make bench` measures this driver alone, on simulated GPUs, with the floor beside it. What was tried and did not pay is
in [0017](../decisions/0017-what-a-prepare-costs.md)."""
