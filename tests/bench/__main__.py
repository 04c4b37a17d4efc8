"""`make bench`: the node process against its budgets, one line per figure, exit status 1 on a breach.

Against the cluster in KUBECONFIG (whose API server is then a real one) or, without it, against the embedded API
server; the output says which. Figures depend on the machine's disk (each prepare makes journal writes durable) and on
what else runs.

usage: python -m tests.bench [--claims 200] [--idle-s 60] [--spec 8xh100-sxm5-80gb] [--json FILE]
"""

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from dra_driver.core.errors import NotFoundError
from dra_driver.kube.access import plain_kubeconfig
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.bench import floor
from tests.bench.claims_api import ClaimMaker, ensure_namespace
from tests.bench.node_process import Kubelet, NodeProcess
from tests.bench.report import Report

NODE = "bench-node"
DRIVER = "gpu.nvidia.com"
WARM_UP = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=200, help="prepare/unprepare rounds for each figure")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds over which idle CPU is measured")
    parser.add_argument("--json", type=Path, help="put the figures into this file")
    parser.add_argument("--spec", default="8xh100-sxm5-80gb", help="simulated GPUs")
    args = parser.parse_args()
    report = Report()
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # as in the image
    with api_server() as (kubeconfig, described):
        print(f"API server: {described}\nGPUs: {args.spec} (simulated)\n")
        rest = RestClient(Connection.load(kubeconfig))
        with node_object(rest):
            prepare_ms = measure(report, rest, kubeconfig, args)
            print_floor(rest, kubeconfig, args.claims, prepare_ms)
    report.save(args.json, "node")
    return 1 if report.breached else 0


@contextlib.contextmanager
def api_server() -> Iterator[tuple[str, str]]:
    if os.environ.get("KUBECONFIG"):
        kubeconfig = os.environ["KUBECONFIG"]
        version = RestClient(Connection.load(kubeconfig)).get("/version")["gitVersion"]
        yield kubeconfig, f"the cluster in KUBECONFIG, {version}"
        return
    from dra_driver.sim.apiserver.server import ApiServer

    server = ApiServer(port=0)
    server.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kubeconfig"
            server.kubeconfig(path)
            yield str(path), "embedded"
    finally:
        server.stop()


@contextlib.contextmanager
def node_object(rest: RestClient) -> Iterator[None]:
    with contextlib.suppress(NotFoundError):
        rest.delete(f"/api/v1/nodes/{NODE}")
    rest.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    try:
        yield
    finally:
        rest.delete(f"/api/v1/nodes/{NODE}")


def print_floor(rest: RestClient, kubeconfig: str, rounds: int, prepare_ms: float) -> None:
    """What a prepare cannot go below here, and how many times that it takes."""
    access = plain_kubeconfig(Path(kubeconfig))
    if access is None:
        print("floor: not measured, as the kubeconfig has no plain token or certificate")
        return
    with tempfile.TemporaryDirectory() as folder:
        found = floor.measure(rest, access, Path(folder), rounds)
    print(f"floor: {found}; a prepare with none prepared before takes {prepare_ms / found.total:.2f} times that")


def measure(report: Report, rest: RestClient, kubeconfig: str, args: argparse.Namespace) -> float:
    """Print all figures; returns the median of a prepare with no claim prepared before, in milliseconds."""
    ensure_namespace(rest)
    count = int(args.spec.partition("x")[0])

    def published() -> bool:
        return len(ClaimMaker(rest, node=NODE, driver=DRIVER).gpus) == count

    with NodeProcess(kubeconfig=kubeconfig, node=NODE, spec=args.spec) as process:
        report.line("process start to slices published", process.wait_for(published, 30.0), "s", 1.0)
        process.wait_for(process.socket.exists, 30.0)
        report.line("memory after start, RSS", process.rss_mib(), "MiB", 66.0)
        report.line("idle CPU", idle_percent(process, args.idle_s), "%", 0.2, f"over {args.idle_s:g} s")
        maker = ClaimMaker(rest, node=NODE, driver=DRIVER)
        kubelet = Kubelet(process.socket)
        prepare_ms = rounds(report, maker, kubelet, args.claims, "none prepared before")
        kept = [maker.make(index, admin=True) for index in range(128)]
        for claim in kept:
            kubelet.prepare(claim)
        rounds(report, maker, kubelet, args.claims, "128 prepared before")
        report.line("memory with 128 claims prepared, RSS", process.rss_mib(), "MiB", 66.0)
        for claim in kept:
            kubelet.unprepare(claim)
            maker.drop(claim)
    return prepare_ms


def idle_percent(process: NodeProcess, seconds: float) -> float:
    time.sleep(12.0)  # what start-up left over is not idle: claims are checked once within 10 s
    before = process.cpu_s()
    time.sleep(seconds)
    return (process.cpu_s() - before) / seconds * 100


def rounds(report: Report, maker: ClaimMaker, kubelet: Kubelet, count: int, label: str) -> float:
    prepared: list[float] = []
    repeated: list[float] = []
    unprepared: list[float] = []
    for index in range(count + WARM_UP):
        claim = maker.make(index)
        times = (kubelet.prepare(claim), kubelet.prepare(claim), kubelet.unprepare(claim))
        maker.drop(claim)
        if index >= WARM_UP:
            for figures, elapsed in zip((prepared, repeated, unprepared), times, strict=True):
                figures.append(elapsed * 1000)
    for what, figures, budget in (
        ("prepare one GPU", prepared, 3.0),
        ("prepare again (repeat)", repeated, None),
        ("unprepare", unprepared, 2.0),
    ):
        report.times(f"{what}, {label}", figures, budget)
    return statistics.median(prepared)


if __name__ == "__main__":
    sys.exit(main())
