"""Makes and removes partitions of a GPU, and switches MIG mode for them.

Owns the order of the steps, so that a process that dies between any two of them leaves something that the next call
puts right: the note that MIG mode is ours is durable before the mode is switched on and cleared after it is off; a GPU
instance without its compute instance is completed or removed by whoever comes next for the same partition. Refuses to
know claims: that a partition is ours at all is what the caller's journal says, and the caller holds the GPU's lock
(one change at a time, over processes).

Steps and their limits: nvmlDeviceSetMigMode, nvmlDeviceCreateGpuInstanceWithPlacement,
nvmlGpuInstanceCreateComputeInstance and their reverse (nvml.h). Hardware has no owner for an instance, and MIG UUIDs
come again for the same place, so nothing read from the GPU proves whose an instance is.
"""

import logging
import time
from functools import partial
from typing import Final

from dra_driver.errors import (
    DeviceLostError,
    DraError,
    GpuBusyError,
    HardwareError,
    MigUnsupportedError,
    NoRoomError,
    ResetRequiredError,
)
from dra_driver.gpu.backend import GpuControl
from dra_driver.gpu.notes import MIG_MODE, GpuNotes
from dra_driver.mig import messages
from dra_driver.mig.busy_retry import BusyRetry, Clock, Sleep
from dra_driver.model.ids import GpuUuid
from dra_driver.model.mig import MigInstance, PartitionId

log = logging.getLogger(__name__)

SWITCHED_ON: Final = "on"

UNDO_S: Final = 2.0
"""How long taking back half-made work may wait for a busy GPU beyond the caller's own limit."""


