"""`make bench`: the node process against its budgets, one line per figure, exit status 1 on a breach.

Against the cluster in KUBECONFIG (whose API server is then a real one) or, without it, against the embedded API
server; the output says which. Figures depend on the machine's disk (each prepare makes journal writes durable) and on
what else runs.

usage: python -m tests.bench [--claims 200] [--idle-s 60] [--spec 8xh100-sxm5-80gb] [--json FILE]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from dra_driver.kube.access import plain_kubeconfig
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.bench import floor
from tests.fakes.node_process import NodeProcess
from tests.harness.claims_api import ClaimMaker, TimedKubelet, ensure_namespace, held, round_times_ms, timed_kubelet
from tests.harness.figures import Report, idle_percent, rss_mib
from tests.harness.servers import api_server, node_object

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
    with api_server() as (kubeconfig, described):
        print(f"API server: {described}\nGPUs: {args.spec} (simulated)\n")
        rest = RestClient(Connection.load(kubeconfig))
        with node_object(rest, NODE):
            prepare_ms = measure(report, rest, kubeconfig, args)
            print_floor(rest, kubeconfig, args.claims, prepare_ms)
    report.save(args.json, "node")
    return 1 if report.breached else 0


def print_floor(rest: RestClient, kubeconfig: str, rounds: int, prepare_ms: float) -> None:
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

    with tempfile.TemporaryDirectory(prefix="dra-bench-") as folder:
        environ = {"MALLOC_ARENA_MAX": "2"}  # as in the image
        flags = {"kubeconfig": kubeconfig, "node_name": NODE, "simulate": args.spec, "http_addr": ""}
        process = NodeProcess(Path(folder), environ=environ, **flags)
        began = time.monotonic()
        try:
            process.start().wait_for(published, 30.0)
            report.line("process start to slices published", time.monotonic() - began, "s", 1.0)
            process.wait_for(process.dra.exists, 30.0)
            with timed_kubelet(process.dra) as kubelet:
                return measure_process(report, ClaimMaker(rest, node=NODE, driver=DRIVER), kubelet, process.pid, args)
        finally:
            process.end()


def measure_process(
    report: Report, maker: ClaimMaker, kubelet: TimedKubelet, pid: int, args: argparse.Namespace
) -> float:
    report.line("memory after start, RSS", rss_mib(pid), "MiB", 66.0)
    (idle,) = idle_percent([pid], args.idle_s)
    report.line("idle CPU", idle, "%", 0.2, f"over {args.idle_s:g} s")
    prepare_ms = rounds(report, maker, kubelet, args.claims, "none prepared before")
    with held(maker, kubelet, 128):
        rounds(report, maker, kubelet, args.claims, "128 prepared before")
        report.line("memory with 128 claims prepared, RSS", rss_mib(pid), "MiB", 66.0)
    return prepare_ms


def rounds(report: Report, maker: ClaimMaker, kubelet: TimedKubelet, count: int, label: str) -> float:
    times = round_times_ms(maker, kubelet, count, warm_up=WARM_UP)
    report.times(f"prepare one GPU, {label}", times["prepare"], 3.0)
    report.times(f"prepare again (repeat), {label}", times["again"])
    report.times(f"unprepare, {label}", times["unprepare"], 2.0)
    return statistics.median(times["prepare"])


if __name__ == "__main__":
    sys.exit(main())
