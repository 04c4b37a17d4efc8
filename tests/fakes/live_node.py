"""One node with real processes: node process, MPS host, API server. The test acts as the kubelet, reads the journal,
CDI files and state files from outside, and changes the simulated GPUs and injects faults through ``hardware``."""

import json
import os
import shutil
import signal
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import grpc

from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated.root import TIMESLICE
from dra_driver.sim.apiserver.kinds import DEVICE_CLASSES, NAMESPACES, NODES, RESOURCE_SLICES
from dra_driver.sim.apiserver.server import ApiServer
from dra_driver.sim.loop import load
from dra_driver.sim.node.node import NodeFolders
from dra_driver.sim.node.node_process import SIMULATED_ROOT, MpsHostSubprocess, NodeSubprocess
from tests.fakes.kubelet import DraClient, dial
from tests.fakes.node_process import memory_folder
from tests.fakes.simulated_gpus import SimulatedBackend

DRIVER = "gpu.nvidia.com"
NAMESPACE = "claims"  # where claims may ask for admin access
CLASSES = Path(__file__).parents[2] / "deploy/base/deviceclasses.yaml"
WAIT_S = 20.0
CALL_S = 45.0  # the kubelet's own limit
MPS_ON_GPU_3 = """
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: by-mps}
spec:
  select: {minors: [3]}
  sharing: {strategy: MPS}
"""


