"""`python -m tests.bench.scale_bench`: the publishers of many nodes against one real API server.

Nodes are whole node processes with simulated GPUs and folders, sockets and watches of their own, as many in one
operating system process as fit. Printed: requests per second of all nodes while they start, at rest, during the rollout
of a policy to all, and after the API server was killed and started again; the seconds until all nodes are right; memory
of API server and etcd.

usage: python -m tests.bench.scale_bench --etcd etcd --apiserver kube-apiserver [--nodes 500] [--processes 6]
"""

import argparse
import contextlib
import gc
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import yaml

from dra_driver.config.settings import load_node_settings
from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.telemetry import logs
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.rest import RestClient
from dra_driver.node.process.plugin import NodeProcess
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.slices import Publisher
from tests.harness.figures import rss_mib
from tests.harness.servers import ControlPlane

OURS = ("resourceslices", "gpupolicies", "gpunodes", "nodes", "events", "resourceclaims")
WRITES = ("POST", "PUT", "PATCH", "APPLY", "DELETE")
POLICY = "rollout"
NODES = "nodes"  # the first argument of a child process
STACK_BYTES = 512 * 1024
SWITCH_S = 0.1  # how often a waiting thread wakes; at 5 ms a thousand threads use up four cores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--etcd", type=Path, required=True)
    parser.add_argument("--apiserver", type=Path, required=True)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--gpus", default="8xh100-sxm5-80gb")
    parser.add_argument("--quiet-s", type=float, default=120.0)
    args = parser.parse_args()
    with contextlib.ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        plane = running.enter_context(ControlPlane(etcd=args.etcd, apiserver=args.apiserver, folder=folder))
        rest = RestClient(Connection.load(str(plane.kubeconfig)))
        names = [f"node-{number:04}" for number in range(args.nodes)]
        prepare(rest, names)
        run = Run(plane, rest, running.enter_context(workers(args, plane, folder, names)))
        run.phase("start to published", lambda: run.ask("start"))
        run.count_slices()
        run.phase("settling", lambda: time.sleep(30.0))
        run.phase(f"at rest, {args.quiet_s:.0f} s", lambda: time.sleep(args.quiet_s))
        run.phase("policy to all nodes", lambda: run.roll_out(1))
        run.phase("settling", lambda: time.sleep(30.0))
        run.phase("API server killed and started again", plane.restart_apiserver)
        run.phase("policy to all nodes, at once after that", lambda: run.roll_out(2))
        run.phase("settling", lambda: time.sleep(60.0))
        run.phase("at rest again, 60 s", lambda: time.sleep(60.0))
        run.count_slices()
    return 0


class Run:
    def __init__(self, plane: ControlPlane, rest: RestClient, started: "list[subprocess.Popen[str]]") -> None:
        self._plane, self._rest, self._workers = plane, rest, started

    def phase(self, what: str, work: Callable[[], object]) -> None:
        before, began = self._requests(), time.monotonic()
        work()
        seconds = time.monotonic() - began
        after = self._requests()
        since = after if sum(after.values()) < sum(before.values()) else after - before  # counts begin with the server
        writes = sum(count for (verb, _), count in since.items() if verb in WRITES)
        reads = sum(since.values()) - writes
        rates = f"writes {writes} ({writes / seconds:.2f}/s), reads {reads} ({reads / seconds:.2f}/s)"
        print(f"{what}: {seconds:.1f} s; {rates}")
        print("   ", ", ".join(f"{verb} {of} {count}" for (verb, of), count in sorted(since.items())) or "nothing")
        memory = {name: f"{rss_mib(pid):.0f} MiB" for name, pid in self._plane.pids().items()}
        print(f"    memory: {memory}; nodes {sum(rss_mib(each.pid) for each in self._workers):.0f} MiB", flush=True)

    def ask(self, command: str) -> None:
        for worker in self._workers:
            assert worker.stdin is not None
            worker.stdin.write(f"{command}\n")
            worker.stdin.flush()
        for worker in self._workers:
            assert worker.stdout is not None
            answer = worker.stdout.readline()
            assert answer.startswith("done"), f"a worker ended: {worker.poll()}"

    def roll_out(self, number: int) -> None:
        policy = {
            "apiVersion": "gpu.dra-driver.io/v1alpha1",
            "kind": "GpuPolicy",
            "metadata": {"name": POLICY},
            "spec": {"attributes": [{"name": "rollout", "int": number}]},
        }
        self._rest.apply(paths.gpu_policies(POLICY), policy, "scale")
        self.ask(f"await {number}")

    def count_slices(self) -> None:
        nodes, slices, devices, rollouts = set(), 0, 0, Counter[object]()
        query = {"limit": "100"}
        while True:
            page = self._rest.get(paths.resource_slices(), query)
            for each in page["items"]:
                nodes.add(each["spec"]["nodeName"])
                slices += 1
                for device in each["spec"].get("devices") or []:
                    devices += 1
                    rollouts[_rollout(device)] += 1
            query["continue"] = page["metadata"].get("continue", "")
            if not query["continue"]:
                break
        print(f"published: {len(nodes)} nodes, {slices} slices, {devices} devices; attribute rollout: {dict(rollouts)}")

    def _requests(self) -> Counter[tuple[str, str]]:
        found: Counter[tuple[str, str]] = Counter()
        for line in self._rest.get_text("/metrics").splitlines():
            if line.startswith("apiserver_request_total{"):
                labels = dict(
                    part.split("=", 1)
                    for part in line[line.index("{") + 1 : line.rindex("}")].split(",")
                    if "=" in part
                )
                verb, resource = labels["verb"].strip('"'), labels["resource"].strip('"')
                if resource in OURS:
                    found[verb, resource] += int(float(line.rsplit(" ", 1)[1]))
        return found


