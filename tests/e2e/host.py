"""This host as a node of the cluster: its folders, its simulated GPUs, and a node process and an MPS host for tests.

Changing GPUs restarts the node process; policies are files in its folder and change while it runs. GPUs are read
directly, not through the driver, the API server or logs."""

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.core.unix_socket import is_served
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated.root import RECORDS, TIMESLICE
from dra_driver.hardware.sharing.mps_files import MpsFolders
from dra_driver.node.policy.folder import read_folder
from dra_driver.node.policy.policy_set import read_set
from dra_driver.node.policy.resolve import resolve
from dra_driver.node.slices import build_devices, features
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.demo.requirements import Requirements
from tests.e2e.cluster import DRIVER, RealCluster, wait
from tests.fakes.dra_objects import wire
from tests.fakes.node_process import DriverProcess, MpsHostProcess, NodeProcess
from tests.fakes.simulated_gpus import SimulatedBackend

# H100 first: the policies of the examples are about GPU 0.
GPUS = "2xh100-sxm5-80gb,2xa100-sxm4-40gb"
REGISTERED = "registered with the kubelet"
MPS_READY = "MPS host started"
START_S = 30.0
POLL_INTERVAL_S = "1"


KUBELET_ROOT = Path(os.environ.get("E2E_KUBELET_ROOT", "/var/lib/kubelet"))
CDI_DIR = Path(os.environ.get("E2E_CDI_DIR", "/var/run/cdi"))
STATE_DIR = Path(os.environ.get("E2E_STATE_DIR", str(KUBELET_ROOT / "plugins" / DRIVER)))
_CLAIM_FILE = f"k8s.{DRIVER}-claim_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folders:
    cdi: Path
    state: Path

    def claims_with_files(self) -> set[str]:
        return {path.stem.removeprefix(_CLAIM_FILE) for path in self.cdi.glob(f"{_CLAIM_FILE}*.json")}

    def claims_in_journal(self) -> set[str]:
        database = self.state / "state.db"
        if not database.exists():
            return set()
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as journal:
            return {uid for (uid,) in journal.execute("SELECT uid FROM claim")}

    def left_of_others(self, known: Set[str]) -> str:
        """CDI files and journal rows of claims that are not among ``known``, "" without any."""
        files = [f"CDI file of claim {uid}" for uid in sorted(self.claims_with_files() - known)]
        rows = [f"journal row of claim {uid}" for uid in sorted(self.claims_in_journal() - known)]
        return ", ".join(files + rows)


def local_node(nodes: list[Obj]) -> str | None:
    """The name of the node that this host is: the one in E2E_NODE_NAME, or the one with this host's boot id."""
    if name := os.environ.get("E2E_NODE_NAME"):
        return name
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    here = [node["metadata"]["name"] for node in nodes if dig(node, "status", "nodeInfo", "bootID") == boot_id]
    # Several nodes in containers of one host share its boot id, but not its folders.
    return here[0] if len(here) == 1 and (KUBELET_ROOT / "plugins_registry").is_dir() else None


def driver_runs_here() -> bool:
    """Whether a node process answers on this host. Slices do not tell: they outlive it by half a minute."""
    return any(is_served(path) for path in (KUBELET_ROOT / "plugins_registry").glob(f"{DRIVER}*reg.sock"))


def folders(node: str | None) -> Folders | None:
    given = "E2E_CDI_DIR" in os.environ and "E2E_STATE_DIR" in os.environ
    return Folders(cdi=CDI_DIR, state=STATE_DIR) if given or node is not None else None


STATE = "simulated-gpus.json"
ROOT = "simulated-root"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs that ``spec`` describes for ``node``; ``state`` is the driver's folder on this host."""

    spec: str
    node: str
    state: Path

    def as_described(self) -> Snapshot:
        return SimulatedBackend.from_spec(self.spec, self.node).snapshot()

    def backend(self) -> SimulatedBackend:
        """Close it after use: an open one keeps the GPUs from being reset."""
        return SimulatedBackend.from_spec(self.spec, self.node, state_file=self.state / STATE)

    def faults(self) -> list[object]:
        found: list[object] = json.loads((self.state / STATE).read_text())["faults"]
        return found

    def made(self) -> dict[str, str]:
        """Minor, profile and start of each MIG instance -> UUID of its device, "" without a compute instance."""
        with closing(self.backend()) as backend:
            gpus = backend.snapshot().gpus
        return {
            f"{gpu.minor}/{instance.profile_id}/{instance.start}": str(instance.device.uuid if instance.device else "")
            for gpu in gpus
            for instance in gpu.mig_instances
        }

    def uuids_of(self, devices: Iterable[str]) -> set[str]:
        """UUIDs of the MIG devices at the placements in these device names. Raises KeyError for a missing one."""
        made, names = self.made(), [parse_partition_name(name) for name in devices]
        return {made[f"{name.minor}/{name.profile_id}/{name.start}"] for name in names if name is not None}

    def compute_mode(self, uuid: str) -> ComputeMode:
        with closing(self.backend()) as backend:
            return next(backend.compute_mode(gpu.uuid) for gpu in backend.snapshot().gpus if gpu.uuid == uuid)

    def time_slice(self, uuid: str) -> int:
        """The last time slice set with nvidia-smi, 0 (default) without one."""
        path = self.state / ROOT / TIMESLICE / uuid
        return int(path.read_text()) if path.exists() else 0

    def said(self, program: str) -> list[str]:
        """Commands that a program of the simulated driver received, one per line: nvidia-smi or mps-control."""
        path = self.state / ROOT / RECORDS / f"{program}.log"
        return path.read_text().splitlines() if path.exists() else []

    def daemons(self) -> tuple[str, ...]:
        return MpsFolders(self.state / "mps").ids()

    def traces(self) -> str:
        """What differs from the state before any claim, "" if nothing does."""
        fresh = {gpu.uuid: gpu for gpu in self.as_described().gpus}
        found = [f"MPS daemon {name}" for name in self.daemons()]
        with closing(self.backend()) as backend:
            for gpu in backend.snapshot().gpus:
                if gpu != fresh[gpu.uuid]:
                    found.append(f"{gpu.device_name}: MIG mode {gpu.mig_enabled}, instances {gpu.mig_instances}")
                if (mode := backend.compute_mode(gpu.uuid)) is not ComputeMode.DEFAULT:
                    found.append(f"{gpu.device_name}: compute mode {mode.name}")
                if number := self.time_slice(gpu.uuid):
                    found.append(f"{gpu.device_name}: time slice {number}")
        return ", ".join(found)


