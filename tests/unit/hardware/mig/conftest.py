"""A simulated node under a MIG manager, with a clock that moves only when the manager waits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.hardware.gpu.backend import MIG_MODE
from dra_driver.hardware.mig.manager import MigManager
from tests.fakes.sharing import FakeGpuNotes
from tests.fakes.simulated_gpus import SimulatedBackend

ONE, DOUBLE, TWO, THREE, FOUR, ALL = 19, 15, 14, 9, 5, 0
"""Profile ids of boards with seven compute slices."""
SIZES = {ONE: 1, DOUBLE: 2, TWO: 2, THREE: 4, FOUR: 4, ALL: 8}


class Stopped(BaseException):
    """The process died. No ``except`` clause of the driver catches it."""


class StepCounter:
    """Wraps hardware and notes, counts every call, and raises `Stopped` in place of the call number ``stop_at``."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.stop_at: int | None = None

    def over(self, target: Any) -> Any:
        return _Watched(self, target)

    def step(self, name: str) -> None:
        if self.stop_at is not None and len(self.steps) >= self.stop_at:
            raise Stopped
        self.steps.append(name)


class _Watched:
    def __init__(self, counter: StepCounter, target: Any) -> None:
        self._counter, self._target = counter, target

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._counter.step(name)
            return getattr(self._target, name)(*args, **kwargs)

        return call


@dataclass
class Node:
    """One GPU of ``spec``, its notes, and a manager; ``on_wait`` is called at each of the manager's waits."""

    spec: str = "1xh100-sxm5-80gb"
    on_wait: Callable[[], None] = lambda: None
    notes: FakeGpuNotes = field(default_factory=FakeGpuNotes)
    waits: list[float] = field(default_factory=list)
    counter: StepCounter = field(default_factory=StepCounter)
    holders: str | None = None
    looked_up: list[GpuUuid] = field(default_factory=list)
    told: list[tuple[str, PartitionId]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.backend = SimulatedBackend.from_spec(self.spec, "node-a")
        self.gpu: GpuUuid = self.backend.snapshot().gpus[0].uuid
        self.manager = MigManager(
            self.counter.over(self.backend),
            self.counter.over(self.notes),
            sleep=self._sleep,
            clock=self._clock,
            holders=self._who,
            watch=self,
        )

    def _who(self, gpu: GpuUuid) -> str | None:
        self.looked_up.append(gpu)
        return self.holders

    def refused(self, partition: PartitionId, reason: str) -> None:
        assert reason
        self.told.append(("refused", partition))

    def created(self, partition: PartitionId) -> None:
        self.told.append(("created", partition))

    def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.on_wait()

    def _clock(self) -> float:
        return sum(self.waits)

    def at(self, profile_id: int, start: int) -> PartitionId:
        return PartitionId(self.gpu, profile_id, start)

    def create(self, profile_id: int, start: int, *, within_s: float = 5.0) -> MigInstance:
        return self.manager.create(self.at(profile_id, start), SIZES[profile_id], within_s=within_s)

    def destroy(self, profile_id: int, start: int, *, within_s: float = 5.0) -> None:
        self.manager.destroy(self.at(profile_id, start), within_s=within_s)

    def foreign(self, profile_id: int, start: int, compute: str = "full") -> MigInstance:
        return self.backend.foreign_create(self.gpu, profile_id, start, compute=compute)

    @property
    def instances(self) -> tuple[MigInstance, ...]:
        return self.backend.mig_instances(self.gpu)

    @property
    def mode(self) -> bool:
        return self.backend.mig_mode(self.gpu)

    @property
    def noted(self) -> bool:
        return self.notes.gpu_note(self.gpu, MIG_MODE) is not None

    @property
    def untouched(self) -> bool:
        """Whether the GPU is in its first state: whole, MIG mode off, no note."""
        return not self.mode and not self.instances and not self.noted


@pytest.fixture
def node() -> Node:
    return Node()
