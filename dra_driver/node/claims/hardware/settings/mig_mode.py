"""MIG mode. Creating a GPU's first partition switches it on, destroying the last one switches it off (`MigManager`).

What remains for this setting is a mode that could not be switched off then, because a process had the GPU open.
"""

from collections.abc import Collection, Sequence

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.notes import MIG_MODE
from dra_driver.node.claims.entry import Assignment
from dra_driver.node.claims.hardware.deadline import Deadline
from dra_driver.node.claims.hardware.settings.setting import NotedSetting

ENSURE_WHOLE_S = 5.0
"""Seconds to try a busy GPU within one attempt; the call itself tries again while it has time (`waiting`)."""


class MigModeSetting(NotedSetting):
    """Partitions need it. A claim for a whole GPU or a share of it cannot begin while it is on."""

    note_key = MIG_MODE
    survives_reboot = True
    shared_by_claims = False

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        """Whether a claim has a partition."""
        return any(assigned.device.partition for assigned in assignments)

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:  # noqa: ARG002 - see `GpuSetting`
        """Switch the mode off; it stays on, and its note stays, while instances exist or a process uses the GPU."""
        if self._hardware.mig.restore_mode(gpu):
            self._hardware.changed()

    def restore_for_claim(self, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline) -> None:  # noqa: ARG002
        """Switch the mode off. Raises `GpuBusyError` when that is impossible before the deadline."""
        try:
            self._hardware.mig.ensure_whole(gpu, within_s=deadline.left_s(most_s=ENSURE_WHOLE_S))
        finally:
            self._hardware.changed()
