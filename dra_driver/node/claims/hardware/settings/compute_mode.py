"""The compute mode. Time slices and MPS daemons change it for themselves and restore it (`sharing.compute_mode`).

What remains for this setting is a mode whose daemon or time slice ended without restoring it.
"""

from collections.abc import Collection, Sequence

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.notes import COMPUTE_MODE
from dra_driver.node.claims.dependencies import ClaimDependencies
from dra_driver.node.claims.entry import Assignment
from dra_driver.node.claims.hardware.settings.mps_daemons import MpsDaemonSetting
from dra_driver.node.claims.hardware.settings.setting import STEP_S, NotedSetting


class ComputeModeSetting(NotedSetting):
    """Claims that share the GPU need it."""

    note_key = COMPUTE_MODE

    def __init__(self, deps: ClaimDependencies) -> None:
        super().__init__(deps)
        self._daemons = MpsDaemonSetting(deps)

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        """Whether a claim shares the GPU or a partition of it."""
        return any(assigned.device.sharing for assigned in assignments)

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:
        """Stop the GPU's orphaned daemons, which need the mode, then restore it."""
        self._daemons.stop_orphans_of(gpu, locked)
        # A claim that begins may record a daemon of the GPU's id, so a leftover one of that id is no orphan; end it.
        self._hardware.mps.release(gpu, (gpu,), within_s=STEP_S)
