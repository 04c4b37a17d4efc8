"""One node of the embedded cluster: its kubelet, its node process, its MPS host, and what claims leave on it.

Owns which parts a node has and where to look after a claim is gone. Refuses to know the cluster around it.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

from dra_driver.gpu.simulated.backend import SimulatedBackend
from dra_driver.sim.apiserver.store import Store
from dra_driver.sim.node.node import NodeFolders, SimulatedKubelet
from dra_driver.sim.node.node_process import MpsHostSubprocess, NodeSubprocess

DRIVER = "gpu.nvidia.com"
SIMULATED_STATE = "simulated-gpus.json"
"""Where the node process keeps what was done to its simulated GPUs, below its folder in the plugin directory."""


class ClusterNode:
    """One node. Each of its parts can be stopped and started alone."""

    def __init__(
        self, store: Store, name: str, spec: str, *, folders: NodeFolders, kubeconfig: Path, policies: Path, number: int
    ) -> None:
        self.name = name
        self.spec = spec
        self.folders = folders
        self._store = store
        self._number = number
        self.process = NodeSubprocess(name, spec, folders, kubeconfig, policies)
        self.mps_host = MpsHostSubprocess(DRIVER, folders)
        self.kubelet = SimulatedKubelet(store, name, folders, number=number)

    def restart_kubelet(self) -> None:
        """Stop the kubelet and start a new one, which wipes the node's slices as the real one does."""
        self.kubelet.stop()
        self.kubelet = SimulatedKubelet(self._store, self.name, self.folders, number=self._number)
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

    def mps_daemons(self) -> list[str]:
        """Ids of MPS daemons that were asked for and are not gone yet."""
        return sorted(path.name for path in (self.folders.plugins / DRIVER / "mps" / "daemons").glob("*"))

    def changed_gpus(self) -> list[str]:
        """Simulated GPUs that are not as their specification describes them: cut, in MIG mode, in a compute mode."""
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
        """CDI documents of claims, rows in the journal, views of containers, the kubelet's claims, MPS daemons, GPUs
        that are not as they were."""
        rows = self.journal_rows()
        return [
            *(f"CDI document {path.name}" for path in self.claim_files()),
            *([f"{rows} claims in the journal"] if rows else []),
            *(f"container folder {path.name}" for path in self.folders.views.iterdir()),
            *(f"the kubelet holds claims of pod {pod}" for pod in self.kubelet.dra.state.pods()),
            *(f"MPS daemon {daemon}" for daemon in self.mps_daemons()),
            *self.changed_gpus(),
        ]
