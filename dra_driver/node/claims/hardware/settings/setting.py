"""What one kind of GPU setting has to implement, so that claims can use it and the driver can restore it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import ClassVar

from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Assignment, Entry
from dra_driver.node.claims.hardware.deadline import Deadline
from dra_driver.node.claims.planning import PreparePlan

ReleaseStep = tuple[GpuUuid, Callable[[], None]]
"""A step that restores a setting, with the GPU that it is about."""

STEP_S = 5.0
"""Seconds that restoring one setting may wait where the caller sets no limit."""


class GpuSetting:
    """One kind of setting: for a claim it is applied and released, without a claim it is restored.

    The caller holds the locks of the GPUs. All methods may be repeated, and raise `HardwareError` and `StorageError`.
    The defaults do nothing: a new setting overrides what it needs and is listed in `settings.SETTINGS`.
    """

    def __init__(self, deps: ClaimDependencies) -> None:
        self._hardware = require_hardware(deps)
        self._journal = deps.journal
        self._gpu_locks = deps.gpu_locks

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        """Change the setting as the plan's devices need it. The intent is durable in the journal already."""

    def verify(self, prepared: PreparePlan, deadline: Deadline) -> None:
        """Check that a prepared claim still has the setting, and bring back what can be brought back."""

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:  # noqa: ARG002 - a default
        """Steps that restore what was changed for the entry's claim and no other claim needs."""
        yield from ()

    def release_without_entry(self, uid: ClaimUid, *, within_s: float) -> None:
        """Restore what was changed for one claim alone that has no entry any more: its journal was lost."""

    def has_orphans(self) -> bool:
        """Whether changes exist that no claim needs and no GPU note records."""
        return False

    def remove_orphans(self, locked: Collection[GpuUuid]) -> None:
        """Undo the changes of `has_orphans`. The caller holds the locks of all GPUs of the node."""


class NotedSetting(GpuSetting, ABC):
    """A setting that this driver records in a GPU note before it changes it.

    ``note_key`` is the note's key. ``survives_reboot``: the GPU keeps the setting, so the note stays valid after a
    reboot. ``shared_by_claims``: several claims of one GPU may need it at once, so it stays while another claim has the
    GPU.
    """

    note_key: ClassVar[str]
    survives_reboot: ClassVar[bool] = False
    shared_by_claims: ClassVar[bool] = True

    @abstractmethod
    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        """Whether one of the claims that have a part of the GPU needs the setting as it is."""

    @abstractmethod
    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:
        """Restore the GPU, whose note exists and whose claims do not need the setting. ``locked`` are locked GPUs."""

    def restore_for_claim(self, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline) -> None:  # noqa: ARG002
        """`restore` for a claim that is about to use the GPU. Raises when the GPU cannot be restored now."""
        self.restore(gpu, locked)
