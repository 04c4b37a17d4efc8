"""``dra-driver sim``: run an embedded cluster with simulated GPUs (``up``) or a demonstration (``demo``), and inject
(``inject``) or end (``recover``) faults of simulated GPUs in any cluster."""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, DraError, ForbiddenError
from dra_driver.core.stop_signal import StopSignal
from dra_driver.core.text import printable
from dra_driver.hardware.gpu.catalog import suggest
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated.faults import ANNOTATION, FaultOrder
from dra_driver.kube import paths
from dra_driver.kube.node_annotation import Annotations, NodeApi, change_annotation, node_metadata
from dra_driver.kube.shapes import MetadataPart, read_all
from dra_driver.kubectl.commands.listing import duration
from dra_driver.kubectl.commands.source import Progress, add_kubeconfig, client, kubeconfig_of

DESCRIPTION = """\
Run an embedded Kubernetes cluster: an API server on loopback, a scheduler, controllers, and per node a kubelet and the
real node process with simulated GPUs. Containers are not started; their logs contain the expected `nvidia-smi -L`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    up = actions.add_parser("up", help="run until Ctrl-C")
    _add_nodes(up)
    up.add_argument("--port", type=int, default=0, metavar="PORT", help="port of the API server (default: a free one)")
    up.add_argument("--kubeconfig", type=Path, metavar="FILE", help="write the kubeconfig to FILE; removed at the end")
    up.add_argument(
        "--policy-dir",
        type=Path,
        metavar="DIR",
        help="directory of GpuPolicy files for all nodes; changes apply immediately",
    )
    up.add_argument(
        "--controller",
        action="store_true",
        help="also run the controller; its Lease is in namespace default",
    )
    up.add_argument(
        "--usage",
        action="store_true",
        help="also run the usage exporters; with --controller, evict pods of idle claims and of claims over their "
        "grant as policies request",
    )
    up.add_argument(
        "--nics", action="store_true", help="also run a driver of simulated network cards, with class dranet"
    )
    up.add_argument("--ui", action="store_true", help="also run `kubectl dra ui`, and print its address")
    up.add_argument("--no-classes", action="store_true", help="do not create the project's DeviceClasses")
    demo = actions.add_parser("demo", help="apply every example and report the results")
    _add_nodes(demo)
    demo.add_argument(
        "--root", type=Path, metavar="DIR", help="the checkout with examples/ and deploy/ (default: here)"
    )
    add_faults(actions)


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--node",
        action="append",
        default=[],
        metavar="NAME=SPEC",
        help="a node and its GPUs, such as gpu-a=4xa100-sxm4-40gb; repeatable",
    )


def run(args: argparse.Namespace) -> int:
    if args.action in {"inject", "recover"}:
        return run_fault(args)
    from dra_driver.core.telemetry import logs

    logs.configure("text", "warning")
    return _up(args) if args.action == "up" else _demo(args)


def _up(args: argparse.Namespace) -> int:
    from dra_driver.sim.cluster import Cluster
    from dra_driver.sim.demo import demo
    from dra_driver.sim.demo.requirements import parse_nodes
    from dra_driver.sim.node.node_process import ControllerSubprocess

    stop = StopSignal()
    kubeconfig = args.kubeconfig.absolute() if args.kubeconfig else None
    nodes = parse_nodes(args.node) or demo.NODES_OF_DEMO
    if args.policy_dir is not None and not args.policy_dir.is_dir():
        raise ConfigurationError(f"--policy-dir {args.policy_dir} is not a directory")
    with ExitStack() as children:  # ends the controller before the API server, so that it releases its Lease
        with Progress("starting the cluster"):
            settings = {"policy_dir": args.policy_dir, "usage": args.usage, "nics": args.nics}
            cluster = children.enter_context(Cluster(nodes, port=args.port, kubeconfig=kubeconfig, **settings))
        if not args.no_classes:
            demo.apply_classes(cluster)
        cluster.add_daemon_set()
        print(f"API server   {cluster.url}")
        for node in cluster.nodes.values():
            print(f"node         {node.name}: {node.spec}, log of its node process: {node.folders.log}")
            if node.exporter is not None:
                print(f"exporter     {node.exporter.url}/usage and /metrics, its log: {node.folders.exporter_log}")
        if args.nics:
            print("cards        one network card for each GPU, of driver dra.net; DeviceClass dranet")
        if args.controller:
            log = cluster.folder / "controller.log"
            evict = ("--evict-over-grant", "true", "--reclaim-idle", "true") if args.usage else ()
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
        stop.wait()
        print("stopping", flush=True)
    return 0


@contextmanager
def _page(kubeconfig: Path, log: Path) -> Iterator[None]:
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
                raise ConfigurationError(
                    "the web UI did not start; run `kubectl dra ui --kubeconfig FILE` for the cause"
                )
            print(f"page         {address}  (only for the first browser), its log: {log}")
            yield
        finally:
            child.terminate()


def _demo(args: argparse.Namespace) -> int:
    from dra_driver.sim.demo import demo
    from dra_driver.sim.demo.requirements import parse_nodes

    # The exception makes the cluster end its processes, which would outlive this one.
    signal.signal(signal.SIGTERM, lambda received, _: sys.exit(128 + received))
    root = args.root or demo.checkout()
    good = demo.run(root, lambda text: print(text, flush=True), nodes=parse_nodes(args.node) or None)
    return 0 if good else 1


# --- ``inject`` and ``recover`` write an annotation of the Node, and wait for the node process' event or the taint.

INJECT_ABOUT: Final = """\
Make a simulated GPU or an existing partition unhealthy until `dra-driver sim recover`. Requires a node process with
--simulate. FAULT is one of

  xid=N             an XID; 79: the GPU falls off the bus; 13, 31, 43, 45, 68 and 109: application errors
  ecc               a double-bit ECC error
  lost              the GPU does not answer
  hang              a call for the GPU does not return
  row-remap         a pending row remapping; row-remap=failed
  retired-pages     a pending page retirement (Volta, Turing)
  recovery-action   the driver requests a GPU reset; recovery-action=node-reboot and others
  nvlink            NVLink 0 is down; nvlink=N
  fabric            the NVLink fabric is unhealthy

