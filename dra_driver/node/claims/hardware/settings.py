"""The GPU settings that claims change: when each is applied, released and restored.

``hardware/mig/`` and ``hardware/sharing/`` change the hardware. A new setting is one class here and a line in
`SETTINGS`.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import ClassVar

from dra_driver.core.errors import CommandError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, MIG_MODE, TIME_SLICE
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.node.claims.dependencies import ClaimDependencies, require_hardware
from dra_driver.node.claims.entry import Assignment, Entry, State
from dra_driver.node.claims.planning.plan import PreparePlan
from dra_driver.node.claims.waiting import Deadline, GpuLockedError

log = logging.getLogger(__name__)

ReleaseStep = tuple[GpuUuid, Callable[[], None]]
"""A step that restores a setting, with the GPU that it is about."""

STEP_S = 5.0
"""Seconds that restoring one setting may wait where the caller sets no limit."""
LEAST_S = 1.0
"""Seconds that nvidia-smi, or stopping a daemon, normally takes."""
ENSURE_WHOLE_S = 5.0
"""Seconds to try a busy GPU within one attempt; the call itself tries again while it has time (`waiting`)."""
START_S = 25.0
"""Seconds until an MPS daemon must be ready. Starting one takes about a second, on a busy node several."""


class GpuSetting:
    """One kind of setting: applied and released for a claim, restored without one.

    The caller holds the locks of the GPUs. All methods are repeatable and raise `HardwareError` and `StorageError`. The
    defaults do nothing.
    """

    def __init__(self, deps: ClaimDependencies) -> None:
        self._hardware = require_hardware(deps)
        self._journal = deps.journal
        self._gpu_locks = deps.gpu_locks

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        """Change the setting as the plan's devices need it. The intent is already durable in the journal."""

    def verify(self, prepared: PreparePlan, deadline: Deadline) -> None:
        """Check that a prepared claim still has the setting, and repair it where possible."""

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:  # noqa: ARG002 - a default
        """Steps that undo changes for the entry's claim that no other claim needs."""
        yield from ()

    def release_without_entry(self, uid: ClaimUid, *, within_s: float) -> None:
        """Restore changes for one claim that has no entry any more: its journal was lost."""

    def has_orphans(self) -> bool:
        return False

    def remove_orphans(self, locked: Collection[GpuUuid]) -> None:
        """Undo changes that no claim needs and no GPU note records. The caller has locked all GPUs."""


class NotedSetting(GpuSetting, ABC):
    """A setting that this driver records in the GPU note ``note_key`` before it changes it.

    ``survives_reboot``: the GPU keeps the setting, and the note stays valid. ``shared_by_claims``: several claims of
    one GPU may need it, so it stays while another claim has the GPU.
    """

    note_key: ClassVar[str]
    survives_reboot: ClassVar[bool] = False
    shared_by_claims: ClassVar[bool] = True

    @abstractmethod
    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        """Return whether one of the claims that have a part of the GPU needs the setting."""

    @abstractmethod
    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:
        """Restore the GPU, whose note exists and whose claims do not need the setting. ``locked``: locked GPUs."""

    def restore_for_claim(self, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline) -> None:  # noqa: ARG002
        """`restore` for a claim about to use the GPU. Raises when the GPU cannot be restored now."""
        self.restore(gpu, locked)


class MigModeSetting(NotedSetting):
    """MIG mode. Partitions need it; a claim for a whole GPU or a share cannot begin while it is enabled.

    `MigManager` enables it with a GPU's first partition and disables it with the last. This setting restores a mode
    that could not be disabled then, because a process had the GPU open.
    """

    note_key = MIG_MODE
    survives_reboot = True
    shared_by_claims = False

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        return any(assigned.device.partition for assigned in assignments)

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:  # noqa: ARG002 - see `GpuSetting`
        """Disable the mode; mode and note stay while instances exist or a process uses the GPU."""
        if self._hardware.mig.restore_mode(gpu):
            self._hardware.changed()

    def restore_for_claim(self, gpu: GpuUuid, locked: Collection[GpuUuid], deadline: Deadline) -> None:  # noqa: ARG002
        """Disable the mode. Raises `GpuBusyError` when that is impossible before the deadline."""
        try:
            self._hardware.mig.ensure_whole(gpu, within_s=deadline.left_s(most_s=ENSURE_WHOLE_S))
        finally:
            self._hardware.changed()


