"""Partitions and shares beside whole GPUs: the cost of preparing each form, and the memory and CPU of the processes.

The hardware is simulated and answers at once, so the figures are those of this driver, including one process of
nvidia-smi and one MPS daemon, which are shell scripts. On a GPU, switching MIG mode, creating an instance and starting
a daemon take some hundred milliseconds to seconds more. Simulated hardware adds a cost that real hardware lacks: each
change rewrites its state file and its driver root.

*First* is a claim on an unused GPU, so it includes switching MIG mode, setting the time slice, or starting the MPS
daemon, and unprepare the reverse; *further* is a claim beside another of its kind.

usage: python -m tests.bench.forms_bench [--rounds 60] [--idle-s 60] [--json FILE]
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc

from tests.fakes.live_claims import (
    BY_MPS,
    POLICIES,
    TIME_SLICED,
    Obj,
    Scheduler,
    gpu,
    parameters,
    partition,
    request,
    share,
)
from tests.fakes.live_node import LiveNode, until
from tests.harness.claims_api import TimedKubelet
from tests.harness.figures import Report, idle_percent, rss_mib

SPEC = "8xh100-sxm5-80gb"
DEVICES = 8 * 26
PREPARED = 128
OTHERS = (2, 4, 6, 7)
"""GPUs on which nothing is measured: the first is for whole GPUs, the next for partitions, one each for shares."""
WARM_UP = 3
MEMORY_MIB, HOST_MIB, IDLE_PERCENT, START_S = 66.0, 30.0, 0.2, 1.0
WHOLE_MS = (3.0, 2.0)  # budgets of prepare and unprepare of a whole GPU, however many claims are prepared

Make = Callable[[], Obj | None]


class Bench:
    def __init__(self, node: LiveNode, report: Report, rounds: int) -> None:
        self.node = node
        self.report = report
        self.rounds = rounds
        self.scheduler = Scheduler(node)
        self.connect()

    def connect(self) -> None:
        self.kubelet = TimedKubelet(grpc.insecure_channel(f"unix://{self.node.socket}"))

    def prepared(self, make: Make) -> Obj:
        claim = self._made(make)
        self.kubelet.prepare(claim)
        return claim

    def given_back(self, claim: Obj) -> None:
        self.kubelet.unprepare(claim)
        self.scheduler.release(claim)

    @contextmanager
    def beside(self, *makes: Make) -> Iterator[None]:
        claims = [self.prepared(make) for make in makes]
        yield
        for claim in claims:
            self.given_back(claim)

    def times(self, what: str, make: Make, *, rounds: int | None = None, budget: Sequence[float] | None = None) -> None:
        prepared, unprepared = [], []
        for number in range(WARM_UP + (rounds or self.rounds)):
            claim = self._made(make)
            times = self.kubelet.prepare(claim), self.kubelet.unprepare(claim)
            self.scheduler.release(claim)
            if number >= WARM_UP:
                prepared.append(times[0] * 1000)
                unprepared.append(times[1] * 1000)
        self.report.times(f"{what}, prepare", prepared, budget[0] if budget else None)
        self.report.times(f"{what}, unprepare", unprepared, budget[1] if budget else None)

    @staticmethod
    def _made(make: Make) -> Obj:
        claim = make()
        if claim is None:
            raise SystemExit("the allocator finds no place: is something left of the round before?")
        return claim

    # --- what is asked for ---

    def whole(self) -> Obj | None:
        return self.scheduler.allocate(gpu(of=self.node.gpus[:1]))

    def slice(self) -> Obj | None:
        return self.scheduler.allocate(partition("1g.10gb", of=self.node.gpus[1:2]))

    def time_share(self) -> Obj | None:
        return self.scheduler.allocate(share("8Gi", 10, strategy="TimeSlicing", of=[self.node.gpus[TIME_SLICED[0]]]))

    def mps_share(self) -> Obj | None:
        return self.scheduler.allocate(share("8Gi", 10, of=[self.node.gpus[BY_MPS[0]]]))

    def time_sliced(self) -> Obj | None:
        config = parameters("GpuConfig", strategy="TimeSlicing", timeSlicingConfig={"interval": "Long"})
        return self.scheduler.allocate(gpu(of=self.node.gpus[:1]), config=[config])

    def slice_by_mps(self, at: int = 1) -> Obj | None:
        config = parameters("MigDeviceConfig", strategy="MPS", mpsConfig={"defaultPinnedDeviceMemoryLimit": "2Gi"})
        return self.scheduler.allocate(partition("1g.10gb", of=[self.node.gpus[at]]), config=[config])

    def any_slice(self) -> Obj | None:
        return self.scheduler.allocate(partition("1g.10gb", of=[self.node.gpus[at] for at in OTHERS]))

    def admin(self) -> Obj | None:
        return self.scheduler.allocate(request("gpu", adminAccess=True))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="prepare/unprepare rounds for each figure")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds over which idle CPU is measured")
    parser.add_argument("--json", type=Path, help="put the figures into this file")
    args = parser.parse_args()
    report = Report()
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")  # as in the image
    print(f"GPUs: {SPEC}, simulated (they answer at once); API server: embedded; files on the disk\n")
    began = time.monotonic()
    with LiveNode(SPEC, policy=POLICIES, mps=True, on_disk=True) as node:
        report.line(
            "process start to serving and published", time.monotonic() - began, "s", None, "with its API server"
        )
        until(lambda: _devices(node) == DEVICES, "all placements to be published")
        measure(Bench(node, report, args.rounds), args.idle_s)
    report.save(args.json, "forms_bench")
    return 1 if report.breached else 0


def measure(bench: Bench, idle_s: float) -> None:
    report, node = bench.report, bench.node
    report.line(f"start to all {DEVICES} devices published", start_s(node), "s", START_S)
    bench.connect()
    pid = node.process.pid or 0
    report.line("memory after start, policies loaded", rss_mib(pid), "MiB", MEMORY_MIB)
    idle(bench, idle_s, "no claims")
    forms(bench, "")
    kept = [lambda: bench.slice_by_mps(2), bench.time_share, *[bench.any_slice] * 26]
    with bench.beside(*kept, *[bench.admin] * (PREPARED - len(kept))):
        report.line(
            f"memory with {PREPARED} claims", rss_mib(pid), "MiB", MEMORY_MIB, "27 of them partitions, one a share"
        )
        forms(bench, f", {PREPARED} claims prepared")
        idle(bench, idle_s, f"{PREPARED} claims, one MPS daemon")
        report.line("memory at the end", rss_mib(pid), "MiB", MEMORY_MIB)
    left = node.leftovers()
    if left:
        raise SystemExit(f"left on the node: {left}")


def forms(bench: Bench, where: str) -> None:
    bench.times(f"whole GPU{where}", bench.whole, budget=WHOLE_MS)
    if where:
        bench.times(f"partition, first{where}", bench.slice)
        return
    bench.times("partition, first", bench.slice)
    with bench.beside(bench.slice):
        bench.times("partition, further", bench.slice)
    bench.times("time-sliced share, first", bench.time_share)
    with bench.beside(bench.time_share):
        bench.times("time-sliced share, further", bench.time_share)
    few = max(5, bench.rounds // 6)  # each takes most of a second
    bench.times("MPS share, first", bench.mps_share, rounds=few)
    with bench.beside(bench.mps_share):
        bench.times("MPS share, further", bench.mps_share)
    bench.times("whole GPU with its own time slice", bench.time_sliced)
    bench.times("partition with its own MPS daemon", bench.slice_by_mps, rounds=few)


def start_s(node: LiveNode) -> float:
    """Seconds from the start of the process until every device is in the API server, which had none."""
    node.process.stop()
    node.remove_slices()
    began = time.monotonic()
    node.process.start()
    until(lambda: _devices(node) == DEVICES, "all placements to be published")
    took_s = time.monotonic() - began
    until(lambda: node.is_serving, "the node process to serve")
    return took_s


def idle(bench: Bench, seconds: float, label: str) -> None:
    node, host = bench.node, bench.node.mps_host
    pids = {"node process": node.process.pid or 0, "MPS host": (host.pid or 0) if host else 0}
    for what, percent in zip(pids, idle_percent([*pids.values()], seconds), strict=True):
        bench.report.line(f"idle CPU of the {what}, {label}", percent, "%", IDLE_PERCENT, f"over {seconds:g} s")
    bench.report.line(f"memory of the MPS host, {label}", rss_mib(pids["MPS host"]), "MiB", HOST_MIB)


def _devices(node: LiveNode) -> int:
    return sum(len(item["spec"].get("devices") or ()) for item in node.slices())


if __name__ == "__main__":
    sys.exit(main())
