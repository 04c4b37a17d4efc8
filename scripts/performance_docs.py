"""Generate docs/internals/performance.md and its plots from the figures of the benches.

tests.bench.side_by_side writes docs/internals/performance/last-run.json, the benches of this driver alone write
docs/internals/performance/alone.json. `make gen` writes the page, `make check` compares it.
"""

import json
import re
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
CASES = {"none": "no claim held", "32": "32 claims held", "128": "128 claims held", "batch8": "8 claims per call"}
MEASURES = {"prepare_p50": "prepare", "prepare_p99": "prepare p99", "again_p50": "repeated prepare"}
MEASURES["unprepare_p50"] = "unprepare"
# Upper limits that this project sets, as a ratio to the Go driver's figure.
BUDGETS: dict[tuple[str, ...], float] = {
    ("none", "prepare_p50"): 1.0,
    ("none", "prepare_p99"): 1.0,
    ("none", "unprepare_p50"): 1.0,
    ("32", "prepare_p50"): 0.15,
    ("128", "prepare_p50"): 0.035,
    ("128", "unprepare_p50"): 0.035,
    ("batch8", "prepare_p50"): 0.3,
    ("rss_128_mib",): 1.1,
    ("start_s",): 1.0,
}
IDLE_BUDGET = 0.4
OURS, GO = "this driver", "NVIDIA's Go driver"


def generate(source: Path, target: Path) -> None:
    """Write page and plots below ``target``, if ``source`` has figures."""
    if not (source / DATA).exists():
        return
    found = json.loads((source / DATA).read_text())
    alone = json.loads((source / ALONE).read_text()) if (source / ALONE).exists() else {}
    (target / FOLDER).mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text(page(found, alone))
    for name, text in plots(found).items():
        (target / FOLDER / name).write_text(text)


def outputs(root: Path) -> list[Path]:
    """Return the generated files that exist below ``root``."""
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
    """Return the page: the comparison run, and the benches of this driver alone."""
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
    """Return the text before the tables, wrapped again because numbers and versions vary in length."""
    loads = " ".join(f"{each['load']:g}" for kind in ("ours", "go") for each in found[kind])
    text = HEAD.format(**{"nice": 0} | found["machine"], n=found["n"], rounds=len(found["ours"]), loads=loads)
    return "\n\n".join(part if part.startswith("|") else textwrap.fill(part, 116) for part in text.split("\n\n"))


def of(found: Mapping[str, Any], kind: str, *path: str) -> float:
    """Return the median of the rounds."""
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
        for measure, name in MEASURES.items():
            yield row(found, f"{name}, {label}", (case, measure), 2)


def process_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| measurement | this driver | Go driver | ratio | budget |"
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
        each = [_at(figures, path) for figures in found[kind]]
        cells.append(f"**{of(found, kind, *path):.{digits}f}** ({min(each):.{digits}f}-{max(each):.{digits}f})")
    ratio = of(found, "ours", *path) / of(found, "go", *path)
    held = verdict(ratio, BUDGETS[path]) if path in BUDGETS else ""
    return f"| {label} | {cells[0]} | {cells[1]} | {ratio:.3f} | {held} |"


def verdict(value: float, budget: float) -> str:
    return f"{budget:g}: {'met' if value <= budget else '**exceeded**'}"


def floor_text(found: Mapping[str, Any]) -> str:
    low = {name: statistics.median(each[name] for each in found["floor"]) for name in found["floor"][0]}
    times = of(found, "ours", "none", "prepare_p50") / low["total"]
    return textwrap.fill(FLOOR.format(**low, times=times), 116)


def alone_rows(alone: Mapping[str, Any]) -> Iterator[str]:
    """A table for each bench, in the order of `TITLES`."""
    yield ALONE_TEXT
    for bench, title in TITLES.items():
        if bench not in alone:
            continue
        found = alone[bench]
        text = f"{title} Load average at the start {found['load']:g}, niceness {found['nice']}."
        yield f"\n{textwrap.fill(text, 116)}\n"
        calls = {each["what"]: each for each in found["rows"] if each["what"].endswith("prepare, p50")}
        yield "| measurement | figure | budget | |\n|---|---|---|---|"
        for each in found["rows"]:
            budget = "" if each["budget"] is None else verdict(each["value"], each["budget"])
            if each["what"] not in calls:
                yield f"| {each['what']} | {each['value']:.2f} {each['unit']} | {budget} | {each['extra']} |"
        if calls:
            yield "\n| device | prepare, ms (p99) | unprepare, ms (p99) |\n|---|---|---|"
            cases = dict.fromkeys(re.sub(r", (un)?prepare, p50$", "", name) for name in calls)
            yield from (f"| {case} | {_call(calls, case, 'prepare')} | {_call(calls, case, 'unprepare')} |"
                        for case in cases)  # fmt: skip