Partitions support xid and ecc. Needs permission to get and patch nodes, and to list resourceslices and, for refusals,
events in namespace default.
"""
REFUSED: Final = "SimulatedFaultRefused"
REASONS: Final = frozenset({"SimulatedFault", REFUSED})
WAIT_S: Final = 15.0
TAINT_S: Final = 5.0  # wait for a taint after the event of the node process
LOOK_S: Final = 0.2
MAX_WAIT_S: Final = 600.0
UNREADABLE: Final = "nothing changes"  # part of the message about an unreadable annotation


class _RefusedError(DraError):
    """The node process does not follow the annotation."""


class Api(NodeApi, Protocol):
    """Subset of ``kube.rest.RestClient``."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...


def add_faults(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    inject = actions.add_parser("inject", help="make a simulated GPU of a node unhealthy", description=INJECT_ABOUT)
    inject.add_argument("node", metavar="NODE")
    inject.add_argument("device", metavar="DEVICE", help="such as gpu-0, or the name of an existing partition")
    inject.add_argument("fault", metavar="FAULT", help="such as xid=79")
    recover = actions.add_parser("recover", help="end the faults of a simulated GPU")
    recover.add_argument("node", metavar="NODE")
    recover.add_argument(
        "device", metavar="DEVICE", nargs="?", help="including its partitions (default: all of the node)"
    )
    for parser in (inject, recover):
        add_kubeconfig(parser)
        parser.add_argument(
            "--wait",
            type=partial(duration, least_s=0, most_s=MAX_WAIT_S),
            default=WAIT_S,
            metavar="DURATION",
            help=f"time limit for the node process; 0: do not wait (default: {WAIT_S:g}s)",
        )


def run_fault(args: argparse.Namespace) -> int:
    command = FaultCommand(client(kubeconfig_of(args)), args.node, say=lambda text: print(text, flush=True))
    try:
        if args.action == "inject":
            command.inject(args.device, args.fault, args.wait)
        else:
            command.recover(args.device, args.wait)
    except ForbiddenError as error:
        raise DraError(
            f"{error}; sim inject and sim recover need permission to get and patch nodes, and to list "
            "resourceslices.resource.k8s.io. Ask a cluster administrator for such a ClusterRole"
        ) from error
    return 0


class _Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class _Device(Struct, frozen=True):
    name: str
    taints: tuple[_Taint, ...] = ()


class _SliceSpec(Struct, frozen=True):
    devices: tuple[object, ...] = ()


class _Slice(Struct, frozen=True):
    spec: _SliceSpec = _SliceSpec()


class _Event(Struct, frozen=True, rename="camel"):
    metadata: MetadataPart = MetadataPart()
    involved_object: MetadataPart = MetadataPart()
    reason: str = ""
    message: str = ""
    count: object = None


class FaultCommand:
    """One call of the command for one node."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._api, self._node = api, node
        self._say, self._clock, self._sleep = say, clock, sleep
        self._lost: set[str] = set()  # unreadable objects; each is reported once

    def inject(self, device: str, fault: str, wait_s: float) -> None:
        """Raises ConfigurationError for an unknown device or fault, DraError without a reaction."""
        try:
            order = FaultOrder.parse(device, fault)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
        taints = self._taints()
        if device not in taints:
            raise ConfigurationError(self._unknown(device, taints))
        before = self._events()
        self._change(lambda orders: faults.with_order(orders, order))
        self._say(f"{device} of {self._node}: {order.fault} injected")
        try:
            self._await(f"{order}", device, before, taints[device], wait_s)
        except _RefusedError:
            self._change(lambda orders: faults.without_order(orders, order))
            raise

    def recover(self, device: str | None, wait_s: float) -> None:
        """Raises as ``inject``; no injected fault is not an error."""
        before = self._events()
        what = device or "all devices"
        if not self._change(lambda orders: faults.without_device(orders, device) if device else ()):
            self._say(f"{what} of {self._node}: no fault was injected")
            return
        self._say(f"{what} of {self._node}: the injected faults end")
        self._await(what, None, before, frozenset(), wait_s)
        self._say("taints are removed after recovery and the stabilization period, by default 30 s")

    def _change(self, change: Callable[[tuple[FaultOrder, ...]], tuple[FaultOrder, ...]]) -> bool:
        """Return whether the annotation changed. Other writers may change it at the same time."""

        def decide(found: Annotations) -> str | None:
            try:
                return faults.format_orders(change(faults.parse_orders(found.get(ANNOTATION, "")))) or None
            except ValueError as error:
                raise ConfigurationError(
                    f"annotation {ANNOTATION} of node {self._node}: {error}. To reset it: kubectl annotate node "
                    f"{self._node} {ANNOTATION}-"
                ) from error

        return change_annotation(self._api, self._node, ANNOTATION, decide)[1]

    def _await(
        self, what: str, device: str | None, before: Mapping[str, object], taints: frozenset[str], wait_s: float
    ) -> None:
        """Wait until the node process reacts. Raises DraError for a refusal or timeout."""
        until, followed = self._clock() + wait_s, False
        while self._clock() < until:
            new = [event for name, event in self._events().items() if before.get(name) != event]
            for reason, message, _ in new:
                if reason == REFUSED and (what in message or UNREADABLE in message):
                    raise _RefusedError(f"refused by the node process: {message}")
            if device is None and new:
                return
            if device is not None and (shown := self._taints().get(device, frozenset()) - taints):
                self._say(f"{device} is tainted: {', '.join(sorted(shown))}")
                return
            if new and not followed:
                followed, until = True, min(until, self._clock() + TAINT_S)
            self._sleep(LOOK_S)
        if followed:
            self._say(f"the node process applied the fault; no new taint on {device}: only counted, or already tainted")
        elif wait_s:
            raise DraError(
                f"{what}: no reaction within {wait_s:g} s. The node process of {self._node} is not running, cannot "
                "reach the API server, or runs without --simulate. Remove the annotation "
                f"{ANNOTATION}: dra-driver sim recover {self._node}",
                reason="NoReaction",
            )

    def _taints(self) -> Mapping[str, frozenset[str]]:
        items = self._api.list(paths.resource_slices(), {"fieldSelector": f"spec.nodeName={self._node}"})["items"]
        return {
            device.name: frozenset(f"{taint.key}={taint.value}:{taint.effect}" for taint in device.taints)
            for item in read_all(_Slice, items, self._note)
            for device in read_all(_Device, item.spec.devices, self._note)
        }

    def _note(self, said: str) -> None:
        if said not in self._lost:
            self._lost.add(said)
            self._say(f"note: of {self._node}: {printable(said)}")

    def _events(self) -> Mapping[str, tuple[str, str, object]]:
        """Return reason, message and count by name; empty without the permission to list events."""
        query = {"fieldSelector": f"involvedObject.kind=Node,involvedObject.name={self._node}"}
        try:
            events = read_all(_Event, self._api.list(paths.events("default"), query)["items"], self._note)
        except ForbiddenError:
            return {}
        return {
            event.metadata.name: (event.reason, event.message, event.count)
            for event in events
            if event.reason in REASONS and event.involved_object.name == self._node
        }

    def _unknown(self, device: str, known: Mapping[str, object]) -> str:
        node_metadata(self._api, self._node)
        if self._lost:
            return f"node {self._node} has no readable device {device!r:.80}: see the notes above"
        if not known:
            return f"node {self._node} publishes no devices: start its node process with --simulate"
        names = [name for name in known if faults.is_partition(name) == faults.is_partition(device)]
        return f"node {self._node} has no device {device!r:.80}; {suggest(device, names or known)}"
