"""``dra-driver sim``: runs an embedded cluster with simulated GPUs (``up``), or a demonstration in it (``demo``); makes
simulated GPUs of any cluster ill (``inject``) and well again (``recover``)."""

import argparse
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from dra_driver.kubectl.commands import sim_faults

DESCRIPTION = """\
Run a Kubernetes cluster in this process: an API server on loopback for kubectl, a scheduler, controllers, and for each
node a kubelet and the real node process with simulated GPUs. Containers are not started: a container's log shows what
its nvidia-smi would list.
"""

_EVICT_BY_USE = ("--evict-over-grant", "true", "--reclaim-idle", "true")


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "sim",
        help="run an embedded cluster with simulated GPUs on this machine",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    up = actions.add_parser("up", help="run until Ctrl-C", allow_abbrev=False)
    _add_nodes(up)
    up.add_argument("--port", type=int, default=0, metavar="PORT", help="port of the API server (default: a free one)")
    up.add_argument("--kubeconfig", type=Path, metavar="FILE", help="where to write the kubeconfig; removed at the end")
    up.add_argument(
        "--policy-dir",
        type=Path,
        metavar="DIR",
        help="folder of GpuPolicy files for all nodes; changes are read while running (default: no policies)",
    )
    up.add_argument(
        "--controller",
        action="store_true",
        help="run the controller as well: the status of policies, and evictions; its Lease is in namespace default",
    )
    up.add_argument(
        "--usage",
        action="store_true",
        help="run the usage exporter of each node as well, so that `kubectl dra usage` and idle have answers; "
        "with --controller, pods of claims over their grant and of idle claims are evicted where a policy says so",
    )
    up.add_argument("--ui", action="store_true", help="run the page of `kubectl dra ui` as well, and print its address")
    up.add_argument("--no-classes", action="store_true", help="do not create the project's DeviceClasses")
    demo = actions.add_parser("demo", help="apply every example and report what happens", allow_abbrev=False)
    _add_nodes(demo)
    demo.add_argument(
        "--root", type=Path, metavar="DIR", help="the checkout with examples/ and deploy/ (default: here)"
    )
    sim_faults.add_parsers(actions)


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=SPEC",
        help="a node and its GPUs, such as gpu-a=4xa100-sxm4-40gb; may be repeated",
    )


def run(args: argparse.Namespace) -> int:
    """Runs the action and returns its exit status."""
    if args.action in {"inject", "recover"}:
        return sim_faults.run(args)
    from dra_driver.core.telemetry import logs

    logs.configure("text", "warning")
    return _up(args) if args.action == "up" else _demo(args)


def _up(args: argparse.Namespace) -> int:
    from dra_driver.core.errors import ConfigurationError
    from dra_driver.sim.cluster import Cluster
    from dra_driver.sim.demo import demo
    from dra_driver.sim.demo.requirements import parse_nodes
    from dra_driver.sim.node.node_process import ControllerSubprocess

    # Not an Event: its lock is not reentrant, so a signal handler that runs during this thread's wait() would deadlock.
    stop: SimpleQueue[int] = SimpleQueue()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda received, _: stop.put(received))
    kubeconfig = args.kubeconfig.absolute() if args.kubeconfig else None
    nodes = parse_nodes(args.node) or demo.NODES_OF_DEMO
    if args.policy_dir is not None and not args.policy_dir.is_dir():
        raise ConfigurationError(f"--policy-dir {args.policy_dir} is not a folder")
    with (
        ExitStack() as children,
        Cluster(nodes, port=args.port, kubeconfig=kubeconfig, policy_dir=args.policy_dir, usage=args.usage) as cluster,
    ):
        if not args.no_classes:
            demo.apply_classes(cluster)
        print(f"API server   {cluster.url}")
        for node in cluster.nodes.values():
            print(f"node         {node.name}: {node.spec}, log of its node process: {node.folders.log}")
            if node.exporter is not None:
                print(f"exporter     {node.exporter.url}/usage and /metrics, its log: {node.folders.exporter_log}")
        if args.controller:
            log = cluster.folder / "controller.log"
            evict = _EVICT_BY_USE if args.usage else ()
            controller = ControllerSubprocess(cluster.kubeconfig, log, evict)
            controller.start()
            children.callback(controller.stop)
            print(f"controller   its log: {log}")
        if args.ui:
            children.enter_context(_page(cluster.kubeconfig, cluster.folder / "page.log"))
        print(f"policies     {cluster.policies}")
        print(f"kubeconfig   {cluster.kubeconfig}")
        print(f"\nIn another terminal:\n\n    export KUBECONFIG={cluster.kubeconfig}\n    kubectl get resourceslices\n")
        print("Ctrl-C stops the cluster and removes everything it created.", flush=True)
        stop.get()
        print("stopping", flush=True)
        children.close()  # while there is an API server, so that the Lease is released
    return 0


@contextmanager
def _page(kubeconfig: Path, log: Path) -> Iterator[None]:
    """The page as a child process, which ends with this one; prints its address. Raises ConfigurationError."""
    from dra_driver.core.errors import ConfigurationError

    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "ui", "--kubeconfig", str(kubeconfig)]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as child,
    ):  # fmt: skip
        try:
            address = child.stdout.readline().strip() if child.stdout else ""
            if not address.startswith("http://127.0.0.1:"):
                raise ConfigurationError("the page did not start; `kubectl dra ui --kubeconfig FILE` says why")
            print(f"page         {address}  (for the first browser that opens it), its log: {log}")
            yield
        finally:
            child.terminate()


def _demo(args: argparse.Namespace) -> int:
    from dra_driver.sim.demo import demo
    from dra_driver.sim.demo.requirements import parse_nodes

    # Raised as an exception, so that the cluster's processes are ended; they would outlive this one otherwise.
    signal.signal(signal.SIGTERM, lambda received, _: sys.exit(128 + received))
    root = args.root or demo.checkout()
    good = demo.run(root, lambda text: print(text, flush=True), nodes=parse_nodes(args.node) or None)
    return 0 if good else 1
