"""This driver and NVIDIA's Go driver in one run: same machine, API server, mock of NVML, client and claims, in turn.

Needs parts that are not in this repository, named by the environment:

    KUBE_APISERVER, ETCD   binaries of one Kubernetes version
    GO_DRIVER              gpu-kubelet-plugin of kubernetes-sigs/dra-driver-nvidia-gpu, built with Go
    MOCK_NVML_ROOT         a driver root with the mock of NVML of NVIDIA/k8s-test-infra, and usr/config/config.yaml
    CDI_HOOK               nvidia-cdi-hook of NVIDIA/nvidia-container-toolkit
    GO_DRIVER_COMMIT, MOCK_NVML_COMMIT, CDI_HOOK_COMMIT   where these were built from, for the report

Each driver is started fresh for each round, with its journal on disk and CDI files in memory; the order alternates.
`scripts/performance_docs.py` makes docs/internals/performance.md from the JSON.

usage: python -m tests.bench.side_by_side [-n 200] [--rounds 3] [--idle-s 60]
           [--json docs/internals/performance/last-run.json]
"""

import argparse
import compileall
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from dra_driver.kube.access import plain_kubeconfig
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.bench import floor
from tests.fakes.kubelet import register
from tests.fakes.node_process import memory_folder
from tests.harness.claims_api import (
    SLICES,
    ClaimMaker,
    TimedKubelet,
    ensure_namespace,
    held,
    round_times_ms,
    timed_kubelet,
)
from tests.harness.figures import described, idle_percent, rss_mib
from tests.harness.servers import ControlPlane, started

NODE, DRIVER, GPUS, WARM_UP = "bench-node", "gpu.nvidia.com", 8, 3
CASES: dict[str, tuple[int, int]] = {"none": (0, 1), "32": (32, 1), "128": (128, 1), "batch8": (0, 8)}
"""Claims held before, and claims in one call."""
DRIVERS = ("ours", "go")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    etcd: Path
    apiserver: Path
    go_driver: Path
    mock_root: Path
    hook: Path

    @classmethod
    def of_environment(cls) -> "Parts":
        names = ("ETCD", "KUBE_APISERVER", "GO_DRIVER", "MOCK_NVML_ROOT", "CDI_HOOK")
        if missing := [name for name in names if not os.environ.get(name)]:
            raise SystemExit(f"not set: {', '.join(missing)}; see the head of {Path(__file__).name}")
        paths = [Path(os.environ[name]).absolute() for name in names]
        return cls(etcd=paths[0], apiserver=paths[1], go_driver=paths[2], mock_root=paths[3], hook=paths[4])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=200, help="claims for each case and round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds over which idle CPU is measured")
    parser.add_argument("--cases", default=",".join(CASES), help="some of none,32,128,batch8")
    parser.add_argument("--only", choices=DRIVERS, help="one driver, for a quick look")
    parser.add_argument("--no-explain", action="store_true", help="leave out tests.bench.explain_bench")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    args = parser.parse_args()
    parts = Parts.of_environment()
    compileall.compile_dir(str(ROOT / "dra_driver"), quiet=2)  # as in the image; else each start compiles
    with tempfile.TemporaryDirectory(prefix="side-by-side-") as work:
        folder = Path(work)
        with ControlPlane(etcd=parts.etcd, apiserver=parts.apiserver, folder=folder) as plane:
            kubeconfig = plane.kubeconfig
            rest = RestClient(Connection.load(str(kubeconfig)))
            metadata = {"name": NODE, "labels": {"kubernetes.io/hostname": NODE}}
            rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": metadata})
            ensure_namespace(rest)
            found = measure_rounds(args, parts, rest, kubeconfig, folder)
            found["machine"] = described(rest)
    if not args.no_explain:
        found["explain"] = explain_rows()
    print_table(found)
    if args.json:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def measure_rounds(
    args: argparse.Namespace, parts: Parts, rest: RestClient, kubeconfig: Path, folder: Path
) -> dict[str, Any]:
    access = plain_kubeconfig(kubeconfig)
    assert access is not None
    found: dict[str, Any] = {"n": args.n, "floor": [], "ours": [], "go": []}
    for number in range(args.rounds):
        found["floor"].append(floor.measure(rest, access, folder, args.n).figures())
        for kind in DRIVERS if number % 2 == 0 else reversed(DRIVERS):
            if args.only in (None, kind):
                figures = measure_driver(args, parts, kind, rest, folder / f"{number}-{kind}", kubeconfig)
                found[kind].append(figures)
                print(f"round {number + 1} {kind:4} {json.dumps(figures)}", flush=True)
    return found


def measure_driver(  # noqa: PLR0917 - one call site
    args: argparse.Namespace, parts: Parts, kind: str, rest: RestClient, folder: Path, kubeconfig: Path
) -> dict[str, Any]:
    for item in rest.list(SLICES)["items"]:
        rest.delete(f"{SLICES}/{item['metadata']['name']}")
    with tempfile.TemporaryDirectory(dir=memory_folder()) as cdi:
        reg, plugins = folder / "reg", folder / "plugins"
        for each in (reg, plugins / DRIVER):
            each.mkdir(parents=True)
        command = ours(parts, reg, plugins, Path(cdi)) if kind == "ours" else go(parts, reg, plugins, Path(cdi))
        environ = {
            "KUBECONFIG": str(kubeconfig),
            "MOCK_NVML_CONFIG": str(parts.mock_root / "usr/config/config.yaml"),
            "MALLOC_ARENA_MAX": "2",  # as in the image
        }
        figures: dict[str, Any] = {"load": round(os.getloadavg()[0], 1)}
        begin = time.perf_counter()
        with started(command, folder / "log", environ) as process:
            endpoint = _until_published(rest, reg, process, folder / "log")
            figures["start_s"] = round(time.perf_counter() - begin, 3)
            time.sleep(2.0)
            figures["rss_start_mib"], figures["pss_start_mib"] = rss_mib(process.pid), pss_mib(process.pid)
            with timed_kubelet(Path(endpoint)) as calls:
                maker = ClaimMaker(rest, node=NODE, driver=DRIVER)
                for case in args.cases.split(","):
                    figures[case] = measure_case(maker, calls, args.n, *CASES[case])
                figures |= measure_held(maker, calls, process.pid, args.idle_s)
    return figures


