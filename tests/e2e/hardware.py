"""The simulated GPUs of this host, read directly and not through the driver, the API server or logs.

Reads the state file of the simulated GPUs and the records of the simulated driver's programs.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated.root import RECORDS, TIMESLICE
from dra_driver.hardware.sharing.mps_files import MpsFolders
from tests.fakes.simulated_gpus import SimulatedBackend

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
        return SimulatedBackend.from_spec(self.spec, self.node, state_file=self.state / STATE)

    def faults(self) -> list[object]:
        found: list[object] = json.loads((self.state / STATE).read_text())["faults"]
        return found

    def made(self) -> dict[str, str]:
        """Minor, profile and start of each MIG instance -> UUID of its device, "" without a compute instance."""
        return {
            f"{gpu.minor}/{instance.profile_id}/{instance.start}": str(instance.device.uuid if instance.device else "")
            for gpu in self.backend().snapshot().gpus
            for instance in gpu.mig_instances
        }

    def uuids_of(self, devices: Iterable[str]) -> set[str]:
        """UUIDs of the MIG devices at the placements in these device names. Raises KeyError for a missing one."""
        made, names = self.made(), [parse_partition_name(name) for name in devices]
        return {made[f"{name.minor}/{name.profile_id}/{name.start}"] for name in names if name is not None}

    def compute_mode(self, uuid: str) -> ComputeMode:
        backend = self.backend()
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
        backend, fresh = self.backend(), {gpu.uuid: gpu for gpu in self.as_described().gpus}
        found = [f"MPS daemon {name}" for name in self.daemons()]
        for gpu in backend.snapshot().gpus:
            if gpu != fresh[gpu.uuid]:
                found.append(f"{gpu.device_name}: MIG mode {gpu.mig_enabled}, instances {gpu.mig_instances}")
            if (mode := backend.compute_mode(gpu.uuid)) is not ComputeMode.DEFAULT:
                found.append(f"{gpu.device_name}: compute mode {mode.name}")
            if number := self.time_slice(gpu.uuid):
                found.append(f"{gpu.device_name}: time slice {number}")
        return ", ".join(found)