class MigManager:
    """The MIG life cycle of all GPUs of a node. Keeps nothing between calls.

    The caller holds the GPU's lock for every method; under it the methods may be called from any thread. All raise what
    `GpuControl` raises, and StorageError from the notes. Waits are bounded by ``within_s`` (seconds) and `UNDO_S`; the
    hardware calls themselves take up to some seconds each.
    """

    def __init__(
        self, control: GpuControl, notes: GpuNotes, *, sleep: Sleep = time.sleep, clock: Clock = time.monotonic
    ) -> None:
        self._control = control
        self._notes = notes
        self._sleep = sleep
        self._clock = clock

    def create(self, wanted: PartitionId, size: int, *, within_s: float, adopt: bool = False) -> MigInstance:
        """Make the partition, which covers ``size`` memory slices, and return it with ``.device`` set.

        With ``adopt`` an instance that is already exactly there counts as this caller's own from an earlier attempt:
        it is completed if need be. Without, it is somebody else's: NoRoomError. So a caller looks with `find` before it
        writes down that it is going to make the partition: what was not there then may be adopted after a death.

        On failure everything that was made is taken back, MIG mode included, and the first error is raised: NoRoomError
        (slices or engines are taken), MigUnsupportedError, ResetRequiredError, GpuBusyError (MIG mode, after
        ``within_s``). Its ``left_over`` is True in the one case in which an instance is left: call `destroy` later.
        Dying half-way leaves a note, the mode on, or an instance without a compute instance: ``create`` with ``adopt``
        and `destroy` carry on from each.
        """
        retry = self._retry(within_s)
        self._switch_on(wanted.gpu_uuid, retry)
        try:
            return self._create(wanted, size, retry, adopt=adopt)
        except DraError:
            self._restore_mode_best_effort(wanted.gpu_uuid)
            raise

    def destroy(self, partition: PartitionId, *, within_s: float) -> None:
        """Remove the partition, and MIG mode with it when it was the last one and the mode is ours.

        Absent, in whole or in part, is success, also because MIG mode is off. Raises GpuBusyError when a process still
        uses it after ``within_s``. A mode that cannot be switched off is no error: its note stays for `restore_mode`.
        """
        retry = self._retry(within_s)
        instance = self.find(partition)
        if instance is not None:
            self._remove(partition, instance, retry)
        self._restore_mode_best_effort(partition.gpu_uuid)

    def find(self, partition: PartitionId) -> MigInstance | None:
        """The partition's GPU instance as it is now, whole or half made; None when there is none."""
        try:
            instances = self._control.mig_instances(partition.gpu_uuid)
        except MigUnsupportedError:
            return None
        return next((one for one in instances if _is_at(one, partition)), None)

    def restore_mode(self, gpu: GpuUuid) -> bool:
        """Switch MIG mode off if this driver switched it on and nothing is left on the GPU, whoever made it.

        True when no note is left. False when instances are left, or the GPU is busy: call again later.
        """
        if self._notes.gpu_note(gpu, MIG_MODE) is None:
            return True
        if self._is_on(gpu):
            if self._control.mig_instances(gpu):
                return False
            try:
                self._control.set_mig_mode(gpu, False)
            except (GpuBusyError, ResetRequiredError) as error:
                log.info("MIG mode stays on for now", extra={"gpu": gpu, "reason": str(error)})
                return False
            log.info("MIG mode switched off", extra={"gpu": gpu})
        self._notes.clear_gpu_note(gpu, MIG_MODE)
        return True

    def ensure_whole(self, gpu: GpuUuid, *, within_s: float) -> None:
        """Return when the GPU can be used as a whole: without MIG mode, after switching it off where it is ours.

        Raises GpuBusyError when somebody else switched it on, when an instance is left (waiting would not help: the
        caller holds the lock), or when the GPU is still busy after ``within_s``. Repeatable.
        """
        retry = self._retry(within_s)
        if self._is_on(gpu):
            if self._notes.gpu_note(gpu, MIG_MODE) is None:
                raise GpuBusyError(messages.mode_not_owned(gpu))
            left = self._control.mig_instances(gpu)
            if left:
                raise GpuBusyError(messages.instances_left(gpu, left))
            self._switch_off(gpu, retry)
        self.restore_mode(gpu)

    # --- MIG mode ---

    def _is_on(self, gpu: GpuUuid) -> bool:
        try:
            return self._control.mig_mode(gpu)
        except MigUnsupportedError:
            return False

    def _switch_on(self, gpu: GpuUuid, retry: BusyRetry) -> None:
        """MIG mode on. The note comes first: a mode that is on without one would be taken for an administrator's and
        stay on for ever, while a note without the mode is cleared by the next `restore_mode`."""
        if self._control.mig_mode(gpu):
            return
        if self._notes.gpu_note(gpu, MIG_MODE) is None:
            self._notes.set_gpu_note(gpu, MIG_MODE, SWITCHED_ON)
        try:
            retry.attempt(partial(self._control.set_mig_mode, gpu, True))
        except GpuBusyError as error:
            self._restore_mode_best_effort(gpu)
            raise GpuBusyError(messages.mode_is_busy(gpu, "on", retry.waited_s, error)) from error
        except DraError:
            self._restore_mode_best_effort(gpu)
            raise
        log.info("MIG mode switched on", extra={"gpu": gpu})

    def _switch_off(self, gpu: GpuUuid, retry: BusyRetry) -> None:
        try:
            retry.attempt(partial(self._control.set_mig_mode, gpu, False))
        except GpuBusyError as error:
            raise GpuBusyError(messages.mode_is_busy(gpu, "off", retry.waited_s, error)) from error
        log.info("MIG mode switched off", extra={"gpu": gpu})

    def _restore_mode_best_effort(self, gpu: GpuUuid) -> None:
        """`restore_mode` after the real work: its failure neither hides an error nor undoes a success, for the note
        stays and whoever keeps house tries again."""
        try:
            self.restore_mode(gpu)
        except DraError as error:
            log.warning("MIG mode could not be settled, it will be tried again", extra={"gpu": gpu, "reason": error})

    # --- instances ---

    def _create(self, wanted: PartitionId, size: int, retry: BusyRetry, *, adopt: bool) -> MigInstance:
        there = self._control.mig_instances(wanted.gpu_uuid)
        found = next((one for one in there if _is_at(one, wanted)), None)
        if found is not None:
            if not adopt:
                raise NoRoomError(messages.foreign_instance(wanted, found))
            return self._complete(wanted, found, retry)
        in_the_way = [one for one in there if one.overlaps(wanted.start, size)]
        if in_the_way:
            raise NoRoomError(messages.memory_slices_taken(wanted, size, in_the_way))
        try:
            gi_id = self._control.create_gpu_instance(wanted.gpu_uuid, wanted.profile_id, wanted.start)
        except (NoRoomError, MigUnsupportedError):
            raise  # nothing was made; what is there now was made by somebody else in this very moment
        except DraError as error:
            raise self._after_cleanup(wanted, error) from error
        return self._add_compute_instance(wanted, gi_id)

    def _complete(self, wanted: PartitionId, found: MigInstance, retry: BusyRetry) -> MigInstance:
        """Finish an instance of an earlier attempt. What cannot be used is removed: the caller said that it is its own.

        Compute instances that do not span it are none that this driver makes; they go with the rest.
        """
        if found.device is not None:
            return found
        try:
            self._remove_compute(wanted, found, retry)
        except DraError as error:
            raise self._after_cleanup(wanted, error) from error
        return self._add_compute_instance(wanted, found.gi_id)

    def _add_compute_instance(self, wanted: PartitionId, gi_id: int) -> MigInstance:
        """Give the GPU instance its compute instance, and return it as the GPU lists it then."""
        try:
            self._control.create_compute_instance(wanted.gpu_uuid, gi_id)
            made = self.find(wanted)
            if made is None or made.device is None:
                raise DeviceLostError(messages.not_listed(wanted, gi_id))
        except DraError as error:
            raise self._after_cleanup(wanted, error) from error
        return made

    def _after_cleanup(self, wanted: PartitionId, first: DraError) -> DraError:
        """``first``, after removing what is there of the partition; marked when that cannot be done for sure.

        It is our own: under the lock it was not there before, or the caller said so.
        """
        retry = self._retry(UNDO_S)
        try:
            made = self.find(wanted)
            if made is not None:
                self._remove(wanted, made, retry)
        except DraError as second:
            log.warning("half-made partition is left", extra={"partition": str(wanted), "reason": str(second)})
            failure = type(first)(messages.cleanup_failed(first, second))
            if isinstance(failure, HardwareError):
                failure.left_over = True
            return failure
        return first

    def _remove(self, partition: PartitionId, instance: MigInstance, retry: BusyRetry) -> None:
        self._remove_compute(partition, instance, retry)
        try:
            retry.attempt(partial(self._control.destroy_gpu_instance, partition.gpu_uuid, instance.gi_id))
        except GpuBusyError as error:
            raise GpuBusyError(messages.partition_is_busy(partition, instance, retry.waited_s, error)) from error

    def _remove_compute(self, partition: PartitionId, instance: MigInstance, retry: BusyRetry) -> None:
        gpu, gi_id = partition.gpu_uuid, instance.gi_id
        for compute in instance.compute:
            try:
                retry.attempt(partial(self._control.destroy_compute_instance, gpu, gi_id, compute.ci_id))
            except GpuBusyError as error:
                raise GpuBusyError(messages.partition_is_busy(partition, instance, retry.waited_s, error)) from error

    def _retry(self, within_s: float) -> BusyRetry:
        return BusyRetry(within_s, sleep=self._sleep, clock=self._clock)


def _is_at(instance: MigInstance, partition: PartitionId) -> bool:
    return instance.profile_id == partition.profile_id and instance.start == partition.start