def until(holds: Callable[[], object], what: str, within_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {within_s:g} s for {what}")
        time.sleep(0.02)


class LiveNode:
    """A context manager. Files are in memory if possible, unless ``on_disk``; ``policy`` is the text of a policy
    file."""

    def __init__(
        self, spec: str, *, policy: str = "", mps: bool = False, name: str = "node-a", on_disk: bool = False
    ) -> None:
        self.name = name
        self.root = Path(tempfile.mkdtemp(prefix="dra-", dir=None if on_disk else memory_folder()))
        self.folders = NodeFolders(self.root)
        self.folders.make()
        self.plugin = self.folders.plugins / DRIVER
        self.plugin.mkdir()
        (self.root / "policies").mkdir()
        if policy:
            (self.root / "policies" / "policy.yaml").write_text(policy)
        self.api = ApiServer()
        self.api.start()
        self.store = self.api.store
        self.store.create(NODES, {"metadata": {"name": name}})
        labels = {"resource.kubernetes.io/admin-access": "true"}
        self.store.create(NAMESPACES, {"metadata": {"name": NAMESPACE, "labels": labels}})
        for each in load(CLASSES):
            self.store.create(DEVICE_CLASSES, each)
        kubeconfig = self.api.kubeconfig(self.root / "kubeconfig")
        self.process = NodeSubprocess(name, spec, self.folders, kubeconfig, self.root / "policies")
        self.mps_host = MpsHostSubprocess(DRIVER, self.folders) if mps else None
        self.hardware = SimulatedBackend.from_spec(spec, name, state_file=self.plugin / "simulated-gpus.json")
        self.gpus = tuple(gpu.uuid for gpu in self.hardware.snapshot().gpus)
        self.pod_uid = ""  # as which pod the process was started, where its command says so: its sockets have that name
        self._guard = threading.Lock()  # guards the connection
        self._channel: grpc.Channel | None = None

    def __enter__(self) -> "LiveNode":
        try:
            self.start()
            until(self._published, "the node's slices")
            if self.mps_host is not None:
                self.mps_host.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()
        if self.mps_host is not None:
            self.mps_host.stop()
        self._close_channel()
        self.api.stop()
        shutil.rmtree(self.root, ignore_errors=True)

    def _published(self) -> bool:
        """Whether the pool is complete. Counter sets are written last; before them, partitions cannot be allocated."""
        specs = [item["spec"] for item in self.slices()]
        count = max((spec["pool"]["resourceSliceCount"] for spec in specs), default=0)
        return len(specs) == count and any(spec.get("devices") for spec in specs)

    def slices(self) -> list[dict[str, Any]]:
        return self.store.list(RESOURCE_SLICES).items

    def remove_slices(self) -> None:
        for item in self.slices():
            self.store.delete(RESOURCE_SLICES, item["metadata"]["name"])

    # --- start and stop of the node process ---

    def start(self) -> None:
        """Returns when the process serves the kubelet, which it does only after it has recovered."""
        # A call between the kill and this start has dialed the dead process' socket. gRPC waits before it dials again
        # on such a connection, and until then every call fails with UNAVAILABLE.
        self._close_channel()
        self.process.start()
        until(lambda: self.is_serving, f"the node process to serve: {self.process.log_tail()}")

    def kill(self) -> None:
        """Send SIGKILL at once; the sockets stay, as they do on a node."""
        pid = self.process.pid
        assert pid is not None
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self._close_channel()

    def restart(self) -> None:
        self.kill()
        self.start()

    def power_off(self, *, keep_cdi: bool = False) -> None:
        """Everything that does not outlive a reboot goes: processes, instances, settings of GPUs, /dev/shm and /run,
        where CDI files are unless that is on a disk. The next start is in another boot."""
        self.kill()
        assert self.mps_host is not None
        self.mps_host.kill()
        until(lambda: not self.mps_processes(), "the daemons to end with their host")
        (self.plugin / "simulated-gpus.json").unlink()
        for path in (self.plugin / SIMULATED_ROOT / TIMESLICE).glob("GPU-*"):
            path.unlink()
        for folder in (self.folders.shm,) if keep_cdi else (self.folders.shm, self.folders.cdi):
            shutil.rmtree(folder)
            folder.mkdir()
        (self.root / "boot_id").write_text("second-boot\n")
        self.process.command.append(f"--boot-id-file={self.root / 'boot_id'}")

    def power_on(self) -> float:
        """Seconds until the node process serves, which it does after it has recovered."""
        begin = time.monotonic()
        self.start()
        seconds = time.monotonic() - begin
        assert self.mps_host is not None
        self.mps_host.start()
        return seconds

    @property
    def socket(self) -> Path:
        return self.plugin / (f"dra-{self.pod_uid}.sock" if self.pod_uid else "dra.sock")

    @property
    def registration(self) -> Path:
        middle = f"-{self.pod_uid}" if self.pod_uid else ""
        return self.folders.registry / f"{DRIVER}{middle}-reg.sock"

    @property
    def is_serving(self) -> bool:
        """Whether a process accepts calls; a dead process' socket also exists."""
        assert self.process.is_running, self.process.log_tail()
        if not self.socket.exists():
            return False
        try:
            with dial(self.socket) as channel:
                grpc.channel_ready_future(channel).result(timeout=0.5)
        except grpc.FutureTimeoutError:
            return False
        return True

    def log(self) -> str:
        return self.folders.log.read_text()

    # --- the kubelet's calls ---

    def prepare(self, claim: "dict[str, str]", timeout_s: float = CALL_S) -> Any:
        """The claim's response, with its ``error`` and ``devices``. Raises grpc.RpcError if no process answers."""
        return self._client().prepare(claim["uid"], timeout=timeout_s, **_name(claim)).claims[claim["uid"]]

    def unprepare(self, claim: "dict[str, str]", timeout_s: float = CALL_S) -> str:
        """The error of the response, '' for success. Raises grpc.RpcError if no process answers."""
        answer = self._client().unprepare(claim["uid"], timeout=timeout_s, **_name(claim)).claims[claim["uid"]]
        return str(answer.error)

    def _client(self) -> DraClient:
        with self._guard:
            if self._channel is None:
                self._channel = grpc.insecure_channel(
                    f"unix://{self.socket}", options=[("grpc.use_local_subchannel_pool", 1)]
                )
            return DraClient(self._channel)

    def _close_channel(self) -> None:
        with self._guard:
            if self._channel is not None:
                self._channel.close()
            self._channel = None

    # --- what is on the node ---

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(f"file:{self.plugin}/state.db?mode=ro", uri=True, timeout=5.0)) as connection:
            return connection.execute(sql).fetchall()

    def states(self) -> dict[str, str]:
        return dict(self.rows("SELECT uid, state FROM claim"))

    def notes(self) -> list[tuple[str, str]]:
        return self.rows("SELECT gpu_uuid, key FROM gpu_note")

    def change_journal(self, sql: str) -> None:
        with closing(sqlite3.connect(self.plugin / "state.db", timeout=5.0, isolation_level=None)) as connection:
            connection.execute(sql)

    @property
    def journal_is_being_written(self) -> bool:
        with closing(sqlite3.connect(self.plugin / "state.db", timeout=0.0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
            connection.execute("ROLLBACK")
            return False

    def cdi_files(self) -> dict[str, Path]:
        prefix = f"k8s.{DRIVER}-claim_"
        return {path.stem.removeprefix(prefix): path for path in self.folders.cdi.glob(f"{prefix}*.json")}

    def hardware_state(self) -> dict[str, Any]:
        """The simulated hardware's state file, which no fault delays. It lacks GPUs that match their description."""
        try:
            state: dict[str, Any] = json.loads((self.plugin / "simulated-gpus.json").read_text())
        except FileNotFoundError:
            return {"gpus": {}, "faults": []}
        return state

    def instances(self) -> list[tuple[str, int, int, int]]:
        return sorted(
            (gpu, one["profile"], one["start"], len(one["compute"]))
            for gpu, state in self.hardware_state()["gpus"].items()
            for one in state["instances"]
        )

    def gpus_in_mig_mode(self) -> list[str]:
        return sorted(gpu for gpu, state in self.hardware_state()["gpus"].items() if state["migMode"])

    def mps_processes(self) -> list[int]:
        found, mark = [], str(self.plugin / SIMULATED_ROOT).encode()
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                line = path.read_bytes()
                if mark in line and b"mps-control" in line:
                    found.append(int(path.parent.name))
        return found

    def leftovers(self) -> list[str]:
        driver_root = self.plugin / SIMULATED_ROOT
        left = [f"claim {uid} is {state} in the journal" for uid, state in self.states().items()]
        for table in ("device", "mig", "sharing", "gpu_note"):
            left += [f"journal table {table} has {row}" for row in self.rows(f"SELECT * FROM {table}")]  # noqa: S608
        left += [f"CDI file of {uid}" for uid in self.cdi_files()]
        left += [f"GPU state backup {path.name}" for path in (self.plugin / "made").glob("*")]
        left += [f"GPU instance {one}" for one in self.instances()]
        left += [f"MIG mode of {gpu} is on" for gpu in self.gpus_in_mig_mode()]
        modes = {gpu: state["computeMode"] for gpu, state in self.hardware_state()["gpus"].items()}
        left += [f"compute mode of {gpu} is {mode}" for gpu, mode in modes.items() if mode != ComputeMode.DEFAULT]
        for path in (driver_root / TIMESLICE).glob("GPU-*"):
            left += [f"time slice of {path.name} is {text}"] if (text := path.read_text().strip()) != "0" else []
        left += [f"folder of MPS daemon {path.name}" for path in (self.plugin / "mps" / "daemons").glob("*")]
        left += [f"MPS daemon with pid {pid}" for pid in self.mps_processes()]
        return left


def _name(claim: "dict[str, str]") -> dict[str, str]:
    return {"namespace": claim["namespace"], "name": claim["name"]}
