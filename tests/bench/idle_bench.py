"""CPU of a node process at rest, on the stand-in for NVIDIA's NVML: eight GPUs, 128 claims, health on.

The stand-in waits for events in the kernel, as the real library does, and answers every other call at once; reading
eight GPUs costs more on hardware.

usage: python -m tests.bench.idle_bench [--claims 128] [--idle-s 60] [--threads] [--json FILE]
"""

import argparse
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from tests.bench.__main__ import NODE
from tests.fakes.driver_root import debian
from tests.fakes.node_process import NodeProcess
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.harness.claims_api import ClaimMaker, ensure_namespace, timed_kubelet
from tests.harness.figures import IDLE_AFTER_S, Report, cpu_s, rss_mib
from tests.harness.servers import api_server, node_object

SPEC = "8xh100-sxm5-80gb"
NVML = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
BUDGET_PERCENT = 0.2
NAMES = Path(__file__).with_name("thread_names")
DRIVER = "gpu.nvidia.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Used:
    cpu_s: float = 0.0
    wakes: int = 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=128, help="claims prepared meanwhile")
    parser.add_argument("--idle-s", type=float, default=60.0, help="seconds over which CPU is measured")
    parser.add_argument("--threads", action="store_true", help="also print the CPU of each thread")
    parser.add_argument("--json", type=Path, help="put the figures into this file")
    args = parser.parse_args()
    reason = library.reason_why_not()
    if reason is not None:
        raise SystemExit(reason)
    report = Report()
    with ExitStack() as stack:
        kubeconfig, described = stack.enter_context(api_server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        print(f"API server: {described}\nGPUs: {SPEC} of the stand-in for NVML\n")
        rest = RestClient(Connection.load(kubeconfig))
        stack.enter_context(node_object(rest, NODE))
        ensure_namespace(rest)
        process = node_process(folder, kubeconfig).start()
        stack.callback(process.end)
        process.wait_for(lambda: len(ClaimMaker(rest, node=NODE, driver=DRIVER).gpus) == 8 and process.dra.exists())
        prepare(rest, process, args.claims)
        measure(report, process, args)
    report.save(args.json, "idle_bench")
    return 1 if report.breached else 0


def node_process(folder: Path, kubeconfig: str) -> NodeProcess:
    root = debian(folder / "root")
    (root.path / NVML).unlink(missing_ok=True)
    shutil.copy(library.build(folder), root.path / NVML)
    (folder / "state").mkdir()
    (folder / "node").mkdir()
    State.create(folder / "state" / "state", replace(parse_groups(SPEC, NODE), driver_version="570.172.08")).close()
    return NodeProcess(
        folder / "node",
        environ={ENVIRONMENT: str(folder / "state" / "state"), "MALLOC_ARENA_MAX": "2", "PYTHONPATH": str(NAMES)},
        simulate=None,
        node_name=NODE,
        kubeconfig=kubeconfig,
        driver_root=str(root.path),
        proc_devices=root.proc_devices,
        nvidia_cdi_hook_path="none",
        http_addr="",
    )


def prepare(rest: RestClient, process: NodeProcess, count: int) -> None:
    maker = ClaimMaker(rest, node=NODE, driver=DRIVER)
    with timed_kubelet(process.dra) as kubelet:
        for index in range(count):
            kubelet.prepare(maker.make(index, admin=True))


def measure(report: Report, process: NodeProcess, args: argparse.Namespace) -> None:
    pid = process.pid
    time.sleep(IDLE_AFTER_S)
    before, threads = cpu_s(pid), by_thread(pid)
    time.sleep(args.idle_s)
    percent = (cpu_s(pid) - before) / args.idle_s * 100
    what = f"idle CPU, {args.claims} claims"
    report.line(what, percent, "%", BUDGET_PERCENT, f"over {args.idle_s:g} s, RSS {rss_mib(pid):.1f} MiB")
    if args.threads:
        print_threads(threads, by_thread(pid), args.idle_s, percent)


def print_threads(before: dict[str, Used], after: dict[str, Used], idle_s: float, whole_percent: float) -> None:
    """CPU and wake-ups of each thread, and the CPU of threads that came and went, such as those of reads."""
    rest = whole_percent
    for name, used in sorted(after.items(), key=lambda item: before.get(item[0], Used()).cpu_s - item[1].cpu_s):
        was = before.get(name, Used())
        share = (used.cpu_s - was.cpu_s) / idle_s * 100
        rest -= share
        print(f"  {name:<24} {share:7.4f} % {(used.wakes - was.wakes) / idle_s:6.1f} wake-ups/s")
    print(f"  {'ended threads':<24} {rest:7.4f} %")


def by_thread(pid: int) -> dict[str, Used]:
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            words = (task / "schedstat").read_text().split()
            name = f"{(task / 'comm').read_text().strip()} {int(task.name) - pid}"
            found[name] = Used(cpu_s=int(words[0]) / 1e9, wakes=int(words[2]))
    return found


if __name__ == "__main__":
    sys.exit(main())
