"""The time slice of a whole GPU (``nvidia-smi compute-policy``), see `sharing.timeslice.TimeSlicer`."""

import logging
from collections.abc import Collection, Iterator, Sequence
from functools import partial

from dra_driver.core.errors import CommandError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.hardware.gpu.notes import MIG_MODE, TIME_SLICE
from dra_driver.node.claims.entry import Assignment, Entry, State
from dra_driver.node.claims.hardware.deadline import Deadline
from dra_driver.node.claims.hardware.settings.setting import STEP_S, NotedSetting, ReleaseStep
from dra_driver.node.claims.planning import PreparePlan

log = logging.getLogger(__name__)

LEAST_S = 1.0
"""Seconds that nvidia-smi takes as a rule."""


class TimeSliceSetting(NotedSetting):
    """Claims that share a GPU by time slicing need it; all of them have the same interval."""

    note_key = TIME_SLICE

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        """Set the intervals, except where another claim's share set the same interval before."""
        for device in todo.devices:
            sharing = device.sharing
            if sharing is None or sharing.strategy is not Strategy.TIME_SLICING:
                continue
            if not self._is_set(todo.ref.uid, device.gpu.uuid, sharing.interval):
                self._hardware.slicer.set(device.gpu.uuid, sharing.interval, within_s=deadline.left_s(most_s=STEP_S))

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
        """Reset GPUs that no other claim shares by time slicing. While a rebuild is pending, claims may be missing."""
        uid = entry.ref.uid
        devices = [device for device in reversed(entry.devices) if device.changes_hardware]
        sliced = (d.gpu_uuid for d in devices if d.sharing is not None and d.sharing.strategy is Strategy.TIME_SLICING)
        for gpu in dict.fromkeys(sliced):
            others = tuple(assigned for assigned in self._journal.assignments(gpu) if assigned.uid != uid)
            if not self._journal.rebuild_pending and not self.is_needed(others):
                yield gpu, partial(self._reset_best_effort, gpu, deadline.left_s(least_s=LEAST_S))

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        """Whether a claim shares the GPU, as a whole, by time slicing."""
        return any(
            assigned.device.sharing is not None
            and assigned.device.sharing.strategy is Strategy.TIME_SLICING
            and assigned.device.partition is None
            for assigned in assignments
        )

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:  # noqa: ARG002 - see `GpuSetting`
        """Reset the interval, and the compute mode that was changed for it.

        Does nothing while this driver has the GPU in MIG mode: nvidia-smi does not set time slices then, and answers as
        a GPU without this setting does. The note stays until the mode is off.
        """
        if self._journal.gpu_note(gpu, MIG_MODE) is None:
            self._hardware.slicer.reset(gpu, within_s=STEP_S)

    def _is_set(self, uid: ClaimUid, gpu: GpuUuid, interval: Interval) -> bool:
        """Whether another prepared claim has the interval already. The command takes up to a second on hardware."""
        if self._journal.gpu_note(gpu, TIME_SLICE) != interval:
            return False
        others = (self._journal.entry(other.uid) for other in self._journal.assignments(gpu) if other.uid != uid)
        return any(other is not None and other.state is State.PREPARED for other in others)

    def _reset_best_effort(self, gpu: GpuUuid, within_s: float) -> None:
        """Reset; a missing or hanging nvidia-smi does not keep a pod from ending. The note stays, the periodic reclaim
        tries again, and no claim gets the whole GPU or a share before it is reset."""
        try:
            self._hardware.slicer.reset(gpu, within_s=within_s)
        except CommandError as error:
            log.warning("time slice is not reset yet; will retry", extra={"gpu": gpu, "reason": str(error)})