def _call(calls: Mapping[str, Mapping[str, Any]], case: str, kind: str) -> str:
    """Return the median of a call, its p99 and its budget."""
    if (found := calls.get(f"{case}, {kind}, p50")) is None:
        return ""
    p99 = re.match(r"p99 (\S+) ms", found["extra"])
    budget = "" if found["budget"] is None else f", budget {verdict(found['value'], found['budget'])}"
    return f"{found['value']:.2f} ({p99[1] if p99 else ''}){budget}"


def explain_rows(found: Mapping[str, Any]) -> Iterator[str]:
    yield "| nodes | devices | slowest question, s | peak memory, MiB |"
    yield "|---|---|---|---|"
    for each in found["explain"]:
        yield f"| {each['nodes']} | {each['devices']:,} | {each['seconds']:.3f} | {each['mib']:.0f} |"


HEAD = """# Performance

`scripts/performance_docs.py` generates this page from the files in `docs/internals/performance`; do not edit it.

One run compares this driver with NVIDIA's Go driver (kubernetes-sigs/dra-driver-nvidia-gpu {goDriver}) on one machine.
Both use the same mock of NVML with eight H100 (NVIDIA/k8s-test-infra {mockNvml}, without MIG), the same API server,
client and claims for whole GPUs. Each of {rounds} rounds starts both drivers, in alternating order. Tables show the
**median** of the rounds and their range. Each round's figure is the median of {n} claims, or the 99th percentile (p99).
A *repeated prepare* is a call for a prepared claim.

| machine and versions | |
|---|---|
| machine | {cores} cores ({cpu}), {memoryGiB} GiB, shared with other work; Linux {kernel} |
| niceness of both drivers | {nice} |
| load average at the starts | {loads} |
| Kubernetes | {kubernetes}: only etcd (without syncs) and kube-apiserver |
| this driver | {driver}, Python {python} |
| hook | nvidia-cdi-hook of NVIDIA/nvidia-container-toolkit {cdiHook} |

No figure is from a real GPU, which adds the cost of NVML and hardware to both drivers."""

FLOOR = """A prepare reads the claim from the API server, makes one durable write and answers a gRPC call. In the same
run, a Python client measures these steps alone: GET of a new claim {get:.2f} ms, 4 KiB and fdatasync
{fdatasync:.2f} ms, a gRPC call through a Unix socket {grpc:.2f} ms, together {total:.2f} ms. A prepare with no claim
held takes {times:.2f} times the sum."""

MEMORY = """![Resident memory](performance/memory.svg)

RSS counts all mapped pages, PSS only a share of each page that processes share. The measuring client shares Python's
pages with this driver and lowers its PSS. A node has no second Python process, so compare RSS.

The mock of NVML loads a Go runtime. In this driver, which reads the GPUs every ten seconds, its threads wake about 100
times per second and cause nearly half of the idle CPU above. The idle figure below excludes them. The Go driver does
not read its GPUs when idle."""

ALONE_TEXT = """Three benches of this driver on the same machine at other times, with absolute budgets. Other work slows
all calls, but not memory.

As a pod of the chart on Kubernetes 1.36 the node process took 0.27 % of a core by its cgroup over 300 s (budget 0.4:
met) and 56.4 MiB, with eight simulated GPUs, probes, `exporter.enabled` and no claims, at a load average of 34."""

TITLES = {
    "idle_bench": "**Idle**, with this project's mock of NVML, MIG, health and policies"
    " (`python -m tests.bench.idle_bench`).",
    "node": "**Single GPUs**, simulated, with the embedded API server (`python -m tests.bench`).",
    "forms_bench": "**Every form**, simulated, with files on disk and the embedded API server"
    " (`python -m tests.bench.forms_bench`). *First* is a claim on an unused GPU, *further* a claim on a used one."
    " Calls are medians of 20, or of five for the first MPS share and a partition with an MPS daemon.",
}
"""Titles of the benches of this driver alone."""

EXPLAIN = """![Time of explain](performance/explain.svg)

One process from start to end reads a state file of nodes with eight H100 in every MIG form: the slowest of four
questions, best of five runs."""

REPEAT = """## Repeat the measurement

Build `kube-apiserver`, `etcd`, the Go driver, the mock of NVML and `nvidia-cdi-hook` from the sources above. The head
of `tests/bench/side_by_side.py` lists their environment variables. Then run

    python -m tests.bench.side_by_side --json docs/internals/performance/last-run.json
    python -m tests.bench.idle_bench --json docs/internals/performance/alone.json
    python -m tests.bench --json docs/internals/performance/alone.json
    python -m tests.bench.forms_bench --json docs/internals/performance/alone.json
    make gen

`make bench` measures this driver with simulated GPUs, and the floor. [0017](../decisions/0017-what-a-prepare-costs.md)
lists optimizations without an effect."""
