"""A Kubernetes cluster in one process, with a real node process for each node. For trials and tests, not production.

Start: 1. private directory, 2. API server and kubeconfig, 3. controllers and scheduler, 4. kubelets, 5. node processes,
6. wait until every node has published its GPUs, 7. MPS hosts, without a wait: few clusters need them. Stop: 1. node
processes and MPS hosts (SIGTERM, 10 s), 2. kubelets, 3. scheduler and controllers, 4. API server, 5. the directory.
"""

import logging
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

from dra_driver.core.errors import CelSyntaxError, ConfigurationError, RetryableError
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.kube.devices import newest_slices
from dra_driver.kube.pod_run import labels_of
from dra_driver.scheduler.cel import compile_selector
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import ALL_KINDS, DAEMON_SETS, NAMESPACES, PODS, RESOURCE_SLICES
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.controllers.claims import ClaimController, DeviceTaintController
from dra_driver.sim.controllers.workloads import (
    DeploymentController,
    DisruptionController,
    JobController,
    ReplicaSetController,
)
from dra_driver.sim.loop import StoreClient, deletion_order, kind_of, load
from dra_driver.sim.node import network
from dra_driver.sim.node.node import NodeFolders
from dra_driver.sim.node.node_process import DRIVER, NAMESPACE, ClusterNode
from dra_driver.sim.scheduler import EmbeddedScheduler

__all__ = ["DRIVER", "Cluster", "check_cel", "incomplete"]

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 30.0
# The path of a unix socket has at most 107 bytes, and the sockets are at n<number>/plugins/<driver>/<socket>.
_LONGEST_ROOT = 40


