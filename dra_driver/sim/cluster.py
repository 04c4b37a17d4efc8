"""A whole Kubernetes cluster in one process, with a real node process for each node.

Owns the order of start and stop and the private folder in which everything lives. Start: 1. folder, 2. API server and
kubeconfig, 3. controllers and scheduler, 4. kubelets, 5. node processes, 6. wait until every node has published. Stop:
1. node processes (SIGTERM, 7 s), 2. kubelets, 3. scheduler and controllers, 4. API server, 5. the folder.

It serves people who try the project out and its tests; a real cluster is the place for production.
"""

import logging
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from time import monotonic
from types import TracebackType

from dra_driver.cel import compile_selector
from dra_driver.errors import CelSyntaxError, ConfigurationError, RetryableError
from dra_driver.gpu.simulated import SimulatedBackend
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kinds import ALL_KINDS, NAMESPACES, RESOURCE_SLICES
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.client import StoreClient
from dra_driver.sim.controllers.claims import ClaimController
from dra_driver.sim.controllers.deployments import DeploymentController
from dra_driver.sim.controllers.jobs import JobController
from dra_driver.sim.controllers.replicasets import ReplicaSetController
from dra_driver.sim.manifests import deletion_order, kind_of, load
from dra_driver.sim.node import NodeFolders, SimulatedNode
from dra_driver.sim.node_process import NodeProcess
from dra_driver.sim.scheduler import Scheduler
from dra_driver.sim.store import Store

log = logging.getLogger(__name__)

DRIVER = "gpu.nvidia.com"
READY_TIMEOUT_S = 30.0
# plugins/<driver>/<socket> below it must stay under the 107 bytes of a unix socket's path.
_LONGEST_ROOT = 40


class ClusterNode:
    """One node: its kubelet and its node process, each of which can be stopped and started alone."""

    def __init__(self, store: Store, name: str, spec: str, folders: NodeFolders, kubeconfig: Path, number: int) -> None:  # noqa: PLR0917 - what a node consists of
        self.name = name
        self.spec = spec
        self.folders = folders
        self._store = store
        self._number = number
        self.process = NodeProcess(name, spec, folders, kubeconfig)
        self.kubelet = SimulatedNode(store, name, folders, number=number)

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start a new one, which wipes the node's slices as the real one does."""
        self.kubelet.stop()
        self.kubelet = SimulatedNode(self._store, self.name, self.folders, number=self._number)
        self.kubelet.start()

    def claim_files(self) -> list[Path]:
        """CDI documents of claims on this node."""
        return sorted(self.folders.cdi.glob(f"k8s.{DRIVER}-claim_*"))

    def journal_rows(self) -> int:
        """Claims in the node process' journal; 0 before it has made one."""
        path = self.folders.plugins / DRIVER / "state.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
            return int(connection.execute("SELECT count(*) FROM claim").fetchone()[0])


