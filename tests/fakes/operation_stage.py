"""A node with simulated GPUs for guarded operations of a GPU, whose process and hardware a test can break."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dra_driver.core.model.gpu_operation import (
    OPERATION_ANNOTATION,
    Operation,
    OperationRequest,
)
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms
from dra_driver.hardware.gpu.backend import MigModes
from dra_driver.hardware.gpu.reset import Persistence
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.claims import PrepareGate
from dra_driver.node.process.gpu_operations import REST_S, GpuOperations, OperationTools
from dra_driver.node.process.operation_record import FILE, OperationsFile
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.fakes.stand_in import stand_in

NUMBER = "ab12"


class KilledError(BaseException):
    """The process dies here."""


class Stage:
    """A node with one A100 and a neighbour. ``boot`` starts a new node process; the GPUs stay as they are."""

    def __init__(self, folder: Path, spec: str = "2xa100-sxm4-40gb") -> None:
        self.folder, self.spec, self.boot_id = folder, spec, "boot-1"
        self.gpus = SimulatedBackend(parse_groups(spec, "node-a"), state_file=folder / "gpus.json")
        self.gpu, self.other = (gpu.uuid for gpu in self.gpus.snapshot().gpus[:2])
        self.annotations: dict[str, str] = {}
        self.labels: dict[str, str] = {}
        self.terms: dict[GpuUuid, GpuTerms] = {}
        self.uses: list[GpuUuid] = []
        self.open_in: tuple[str, ...] | None = ()
        self.events: list[tuple[str, str, str]] = []
        self.notes: dict[tuple[GpuUuid, str], str] = {}
        self.repaired: list[GpuUuid] = []
        self.now = 1000.0
        self.reset: Callable[[GpuUuid, float], None] = self.gpus.reset
        self.control: Any = self.gpus
        self.sysfs = True
        self.is_known = True
        self.persistence: Persistence | None = None
        self.is_stale = False
        self.fabric_manager: bool | None = True
        self.boot()

    def boot(self) -> None:
        self.gate = PrepareGate()
        self.gpus.reattach()
        inventory = SimpleNamespace(current=lambda: self.last, refresh=self._refresh, problem=None)
        self._refresh()
        self.operations = GpuOperations(
            OperationTools(
                control=stand_in(self.control),
                reset=lambda gpu, within_s: self.reset(gpu, within_s),  # noqa: PLW0108 - tests replace it
                has_reset=lambda _: self.sysfs,
                notes=stand_in(SimpleNamespace(clear_gpu_note=lambda gpu, key: self.notes.pop((gpu, key), None))),
                file=OperationsFile(self.folder / FILE),
                inventory=stand_in(inventory),
                gate=self.gate,
                lock=self._lock,
                node=lambda: self._node() if self.is_known else None,
                terms=lambda: self.terms,
                uses=lambda: self.uses,
                holders=lambda _: self.open_in,
                fabric_manager=lambda: self.fabric_manager,
                readings=lambda: () if self.is_stale else self.gpus.health_readings(),
                detach_phase=lambda: self.gpus.detached or "",
                is_detached=lambda: self.gpus.detached is not None,
                wake_detaching=lambda: self._detach(),  # noqa: PLW0108 - tests replace it
                changed=lambda: None,
                published=lambda: True,
                tell=lambda kind, reason, text: self.events.append((kind, reason, text)),
                boot_id=self.boot_id,
                repaired=self.repaired.extend,
                persistence=self.persistence,
                settle_s=0.0,
                busy_s=0.0,
                poll_s=0.0,
                clock=self._clock,
                now=lambda: self.now,
            )
        )
        self.operations.load()

    def _node(self) -> OwnNode:
        return OwnNode(name="node-a", annotations=self.annotations, labels=self.labels)

    def _clock(self) -> float:
        self.now += 0.5
        return self.now

    def _refresh(self) -> None:
        if self.gpus.detached is None and not self.is_stale:
            self.last = self.gpus.snapshot()

    def _detach(self) -> None:
        request = self.operations.detach_request
        if request is not None:
            self.gpus.detach(str(request), 1.0)
        else:
            self.gpus.reattach()

    @contextmanager
    def _lock(self, gpu: GpuUuid, within_s: float) -> Iterator[bool]:
        yield True

    def ask(self, operation: Operation = Operation.MIG_ON, number: str = NUMBER) -> None:
        request = OperationRequest(operation=operation, gpu=self.gpu, number=number)
        self.annotations[OPERATION_ANNOTATION] = str(request)

    def run(self, most: int = 60) -> None:
        """Step until nothing is left to do."""
        for _ in range(most):
            if self.operations.step() == REST_S:
                return
        raise AssertionError(f"not finished: {self.operations.remarks} {self.events}")

    @property
    def modes(self) -> MigModes:
        return self.gpus.mig_modes(self.gpu)

    @property
    def result(self) -> tuple[str, str]:
        _, reason, text = self.events[-1]
        return reason, text

    @property
    def held(self) -> list[GpuUuid]:
        """GPUs with an operation, also lost ones."""
        return list(self.operations._records)

    @property
    def tainted(self) -> list[GpuUuid]:
        return list(self.operations.amend(self.last, {}))


ON, OFF = MigModes(current=True, pending=True), MigModes(current=False, pending=False)
