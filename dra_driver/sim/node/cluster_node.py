"""One node of the embedded cluster: kubelet, node process, MPS host, exporter, and the check for leftovers."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from dra_driver.core.errors import AlreadyExistsError
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.sim.apiserver.kinds import NAMESPACES, PODS
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.node.node import NodeFolders, SimulatedKubelet
from dra_driver.sim.node.node_process import DriverSubprocess, ExporterSubprocess, MpsHostSubprocess, NodeSubprocess
from dra_driver.sim.objects import uid

NAMESPACE: Final = "dra-driver"
PORT: Final = 8082
"""The port of the chart's exporter; what answers for it is the process' own port on loopback."""
_LABELS: Final = {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": "exporter"}


DRIVER = "gpu.nvidia.com"
SIMULATED_STATE = "simulated-gpus.json"
"""State file of the simulated GPUs, in the node process' plugin directory."""


class ClusterNode:
    """One node. Kubelet, node process and MPS host can be stopped and started separately."""

    def __init__(
        self,
        store: Store,
        name: str,
        spec: str,
        *,
        folders: NodeFolders,
        kubeconfig: Path,
        policies: Path,
        number: int,
        usage: bool = False,
    ) -> None:
        """``usage``: with a usage exporter, which the node process tells of claims."""
        self.name = name
        self.spec = spec
        self.folders = folders
        self._store = store
        self._number = number
        self.process = NodeSubprocess(name, spec, folders, kubeconfig, policies, usage=usage)
        self.exporter = ExporterSubprocess(name, spec, folders) if usage else None
        self.mps_host = MpsHostSubprocess(DRIVER, folders)
        self.kubelet = SimulatedKubelet(store, name, folders, number=number)
        self._exporter_uid = ""

    @property
    def processes(self) -> list[DriverSubprocess]:
        """The child processes, in the order of their stop."""
        return [self.process, self.mps_host, *([self.exporter] if self.exporter is not None else [])]

    def start_exporter(self) -> None:
        """Start the usage exporter and create its pod, once; does nothing on a node without."""
        if self.exporter is None:
            return
        self.exporter.start()
        with suppress(AlreadyExistsError):
            self._store.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        name, ports = f"dra-driver-exporter-{self._number}", [{"name": "metrics", "containerPort": PORT}]
        container = {"name": "exporter", "image": "dra-driver", "ports": ports}
        spec = {"nodeName": self.name, "containers": [container], "tolerations": [{"operator": "Exists"}]}
        self._store.ports.serve(NAMESPACE, name, PORT, self.exporter.port)
        pod = {"metadata": {"name": name, "labels": _LABELS}, "spec": spec}
        self._exporter_uid = uid(self._store.create(PODS, pod, namespace=NAMESPACE))

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start a new one, which deletes the node's slices at its start as the real one does."""
        self.kubelet.stop()
        self.kubelet = SimulatedKubelet(self._store, self.name, self.folders, number=self._number)
        self.kubelet.start()

    def claim_files(self) -> list[Path]:
        return sorted(self.folders.cdi.glob(f"k8s.{DRIVER}-claim_*"))

    def journal_rows(self) -> int:
        """Number of claims in the node process' journal; 0 before the journal exists."""
        path = self.folders.plugins / DRIVER / "state.db"
        if not path.exists():
            return 0
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5.0)) as connection:
            return int(connection.execute("SELECT count(*) FROM claim").fetchone()[0])

    def mps_daemons(self) -> list[str]:
        """Ids of MPS daemons whose folders exist: requested and not removed yet."""
        return sorted(path.name for path in (self.folders.plugins / DRIVER / "mps" / "daemons").glob("*"))

    def changed_gpus(self) -> list[str]:
        """Simulated GPUs that differ from their specification: MIG instances, MIG mode, compute mode."""
        path = self.folders.plugins / DRIVER / SIMULATED_STATE
        if not path.exists():
            return []
        now = SimulatedBackend.from_spec(self.spec, self.name, state_file=path)
        described = SimulatedBackend.from_spec(self.spec, self.name)
        return [
            f"{gpu.uuid} has {len(gpu.mig_instances)} MIG instances, MIG mode {'on' if gpu.mig_enabled else 'off'}, "
            f"compute mode {now.compute_mode(gpu.uuid).name}"
            for gpu in now.snapshot().gpus
            if gpu != described.snapshot().gpu_by_uuid(gpu.uuid)
            or now.compute_mode(gpu.uuid) != described.compute_mode(gpu.uuid)
        ]

    def leftovers(self) -> list[str]:
        """What claims left behind, one sentence each."""
        rows, folders = self.journal_rows(), [path.name for path in self.folders.views.iterdir()]
        return [
            *(f"CDI document {path.name}" for path in self.claim_files()),
            *([f"{rows} claims in the journal"] if rows else []),
            *(f"container folder {pod}" for pod in folders if pod != self._exporter_uid),
            *(f"the kubelet still has claims of pod {pod}" for pod in self.kubelet.dra.state.pods()),
            *(f"MPS daemon {daemon}" for daemon in self.mps_daemons()),
            *self.changed_gpus(),
        ]