class Cluster:
    """The embedded cluster. Use it as a context manager, or `start` it once and `stop` it once.

    ``nodes`` maps node names to hardware specs (``4xa100-sxm4-40gb``). The kubeconfig is written to ``kubeconfig``, by
    default into the cluster's directory. All nodes read and follow the GpuPolicy files in ``policy_dir``, by default a
    directory of the cluster with copies of ``policies``. ``usage``: nodes have usage exporters. ``nics``: nodes have
    network cards and their driver, with its DeviceClass. Raises ConfigurationError for unknown hardware, and for both
    ``policy_dir`` and ``policies``.
    """

    def __init__(
        self,
        nodes: Mapping[str, str],
        *,
        port: int = 0,
        kubeconfig: Path | None = None,
        policy_dir: Path | None = None,
        policies: Sequence[Path] = (),
        usage: bool = False,
        nics: bool = False,
    ) -> None:
        if not nodes:
            raise ConfigurationError(
                "an embedded cluster needs at least one node, such as gpu-a=4xa100-sxm4-40gb", reason="NoNodes"
            )
        for name, spec in nodes.items():
            SimulatedBackend.from_spec(spec, name)  # reports a typing mistake here instead of in a child's log
        if policy_dir is not None and policies:
            raise ConfigurationError(
                f"both a policy folder ({policy_dir}) and single policy files were given: put the files into the folder"
            )
        self._specs, self._usage, self._nics = dict(nodes), usage, nics
        self._drivers = (DRIVER, network.DRIVER) if nics else (DRIVER,)
        self.folder = _private_folder()
        self.kubeconfig = kubeconfig or self.folder / "kubeconfig"
        self._own_kubeconfig = self.folder / "kubeconfig"
        self.policies = policy_dir.absolute() if policy_dir else self.folder / "policies"
        if policy_dir is None:
            self.policies.mkdir()
            self.set_policies(policies)
        self._api = ApiServer(port, check_cel=check_cel)
        self.store = self._api.store
        self.client = StoreClient(self.store)
        controllers = (
            *(ClaimController, DeploymentController, ReplicaSetController, JobController, DisruptionController),
            *(DeviceTaintController, EmbeddedScheduler),
        )
        self._controllers = [controller(self.store) for controller in controllers]
        self.nodes: dict[str, ClusterNode] = {}

    @property
    def url(self) -> str:
        return self._api.url

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until every node has published its GPUs. Raises RetryableError on timeout."""
        self._api.start()
        self._api.kubeconfig(self._own_kubeconfig)
        if self.kubeconfig != self._own_kubeconfig:
            self._api.kubeconfig(self.kubeconfig)
        for controller in self._controllers:
            controller.start()
        if self._nics:
            self.client.create(network.DEVICE_CLASS, "")
        for number, (name, spec) in enumerate(self._specs.items()):
            folders = NodeFolders(self.folder / f"n{number}")
            node = ClusterNode(
                self.store,
                name,
                spec,
                folders=folders,
                kubeconfig=self._own_kubeconfig,
                policies=self.policies,
                number=number,
                usage=self._usage,
                nics=self._nics,
            )
            self.nodes[name] = node
            node.kubelet.start()
            node.process.start()
            if node.network is not None:
                node.network.start()
        self.wait_published()
        for node in self.nodes.values():
            node.mps_host.start()
            node.start_exporter()

    def add_daemon_set(self) -> None:
        """Create the DaemonSet that a chart would install, for commands that take the node process' image from it."""
        if self.store.find(NAMESPACES, NAMESPACE) is None:
            self.store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        labels = labels_of("node")
        container = {"name": "node", "image": "dra-driver", "args": ["kubelet-plugin"]}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
        spec = {"selector": {"matchLabels": labels}, "template": template}
        made = self.store.create(
            DAEMON_SETS, {"metadata": {"name": "dra-driver-node"}, "spec": spec}, namespace=NAMESPACE
        )
        ready = dict.fromkeys(("currentNumberScheduled", "desiredNumberScheduled", "numberReady"), len(self.nodes))
        made["status"] = {**made["status"], **ready, "observedGeneration": 1}
        self.store.update_status(DAEMON_SETS, made)
        owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "controller": True}
        owner |= {"name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
        for number, node in enumerate(self.nodes):
            metadata = {"name": f"dra-driver-node-{number}", "labels": labels, "ownerReferences": [owner]}
            pod = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
            self.store.create(PODS, {"metadata": metadata, "spec": pod}, namespace=NAMESPACE)

    def stop(self) -> None:
        """Stop everything and delete the folder. Idempotent."""
        for node in self.nodes.values():
            for process in node.processes:
                process.ask_to_stop()
        for node in self.nodes.values():
            for process in node.processes:
                process.stop()
        for node in self.nodes.values():
            if node.network is not None:
                node.network.stop()
            node.kubelet.stop()
        for controller in self._controllers:
            controller.stop()
        self._api.stop()
        if self.kubeconfig != self._own_kubeconfig:
            self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_api_server(self) -> None:
        """Stop serving the API over the network. Components inside this process keep using the store."""
        self._api.stop()

    def start_api_server(self) -> None:
        self._api = ApiServer(successor_of=self._api)
        self._api.start()

    def set_policies(self, files: Sequence[Path]) -> None:
        """Replace the cluster's policy files by these, each by a rename; running node processes reload them. Deletes
        all other files in the directory, so do not call it on a ``policy_dir`` of the caller."""
        names = {file.name for file in files}
        if len(names) < len(files):
            raise ConfigurationError(
                f"two policy files have the same name, expected unique names: {', '.join(map(str, files))}"
            )
        for file in files:
            temporary = self.folder / f".{file.name}.new"  # not in the folder that node processes read
            temporary.write_bytes(file.read_bytes())
            temporary.replace(self.policies / file.name)
        for path in self.policies.iterdir():
            if path.name not in names:
                path.unlink()

    def wait_published(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every driver is registered and its slices are complete. Raises RetryableError on timeout."""
        for node in self.nodes.values():
            self.wait(lambda node=node: self._unready(node), timeout_s, f"node {node.name} to publish its GPUs")  # type: ignore[misc]

    def slices(self, node: str = "") -> list[Obj]:
        return self.store.list(RESOURCE_SLICES, fields=f"spec.nodeName={node}" if node else "").items

    def apply(self, path: Path, namespace: str = "default") -> list[Obj]:
        if self.store.find(NAMESPACES, namespace) is None:
            self.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        return [self.client.create(obj, namespace) for obj in load(path)]

    def delete(self, path: Path, namespace: str = "default") -> None:
        """Delete every object of a YAML file, the last one first. Ignores objects that do not exist."""
        for obj in deletion_order(load(path)):
            kind = kind_of(obj)
            self.client.delete(kind, obj["metadata"]["name"], namespace if kind.namespaced else "")

    def wait(self, check: Callable[[], str | None], timeout_s: float, what: str) -> None:
        """Wait until ``check`` returns None; calls it after every change in the API, and every 0.1 s. After
        ``timeout_s``, raises RetryableError with its last answer."""
        deadline, changed = monotonic() + timeout_s, threading.Event()
        with self.store.watch(ALL_KINDS, since=self.store.revision, wake=changed.set) as changes:
            while (complaint := check()) is not None:
                if monotonic() >= deadline:
                    raise RetryableError(f"waited {timeout_s:g} s for {what}: {complaint}")
                changed.wait(0.1)
                changed.clear()
                changes.take_all()

    def leftovers(self) -> list[str]:
        return [f"{node.name}: {left}" for node in self.nodes.values() for left in node.leftovers()]

    def _unready(self, node: ClusterNode) -> str | None:
        if not node.process.is_running:
            raise RetryableError(
                f"the node process of {node.name} exited; its log ends with\n{node.process.log_tail()}"
            )
        if missing := set(self._drivers) - node.kubelet.dra.drivers():
            return f"driver {min(missing)} is not registered with the kubelet"
        return next(filter(None, (incomplete(self.slices(node.name), driver) for driver in self._drivers)), None)


def check_cel(expression: str) -> str | None:
    """None if the CEL expression compiles, otherwise the compiler's message."""
    try:
        compile_selector(expression)
    except CelSyntaxError as error:
        return str(error)
    return None


def incomplete(slices: Sequence[Obj], driver: str = DRIVER) -> str | None:
    """Return the missing slices of a node's pool, None if its newest generation is complete."""
    newest = newest_slices(item for item in slices if item["spec"]["driver"] == driver)
    if not newest:
        return "it has no ResourceSlice"
    wanted = newest[0]["spec"]["pool"]["resourceSliceCount"]
    return None if len(newest) == wanted else f"it has {len(newest)} of {wanted} ResourceSlices"


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    if len(str(folder)) > _LONGEST_ROOT:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="dra-", dir="/tmp"))  # TMPDIR is too long
    return folder