def _rollout(device: dict[str, object]) -> object:
    attributes = device.get("attributes")
    assert isinstance(attributes, dict)
    return next((value.get("int") for name, value in attributes.items() if name.endswith("rollout")), None)


def prepare(rest: RestClient, names: list[str]) -> None:
    for crd in sorted(Path("crds").glob("*.yaml")):
        rest.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(crd.read_text()))
    for name in names:
        rest.create(paths.nodes(), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    until(lambda: rest.list(paths.gpu_policies()))


def until(call: Callable[[], object], within_s: float = 60.0) -> None:
    """Repeat the call until it raises no error of the API."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            call()
        except DraError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)
        else:
            return


@contextlib.contextmanager
def workers(
    args: argparse.Namespace, plane: ControlPlane, folder: Path, names: list[str]
) -> Iterator[list[subprocess.Popen[str]]]:
    shares = [names[at :: args.processes] for at in range(args.processes)]
    command = [sys.executable, "-m", "tests.bench.scale_bench", NODES, "--kubeconfig", str(plane.kubeconfig)]
    with (folder / "nodes.log").open("w") as log:
        started = [
            subprocess.Popen(
                [*command, "--folder", str(folder / "n"), "--gpus", args.gpus, *share],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )
            for share in shares
        ]  # fmt: skip
    try:
        yield started
    finally:
        for each in started:
            each.kill()
            each.wait()
        warned = Counter(
            line.split(" ", 2)[2][:60] for line in (folder / "nodes.log").read_text().splitlines() if " W" in line[:40]
        )
        print("warnings of the nodes:", dict(warned.most_common(8)))


def run_nodes(argv: Sequence[str]) -> int:
    """The child: answers each line ``start`` and ``await N`` with a line, the latter when each node publishes what a
    policy with the attribute ``rollout`` = N says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--gpus", required=True)
    parser.add_argument("names", nargs="+")
    args = parser.parse_args(argv)
    threading.stack_size(STACK_BYTES)
    sys.setswitchinterval(SWITCH_S)
    logs.configure("text", "warning")
    nodes = [NodeProcess(load_node_settings(settings(args, name), {})) for name in args.names]
    for line in sys.stdin:
        command, _, value = line.strip().partition(" ")
        if command == "start":
            start(nodes)
        while not all(is_right(node, int(value)) if value else is_published(node) for node in nodes):
            time.sleep(0.1)
        print(f"done {len(nodes)}", flush=True)
    return 0


def settings(args: argparse.Namespace, name: str) -> dict[str, str | None]:
    folder = args.folder / name
    for each in ("reg", "plugins", "cdi"):
        (folder / each).mkdir(parents=True, exist_ok=True)
    return {
        "node_name": name,
        "simulate": args.gpus,
        "kubeconfig": args.kubeconfig,
        "kubelet_registrar_dir": str(folder / "reg"),
        "kubelet_plugins_dir": str(folder / "plugins"),
        "cdi_dir": str(folder / "cdi"),
        "http_addr": "",
    }


def start(nodes: Sequence[NodeProcess]) -> None:
    for node in nodes:
        thread = threading.Thread(target=node.start)
        thread.start()
        thread.join()
    gc.collect()
    gc.freeze()


Part = TypeVar("Part")


def part(node: NodeProcess, kind: type[Part]) -> Part:
    return next(found for each in node.components if isinstance(found := each.part, kind))


def is_published(node: NodeProcess) -> bool:
    return part(node, Publisher).published


def is_right(node: NodeProcess, rollout: int) -> bool:
    if not is_published(node):
        return False
    terms = part(node, TermsResolver).current()
    return all(
        (found := terms.get(GpuUuid(gpu.uuid))) is not None and rollout in found.attributes.values()
        for gpu in part(node, Inventory).current().gpus
    )


if __name__ == "__main__":
    logging.raiseExceptions = False
    sys.exit(run_nodes(sys.argv[2:]) if sys.argv[1:2] == [NODES] else main())
