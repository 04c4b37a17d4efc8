"""A simulated kubelet: registers the Node object and runs one worker for each pod of its node. At its start it deletes
all slices of the node (wipeResourceSlices in kubernetes/kubernetes pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go),
adopts running pods, and unprepares the claims of deleted pods."""

import logging
import platform
import shutil
import threading
from contextlib import suppress
from pathlib import Path

from dra_driver.core.errors import AlreadyExistsError, DraError, NotFoundError
from dra_driver.core.time import rfc3339
from dra_driver.scheduler.allocation import MAX_PODS
from dra_driver.sim.apiserver.jsonvalue import Obj, utc_now
from dra_driver.sim.apiserver.kinds import NODES, PODS, RESOURCE_SLICES
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.loop import Controller
from dra_driver.sim.node.container import MadeProcesses
from dra_driver.sim.node.kubelet import DraManager
from dra_driver.sim.node.pod_resources import PodResourcesServer, answer_of
from dra_driver.sim.node.pod_worker import PodHost, PodWorker
from dra_driver.sim.objects import is_finished, uid

log = logging.getLogger(__name__)

VERSION = "v1.36.0+embedded"
STOP_TIMEOUT_S = 10.0


class NodeFolders:
    """Paths of a node's files. The names are short because the path of a unix socket has at most 107 bytes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.registry = root / "plugins_registry"
        self.plugins = root / "plugins"
        self.cdi = root / "cdi"
        self.views = root / "containers"
        self.kubelet_state = root / "dra_manager_state"
        self.shm = root / "shm"
        self.log = root / "kubelet-plugin.log"
        self.mps_log = root / "mps-host.log"
        self.proc = root / "proc"
        self.log_links = root / "logs"
        self.pod_resources = root / "pods.sock"
        self.exporter_log = root / "exporter.log"

    def make(self) -> None:
        for folder in (self.registry, self.plugins, self.cdi, self.views, self.shm):
            folder.mkdir(parents=True, exist_ok=True)


class SimulatedKubelet(Controller):
    """The kubelet of one node. Start it once, stop it once; a new instance over the same directories is a restart.
    `stop` leaves containers running and claims prepared, as stopping a real kubelet does."""

    def __init__(
        self,
        store: Store,
        name: str,
        folders: NodeFolders,
        *,
        number: int = 0,
        prepare_retry_s: float = 2.0,
        unprepare_retry_s: float = 1.0,
        restart_s: float = 2.0,
        wiping_delay_s: float = 30.0,
    ) -> None:
        super().__init__(f"kubelet-{name}", store, (PODS,), "kubelet", name)
        self.name = name
        self.folders = folders
        self._number = number
        folders.make()
        self.dra = DraManager(
            folders.registry,
            folders.kubelet_state,
            wiping_delay_s=wiping_delay_s,
            on_wipe=self._wipe,
            on_health=self._show_health,
        )
        self._stopping = threading.Event()
        self._host = PodHost(
            store=store,
            dra=self.dra,
            recorder=self._recorder,
            views=folders.views,
            cdi_directories=(folders.cdi,),
            host_ip=f"10.0.{number}.1",
            prepare_retry_s=prepare_retry_s,
            unprepare_retry_s=unprepare_retry_s,
            restart_s=restart_s,
            stop=self._stopping,
            processes=MadeProcesses(folders.proc, folders.log_links),
        )
        self._pod_resources = PodResourcesServer(
            folders.pod_resources, lambda: answer_of(self._own_pods(), self.dra.state)
        )
        self._workers: dict[str, PodWorker] = {}
        self._finished: set[str] = set()
        self._next_ip = 2

    def start(self) -> None:
        self._register_node()
        self._wipe("")
        self.dra.start()
        self._pod_resources.start()
        super().start()

    def stop(self) -> None:
        """Stop all threads; pods keep running. Idempotent."""
        self._stopping.set()
        super().stop()
        workers = list(self._workers.values())
        for worker in workers:
            worker.wake()
        for worker in workers:
            worker.join(STOP_TIMEOUT_S)
        self._pod_resources.stop()
        self.dra.stop()

    def step(self) -> float | None:
        """Start and update pod workers; returns 1 s when claims of deleted pods are still to be unprepared."""
        present = {uid(pod): pod for pod in self._own_pods()}
        for pod_uid, worker in list(self._workers.items()):
            worker.update(present.get(pod_uid))
        for pod_uid, pod in present.items():
            if pod_uid not in self._workers and pod_uid not in self._finished:
                self._start_worker(pod)
        self._finished &= present.keys()
        return 1.0 if self._clean_up(present) else None

    def _own_pods(self) -> list[Obj]:
        return self._store.list(PODS, fields=f"spec.nodeName={self.name}").items

    def _start_worker(self, pod: Obj) -> None:
        if is_finished(pod):
            self._finished.add(uid(pod))
            return
        address = f"10.244.{self._number}.{self._next_ip % 250 + 2}"
        self._next_ip += 1
        worker = PodWorker(self._host, pod, address, self._worker_ended)
        self._workers[uid(pod)] = worker
        worker.start()

    def _worker_ended(self, pod_uid: str) -> None:
        self._finished.add(pod_uid)
        self._workers.pop(pod_uid, None)
        self.wake()

    def _clean_up(self, present: dict[str, Obj]) -> bool:
        left = False
        for folder in self.folders.views.iterdir():
            if folder.name not in present and folder.name not in self._workers:
                shutil.rmtree(folder, ignore_errors=True)
        for pod_uid in self.dra.state.pods():
            pod = present.get(pod_uid)
            if pod_uid in self._workers or (pod is not None and not is_finished(pod)):
                continue
            try:
                self.dra.unprepare(pod_uid)
            except DraError as error:
                log.info("claims of a deleted pod not unprepared", extra={"pod": pod_uid, "reason": error})
                left = True
        return left

    def _show_health(self) -> None:
        for worker in list(self._workers.values()):
            worker.show_health()

    def _wipe(self, driver: str) -> None:
        fields = f"spec.nodeName={self.name}" + (f",spec.driver={driver}" if driver else "")
        for item in self._store.list(RESOURCE_SLICES, fields=fields).items:
            with suppress(NotFoundError):
                self._store.delete(RESOURCE_SLICES, item["metadata"]["name"])

    def _register_node(self) -> None:
        described = _node(self.name, self._host.host_ip)
        try:
            self._store.create(NODES, described)
        except AlreadyExistsError:
            self._store.update_status(NODES, self._store.get(NODES, self.name) | {"status": described["status"]})


def _node(name: str, address: str) -> Obj:
    now = rfc3339(utc_now())
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastHeartbeatTime": now,
        "lastTransitionTime": now,
    }
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": machine}
    capacity = {"cpu": "64", "memory": "512Gi", "pods": str(MAX_PODS)}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {
            "conditions": [ready],
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "capacity": capacity,
            "allocatable": capacity,
            "nodeInfo": {
                "architecture": machine,
                "operatingSystem": "linux",
                "osImage": "embedded",
                "kernelVersion": platform.release(),
                "containerRuntimeVersion": "containerd://embedded",
                "kubeletVersion": VERSION,
                "kubeProxyVersion": "",
                **dict.fromkeys(("machineID", "systemUUID", "bootID"), name),
            },
        },
    }