def restart(process: NodeProcess) -> None:
    """Start the node process, again after it ended, and wait until it is registered with the kubelet."""
    before = process.text.count(REGISTERED) if process.log.exists() else 0
    process.start()
    process.wait_for(lambda: process.text.count(REGISTERED) > before, START_S)


@contextmanager
def controllers(folder: Path, flags: Mapping[str, str | None]) -> Iterator[Callable[[str], DriverProcess]]:
    """Yields what starts a controller with these flags as the pod of a name."""
    made: list[DriverProcess] = []

    def start(name: str) -> DriverProcess:
        (folder / name).mkdir()
        made.append(DriverProcess("controller", folder / name, {**flags, "pod_name": name}).start())
        return made[-1]

    try:
        yield start
    finally:
        for process in made:
            process.kill()


class Host:
    """The processes on this host for ``node``. Not thread-safe; `start` and `stop` once."""

    def __init__(self, cluster: RealCluster, folder: Path, node: str, kubeconfig: str) -> None:
        self._cluster, self._node = cluster, node
        self.policies = folder / "policies"
        for path in (self.policies, folder / "node", folder / "mps"):
            path.mkdir()
        self.process = NodeProcess(
            folder / "node",
            environ={"KUBECONFIG": kubeconfig},
            node_name=node,
            simulate=GPUS,
            kubelet_registrar_dir=str(KUBELET_ROOT / "plugins_registry"),
            kubelet_plugins_dir=str(STATE_DIR.parent),
            cdi_dir=str(CDI_DIR),
            policy_dir=str(self.policies),
            poll_interval=POLL_INTERVAL_S,
        )
        self.mps = MpsHostProcess(folder / "mps", STATE_DIR.parent, DRIVER)

    @property
    def hardware(self) -> Hardware:
        return Hardware(spec=str(self.process.flags["simulate"]), node=self._node, state=STATE_DIR)

    def start(self) -> None:
        self.restart()
        self.mps.start()
        self.mps.wait_for(lambda: MPS_READY in self.mps.text)

    def stop(self) -> None:
        try:
            for process in (self.process, self.mps):
                if process.lives:
                    process.end()
        finally:
            self.process.kill()
            self.mps.kill()

    def restart(self) -> None:
        restart(self.process)

    def provide(self, requirements: Requirements) -> None:
        """Wait until slices offer the required GPUs under their policies, and none is in use. Skips if this host
        cannot."""
        if len(requirements.nodes) > 1:
            pytest.skip("it needs several nodes with different GPUs, and this host is one")
        spec = requirements.nodes[0][1] if requirements.nodes else GPUS
        self._put_policies(requirements.policies)
        if spec != self.process.flags["simulate"] or not self.process.lives:
            if self.process.lives:
                self.process.end()
            self.process.flags["simulate"] = spec
            self.forget_gpus()
            self.restart()
        wait(self._differs, START_S)

    @staticmethod
    def forget_gpus() -> None:
        """The next start finds another machine, not one that has lost its GPUs: those would stay published."""
        (STATE_DIR / "last-known-gpus.json").unlink(missing_ok=True)

    def put_policy(self, name: str, text: str) -> None:
        path = self.policies / f".{name}.new"
        path.write_text(text)
        path.replace(self.policies / name)

    def _put_policies(self, paths: tuple[Path, ...]) -> None:
        for path in self.policies.iterdir():
            if path.name not in {wanted.name for wanted in paths}:
                path.unlink()
        for path in paths:
            self.put_policy(path.name, path.read_text())

    def _differs(self) -> str | None:
        wanted = self._wanted()
        found = {_essence(device) for device in self._cluster.devices()}
        if found == wanted:
            return None
        return f"slices have {sorted(found - wanted)}, and have not {sorted(wanted - found)}; {self.process.text}"

    def _wanted(self) -> set[tuple[str, ...]]:
        snapshot = SimulatedBackend.from_spec(str(self.process.flags["simulate"]), self._node).snapshot()
        policies = read_set(read_folder(self.policies)).policies
        kept = features.probe(RestSlicesApi(self._cluster.rest, DRIVER, self._node), DRIVER, self._node)
        terms = resolve(policies, snapshot, (), self._node)
        return {_essence(wire(device)) for device in build_devices(snapshot, terms, kept).devices}


def _essence(device: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of slices that depend on GPUs and policies, in the API server's spelling."""
    attributes = device["attributes"]
    texts = [str(attributes.get(name, {}).get("string")) for name in ("productName", "uuid", "sharingStrategy")]
    return (device["name"], *texts, *sorted(device.get("capacity") or ()))