class Cluster:
    """The embedded cluster. Use it as a context manager, or `start` it once and `stop` it once.

    ``nodes`` maps node names to hardware specs (``4xa100-sxm4-40gb``). ``kubeconfig`` is where to write one, None for a
    place in the cluster's own folder. Raises ConfigurationError for hardware that does not exist.
    """

    def __init__(self, nodes: Mapping[str, str], *, port: int = 0, kubeconfig: Path | None = None) -> None:
        if not nodes:
            raise ConfigurationError("an embedded cluster needs at least one node, such as gpu-a=4xa100-sxm4-40gb")
        for name, spec in nodes.items():
            SimulatedBackend.from_spec(spec, name)  # a typing mistake is found here and not in a child's log
        self._specs = dict(nodes)
        self.folder = _private_folder()
        self.kubeconfig = kubeconfig or self.folder / "kubeconfig"
        self._own_kubeconfig = self.folder / "kubeconfig"
        self._api = ApiServer(port, check_cel=check_cel)
        self.store = self._api.store
        self.client = StoreClient(self.store)
        controllers = (ClaimController, DeploymentController, ReplicaSetController, JobController, Scheduler)
        self._controllers = [controller(self.store) for controller in controllers]
        self.nodes: dict[str, ClusterNode] = {}

    @property
    def url(self) -> str:
        """Where the API server listens."""
        return self._api.url

    def __enter__(self) -> "Cluster":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Everything, until every node has published its GPUs. Raises RetryableError with what is missing."""
        self._api.start()
        self._api.kubeconfig(self._own_kubeconfig)
        if self.kubeconfig != self._own_kubeconfig:
            self._api.kubeconfig(self.kubeconfig)
        for controller in self._controllers:
            controller.start()
        for number, (name, spec) in enumerate(self._specs.items()):
            folders = NodeFolders(self.folder / f"n{number}")
            node = ClusterNode(self.store, name, spec, folders, self._own_kubeconfig, number)
            self.nodes[name] = node
            node.kubelet.start()
            node.process.start()
        self.wait_published()

    def stop(self) -> None:
        """Everything goes, also the folder. Idempotent."""
        for node in self.nodes.values():
            node.process.stop()
        for node in self.nodes.values():
            node.kubelet.stop()
        for controller in self._controllers:
            controller.stop()
        self._api.stop()
        if self.kubeconfig != self._own_kubeconfig:
            self.kubeconfig.unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def stop_api_server(self) -> None:
        """Nobody can reach the API server over the network any more; what runs inside this process goes on."""
        self._api.stop()

    def start_api_server(self) -> None:
        """It is back, with the same address, credentials and objects."""
        self._api = ApiServer(successor_of=self._api)
        self._api.start()

    def wait_published(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until every node's driver is registered with its kubelet and has slices. Raises RetryableError if not."""
        for node in self.nodes.values():
            self.wait(lambda node=node: self._unready(node), timeout_s, f"node {node.name} to publish its GPUs")  # type: ignore[misc]

    def slices(self, node: str = "") -> list[Obj]:
        """ResourceSlices, of one node or of all."""
        return self.store.list(RESOURCE_SLICES, fields=f"spec.nodeName={node}" if node else "").items

    def apply(self, path: Path, namespace: str = "default") -> list[Obj]:
        """Create every object of a YAML file, and the namespace if it does not exist."""
        if self.store.find(NAMESPACES, namespace) is None:
            self.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        return [self.client.create(obj, namespace) for obj in load(path)]

    def delete(self, path: Path, namespace: str = "default") -> None:
        """Delete every object of a YAML file, last first; what is gone already is no error."""
        for obj in deletion_order(load(path)):
            kind = kind_of(obj)
            self.client.delete(kind, obj["metadata"]["name"], namespace if kind.namespaced else "")

    def wait(self, check: Callable[[], str | None], timeout_s: float, what: str) -> None:
        """Until ``check`` has nothing to complain about. Raises RetryableError with its last complaint after that time.

        It is asked again after every change in the cluster, and now and then for what is not in the API.
        """
        deadline, changed = monotonic() + timeout_s, threading.Event()
        with self.store.watch(ALL_KINDS, since=self.store.revision, wake=changed.set) as changes:
            while (complaint := check()) is not None:
                if monotonic() >= deadline:
                    raise RetryableError(f"waited {timeout_s:g} s for {what}: {complaint}")
                changed.wait(0.1)
                changed.clear()
                changes.take_all()

    def leftovers(self) -> list[str]:
        """What claims have left behind on the nodes: CDI documents, journal rows, views of containers."""
        found = []
        for node in self.nodes.values():
            found += [f"{node.name}: CDI document {path.name}" for path in node.claim_files()]
            rows = node.journal_rows()
            found += [f"{node.name}: {rows} claims in the journal"] if rows else []
            found += [f"{node.name}: container folder {path.name}" for path in node.folders.views.iterdir()]
            found += [
                f"{node.name}: the kubelet holds claims of pod {pod}" for pod in node.kubelet.kubelet.state.pods()
            ]
        return found

    def _unready(self, node: ClusterNode) -> str | None:
        if not node.process.is_running:
            raise RetryableError(
                f"the process of node {node.name} has ended; its log ends with\n{node.process.log_tail()}"
            )
        if DRIVER not in node.kubelet.kubelet.drivers():
            return "its driver is not registered with the kubelet"
        return None if self.slices(node.name) else "it has no ResourceSlice"


def check_cel(expression: str) -> str | None:
    """What the API server says about an expression: None, or why it does not compile."""
    try:
        compile_selector(expression)
    except CelSyntaxError as error:
        return str(error)
    return None


def parse_nodes(values: Iterable[str]) -> dict[str, str]:
    """``gpu-a=4xa100-sxm4-40gb`` as a mapping. Raises ConfigurationError for anything else."""
    nodes: dict[str, str] = {}
    for value in values:
        name, separator, spec = value.partition("=")
        if not separator or not name or not spec:
            raise ConfigurationError(f"{value!r} is not a node: expected NAME=SPEC such as gpu-a=4xa100-sxm4-40gb")
        if name in nodes:
            raise ConfigurationError(f"node {name} is given twice")
        nodes[name] = spec
    return nodes


def _private_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="dra-"))
    if len(str(folder)) > _LONGEST_ROOT:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="dra-", dir="/tmp"))  # TMPDIR is too long
    return folder