class TimeSliceSetting(NotedSetting):
    """The time slice of a whole GPU, the same for all claims that share it by time slicing."""

    note_key = TIME_SLICE

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        """Set the intervals, except where another claim's share set the same interval before."""
        for device in todo.devices:
            sharing = device.sharing
            if sharing is None or sharing.strategy is not Strategy.TIME_SLICING or device.partition is not None:
                continue
            if not self._is_set(todo.ref.uid, device.gpu.uuid, sharing.interval):
                self._hardware.slicer.set(device.gpu.uuid, sharing.interval, within_s=deadline.left_s(most_s=STEP_S))

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
        """Reset GPUs that no other claim shares by time slicing; none while a rebuild is pending."""
        uid = entry.ref.uid
        devices = [each for each in reversed(entry.devices) if each.changes_hardware and each.partition is None]
        sliced = (d.gpu_uuid for d in devices if d.sharing is not None and d.sharing.strategy is Strategy.TIME_SLICING)
        for gpu in dict.fromkeys(sliced):
            others = tuple(assigned for assigned in self._journal.assignments(gpu) if assigned.uid != uid)
            if not self._journal.rebuild_pending and not self.is_needed(others):
                yield gpu, partial(self._reset_best_effort, gpu, deadline.left_s(least_s=LEAST_S))

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        return any(
            assigned.device.sharing is not None
            and assigned.device.sharing.strategy is Strategy.TIME_SLICING
            and assigned.device.partition is None
            for assigned in assignments
        )

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:  # noqa: ARG002 - see `GpuSetting`
        """Reset the interval, and the compute mode that was changed for it.

        Does nothing while this driver has the GPU in MIG mode: nvidia-smi then answers as for a GPU without this
        setting.
        """
        if self._journal.gpu_note(gpu, MIG_MODE) is None:
            self._hardware.slicer.reset(gpu, within_s=STEP_S)

    def _is_set(self, uid: ClaimUid, gpu: GpuUuid, interval: Interval) -> bool:
        """Return whether another prepared claim has set the interval; nvidia-smi takes up to a second."""
        if self._journal.gpu_note(gpu, TIME_SLICE) != interval:
            return False
        others = (self._journal.entry(other.uid) for other in self._journal.assignments(gpu) if other.uid != uid)
        return any(other is not None and other.state is State.PREPARED for other in others)

    def _reset_best_effort(self, gpu: GpuUuid, within_s: float) -> None:
        """Reset; a missing or hanging nvidia-smi does not keep a pod from ending. The note stays, `reclaim_orphans`
        retries, and no claim gets the whole GPU or a share before."""
        try:
            self._hardware.slicer.reset(gpu, within_s=within_s)
        except CommandError as error:
            log.warning("time slice is not reset yet; will retry", extra={"gpu": gpu, "reason": str(error)})