def ours(parts: Parts, reg: Path, plugins: Path, cdi: Path) -> list[object]:
    return [
        *[Path(sys.executable).with_name("dra-driver"), "kubelet-plugin", "--node-name", NODE],
        *["--kubelet-registrar-dir", reg, "--kubelet-plugins-dir", plugins, "--cdi-dir", cdi],
        *["--driver-root", parts.mock_root, "--nvidia-cdi-hook-path", parts.hook],
    ]


def go(parts: Parts, reg: Path, plugins: Path, cdi: Path) -> list[object]:
    """Without its client's own limit of requests, so that its calls are measured and not its queue."""
    return [
        *[parts.go_driver, "--node-name", NODE, "--image-name", "none:1"],
        *["--kubelet-registrar-directory-path", reg, "--kubelet-plugins-directory-path", plugins, "--cdi-root", cdi],
        *["--nvidia-driver-root", parts.mock_root, "--container-driver-root", parts.mock_root],
        *["--nvidia-cdi-hook-path", parts.hook, "--kube-api-qps", "1000", "--kube-api-burst", "1000"],
    ]


def _until_published(rest: RestClient, reg: Path, process: subprocess.Popen[bytes], log: Path) -> str:
    """Register the driver as a kubelet does, and wait until its GPUs are published; the address of its service."""
    endpoint, deadline = "", time.monotonic() + 60.0
    while not endpoint or len(ClaimMaker(rest, node=NODE, driver=DRIVER).gpus) < GPUS:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the driver published nothing; its log ends:\n{log.read_text()[-3000:]}")
        if not endpoint:
            with contextlib.suppress(StopIteration, grpc.RpcError):
                endpoint = register(next(reg.glob("*.sock"))).endpoint
        time.sleep(0.005)
    return endpoint


def measure_case(maker: ClaimMaker, calls: TimedKubelet, n: int, before: int, batch: int) -> dict[str, float]:
    """``n`` claims, ``batch`` in each call, while ``before`` others stay prepared."""
    with held(maker, calls, before):
        times = round_times_ms(maker, calls, n // batch, warm_up=WARM_UP, batch=batch)
    return {
        f"{what}_{name}": round(sorted(figures)[min(len(figures) - 1, int(len(figures) * part))], 3)
        for what, figures in times.items()
        for name, part in (("p50", 0.5), ("p99", 0.99))
    }


def measure_held(maker: ClaimMaker, calls: TimedKubelet, pid: int, idle_s: float) -> dict[str, float]:
    with held(maker, calls, 128):
        (idle,) = idle_percent([pid], idle_s)
        return {"idle_percent": round(idle, 3), "rss_128_mib": rss_mib(pid), "pss_128_mib": pss_mib(pid)}


def pss_mib(pid: int) -> float:
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("\nPss:")[1].split()[0]) / 1024


def explain_rows() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "tests.bench.explain_bench", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=900)
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return rows


def print_table(found: Mapping[str, Any]) -> None:
    lows = {name: statistics.median(each[name] for each in found["floor"]) for name in found["floor"][0]}
    print(f"\nmachine: {json.dumps(found['machine'])}")
    print("floor: " + ", ".join(f"{name} {value:.2f}" for name, value in lows.items()) + " ms")
    print(f"{'':34}{'ours':>9}{'Go':>9}{'ratio':>8}{'x floor':>9}   rounds ours / Go")
    for label, path in rows_of(found):
        ours_, go_ = ([_at(each, path) for each in found[kind]] for kind in DRIVERS)
        mine, theirs = (statistics.median(each) if each else float("nan") for each in (ours_, go_))
        ratio = f"{mine / theirs:8.3f}" if theirs else f"{'-':>8}"
        times = f"{mine / lows['total']:9.2f}" if path == ("none", "prepare_p50") else " " * 9
        rounds = " / ".join(" ".join(f"{value:.2f}" for value in each) for each in (ours_, go_))
        print(f"{label:34}{mine:9.2f}{theirs:9.2f}{ratio}{times}   {rounds}")
    for row in found.get("explain", ()):
        print(f"explain, {row['devices']:>6} devices: {row['seconds']:.3f} s, {row['mib']:.0f} MiB")


def rows_of(found: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    sample = (found["ours"] or found["go"])[0]
    for case in (case for case in CASES if case in sample):
        yield from ((f"{name.replace('_', ' ')}, {case} [ms]", (case, name)) for name in sample[case])
    for name in ("start_s", "rss_start_mib", "pss_start_mib", "rss_128_mib", "pss_128_mib", "idle_percent"):
        yield name.replace("_", " "), (name,)


def _at(figures: Mapping[str, Any], path: Sequence[str]) -> float:
    for name in path:
        figures = figures[name]
    assert isinstance(figures, float | int)
    return float(figures)


if __name__ == "__main__":
    sys.exit(main())
