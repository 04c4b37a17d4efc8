"""GPUs that processes use, for the stand-in of NVML and for the simulation."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage import GpuUsage
from dra_driver.hardware.gpu.backend import Detachable, UsageSource
from dra_driver.hardware.gpu.nvml.usage import NvmlUsage
from dra_driver.hardware.gpu.simulated.spec import NodeSpec
from dra_driver.hardware.gpu.simulated.usage import SimulatedUsage, SimulatedUse, UseStep, change_uses
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State
from tests.fakes.simulated_gpus import SimulatedBackend

START = 1_000_000.0
SAMPLE_US = 4_000_000_000_000_000
"""Microseconds since 1970: after any look, whose window ends now."""
ONE_GPU_INSTANCE = 19
"""The profile id of 1g."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process on the GPU at that index. ``percent`` is of the GPU, in MIG mode of its instance."""

    index: int
    pid: int
    memory: int
    percent: int = 0
    gi_id: int | None = None


class BusyNode(ABC):
    """One node of a kind of GPUs, looked at by ``source``. Indices are those of ``node.gpus``."""

    source: UsageSource

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.jobs: tuple[Job, ...] = ()

    def uuid(self, index: int) -> GpuUuid:
        return self.node.gpus[index].gpu.uuid

    def look(self, index: int) -> GpuUsage:
        return next(each for each in self.source.usage() if each.gpu_uuid == self.uuid(index))

    def run(self, *jobs: Job) -> None:
        """These processes run from now on, and no others."""
        self.jobs = jobs
        self.go_on()

    @abstractmethod
    def go_on(self) -> None:
        """Time passes: the processes go on with what they do."""

    @abstractmethod
    def cut(self, index: int) -> int:
        """A new GPU instance of one slice; returns its id."""

    @abstractmethod
    def lose(self, index: int) -> None: ...

    @abstractmethod
    def unload(self) -> None:
        """The driver goes."""

    @abstractmethod
    def detachable(self) -> Detachable: ...


class NvmlNode(BusyNode):
    """Our C library in the place of NVML, which reads what is in use from a file."""

    def __init__(self, node: NodeSpec, state: State, library: Path, folder: Path) -> None:
        super().__init__(node)
        self.state, self.file = state, folder / "state.use"
        self.source = self.nvml = NvmlUsage(str(library), str(folder / "sys"))
        self.at_us, self.energy = SAMPLE_US, 0

    def go_on(self) -> None:
        self.at_us, self.energy = self.at_us + 1_000_000, self.energy + 100_000
        lines = []
        for index in range(len(self.node.gpus)):
            percent = min(100, sum(job.percent for job in self.jobs if job.index == index))
            lines.append(f"gpu {index} {percent} {percent // 2} 60000 {self.energy} 40 1980 2619")
        for job in self.jobs:
            gi = -1 if job.gi_id is None else job.gi_id
            at_us = self.at_us if job.percent else 0
            lines.append(f"process {job.index} c {job.pid} {gi} {job.memory} {job.percent} {job.percent // 2} {at_us}")
            if job.gi_id is not None:
                lines.append(f"instance {job.index} {job.gi_id} {job.percent}")
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def cut(self, index: int) -> int:
        return self.state.foreign_create(index, ONE_GPU_INSTANCE, 0)

    def lose(self, index: int) -> None:
        self.state.lose(index)

    def unload(self) -> None:
        self.nvml.close()
        self.state.inject("nvmlInitWithFlags", codes.DRIVER_NOT_LOADED)

    def detachable(self) -> Detachable:
        return self.nvml


@dataclass(slots=True)
class _Clock:
    now: float = field(default=START)

    def __call__(self) -> float:
        return self.now


class SimulatedNode(BusyNode):
    """The simulation, and the file of its uses."""

    def __init__(self, node: NodeSpec, folder: Path) -> None:
        super().__init__(node)
        self.gpus, self.file, self.clock = SimulatedBackend(node), folder / "uses.json", _Clock()
        self.source = SimulatedUsage(self, self.file, now=self.clock, clock=self.clock)

    def snapshot(self) -> Snapshot:
        return self.gpus.snapshot()

    def go_on(self) -> None:
        self.clock.now += 1.0
        uses = tuple(
            SimulatedUse(
                key=f"{job.pid}",
                gpu_uuid=self.uuid(job.index),
                since=START,
                steps=(UseStep(memory_bytes=job.memory, percent=job.percent),),
                gi_id=job.gi_id,
                pids=(job.pid,),
            )
            for job in self.jobs
        )
        change_uses(self.file, lambda _: uses)

    def cut(self, index: int) -> int:
        return self.gpus.foreign_create(self.uuid(index), ONE_GPU_INSTANCE, 0).gi_id

    def lose(self, index: int) -> None:
        self.gpus.inject(self.uuid(index), "lost")

    def unload(self) -> None:
        self.gpus = SimulatedBackend(replace(self.node, unavailable="it is not loaded"))

    def detachable(self) -> Detachable:
        return self.gpus