class MpsDaemonSetting(GpuSetting):
    """MPS daemons. The record of a daemon is its directory, not a GPU note.

    The daemon of a shared GPU or MIG device has its UUID as id and serves several claims; other daemons serve one claim
    each.
    """

    def apply(self, todo: PreparePlan, deadline: Deadline) -> None:
        for daemon in _daemons_of(todo):
            self._hardware.mps.ensure(daemon, within_s=deadline.left_s(most_s=START_S))

    def verify(self, prepared: PreparePlan, deadline: Deadline) -> None:
        for daemon in _daemons_of(prepared):
            self._hardware.mps.ensure(daemon, within_s=deadline.left_s())

    def release_steps(self, entry: Entry, deadline: Deadline) -> Iterator[ReleaseStep]:
        for daemon_id, gpus in self._daemons_to_stop(entry).items():
            within_s = deadline.left_s(least_s=LEAST_S)
            yield next(iter(gpus), GpuUuid("")), partial(self._hardware.mps.release, daemon_id, gpus, within_s=within_s)

    def release_without_entry(self, uid: ClaimUid, *, within_s: float) -> None:
        """Stop daemons that serve only this claim: their ids begin with its UID."""
        for daemon in [each for each in self._hardware.mps.daemons() if each.startswith(f"{uid}-")]:
            self._hardware.mps.release(daemon, (), within_s=within_s)

    def has_orphans(self) -> bool:
        return bool(tuple(self._orphans()))

    def remove_orphans(self, locked: Collection[GpuUuid], gpu: GpuUuid | None = None) -> None:
        """Stop daemons that no entry needs; with ``gpu``, daemons that may use it (a MIG daemon names none)."""
        mps = self._hardware.mps
        for daemon_id in self._orphans():
            daemon = mps.daemon(daemon_id)
            if gpu is not None and daemon is not None and gpu not in daemon.gpus:
                continue
            # Stopping it restores the compute mode of all its GPUs, and another claim may be about to use one of them.
            others = set(daemon.gpus if daemon else ()).difference(locked)
            # Does not wait: the call that has those locks may wait for ours.
            with self._gpu_locks.acquire(others, 0.0) as acquired:
                if not acquired:
                    raise GpuLockedError(f"orphaned MPS daemon {daemon_id} cannot be stopped: its GPUs are locked")
                mps.release(daemon_id, (), within_s=STEP_S)

    def _orphans(self) -> Iterator[str]:
        # The daemons are listed before the journal is read: an intent is in the journal before its daemon is requested,
        # so a listed daemon without an entry is orphaned, not new. (A repeated request shows under the lock.)
        listed = self._hardware.mps.daemons()
        if listed:
            needed = {
                assigned.device.sharing.daemon.id
                for assigned in self._journal.assignments()
                if assigned.device.sharing is not None and assigned.device.sharing.daemon is not None
            }
            yield from (daemon for daemon in listed if daemon not in needed)

    def _daemons_to_stop(self, entry: Entry) -> dict[str, tuple[GpuUuid, ...]]:
        """Ids with the GPUs whose compute mode the daemon changed. A shared device's daemon stays while a rebuild is
        pending."""
        used = {
            device.sharing.daemon.id: (device.gpu_uuid, device.sharing.daemon.gpus)
            for device in reversed(entry.devices)
            if device.changes_hardware and device.sharing is not None and device.sharing.daemon is not None
        }
        return {
            daemon: gpus
            for daemon, (gpu, gpus) in used.items()
            if not (self._journal.rebuild_pending and not daemon.startswith(f"{entry.ref.uid}-"))
            and daemon not in set(self._daemons_of_others(entry.ref.uid, gpu))
        }

    def _daemons_of_others(self, uid: ClaimUid, gpu: GpuUuid) -> Iterator[str]:
        for other in self._journal.assignments(gpu):
            if other.uid != uid and other.device.sharing is not None and other.device.sharing.daemon is not None:
                yield other.device.sharing.daemon.id


def _daemons_of(todo: PreparePlan) -> list[MpsDaemon]:
    daemons = [d.sharing.daemon for d in todo.devices if d.sharing is not None and d.sharing.daemon is not None]
    return list({daemon.id: daemon for daemon in daemons}.values())


class ComputeModeSetting(NotedSetting):
    """The compute mode, which time slices and MPS daemons change and restore (`sharing.compute_mode`).

    This setting restores a mode whose daemon or time slice ended without restoring it.
    """

    note_key = COMPUTE_MODE

    def __init__(self, deps: ClaimDependencies) -> None:
        super().__init__(deps)
        self._daemons = MpsDaemonSetting(deps)

    def is_needed(self, assignments: Sequence[Assignment]) -> bool:
        return any(assigned.device.sharing for assigned in assignments)

    def restore(self, gpu: GpuUuid, locked: Collection[GpuUuid]) -> None:
        """Stop the GPU's orphaned daemons, which need the mode, then restore it."""
        self._daemons.remove_orphans(locked, gpu)
        # A claim that begins may record a daemon of the GPU's id, so a leftover one would not be an orphan; end it.
        self._hardware.mps.release(gpu, (gpu,), within_s=STEP_S)


SETTINGS: tuple[type[GpuSetting], ...] = (MigModeSetting, TimeSliceSetting, ComputeModeSetting, MpsDaemonSetting)
"""In the order in which they are applied; they are released in reverse order."""

LOST_AT_REBOOT = tuple(
    kind.note_key for kind in SETTINGS if issubclass(kind, NotedSetting) and not kind.survives_reboot
)
"""Keys of notes that are void after a reboot. MIG mode may survive one, so the hardware is checked."""


def settings_of(deps: ClaimDependencies) -> tuple[GpuSetting, ...]:
    """Return one object per setting, in the order of `SETTINGS`. Raises `NotPermittedError` without hardware."""
    return tuple(kind(deps) for kind in SETTINGS)
