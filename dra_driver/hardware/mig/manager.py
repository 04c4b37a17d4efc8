"""Create and destroy partitions of a GPU, switch MIG mode for them, and count creations that a busy GPU refuses.

A process may die between any two steps; the next call continues. Calls (nvml.h): nvmlDeviceSetMigMode,
nvmlDeviceCreateGpuInstanceWithPlacement, nvmlGpuInstanceCreateComputeInstance and their reverse. The caller's journal
records who owns an instance: hardware has no owner, and MIG UUIDs repeat for the same place.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.backoff import Backoff
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, PartitionId
from dra_driver.hardware.gpu.backend import MIG_MODE, GpuControl, GpuNotes

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 1.0

Clock = Callable[[], float]
Sleep = Callable[[float], None]
Result = TypeVar("Result")


class BusyRetry:
    """One time limit for all steps, with several short pauses: monitors such as dcgm open a GPU for moments."""

    def __init__(self, within_s: float, *, sleep: Sleep, clock: Clock) -> None:
        self._sleep = sleep
        self._clock = clock
        self._began = clock()
        self._until = self._began + max(within_s, 0.0)

    @property
    def waited_s(self) -> float:
        return self._clock() - self._began

    @property
    def left_s(self) -> float:
        return max(self._until - self._clock(), 0.0)

    def attempt(self, step: Callable[[], Result]) -> Result:
        """Return the result of ``step``, repeated after GpuBusyError while time is left; it runs at least once."""
        backoff = Backoff(first_s=FIRST_PAUSE_S, longest_s=LONGEST_PAUSE_S)
        while True:
            try:
                return step()
            except errors.GpuBusyError:
                if self.left_s <= 0:
                    raise
            self._sleep(min(backoff.next_s(), self.left_s))


_SUCCEEDS = "the driver tries again and succeeds once they have closed the GPU"
LOOK_FOR = (
    "look for processes with `nvidia-smi --query-compute-apps=pid,process_name,gpu_uuid --format=csv` and "
    "`fuser -v /dev/nvidia*` on the node, and for monitors that hold GPUs open, such as dcgm (nv-hostengine, "
    f"dcgm-exporter); {_SUCCEEDS}"
)


def _listed(instances: Sequence[MigInstance]) -> str:
    return ", ".join(
        f"GPU instance {one.gi_id} ({one.profile_name} at memory slices {one.start}-{one.start + one.size - 1})"
        for one in instances
    )


log = logging.getLogger(__name__)

SWITCHED_ON: Final = "on"  # the note's value

CLEANUP_S: Final = 2.0
"""Seconds that removing an incomplete instance may wait for a busy GPU, beyond the caller's own limit."""

LONG_WAITS: Final = 4
"""Creations that may wait for a busy GPU as long as their callers allow. A monitor opens all GPUs of a node; more
waiting creations would occupy every thread that prepares claims."""

SHORT_WAIT_S: Final = 5.0
"""Seconds that every other creation may wait."""

LIMIT: Final = 3
WITHIN_S: Final = 600.0
WITHHELD_S: Final = 600.0
ONE_CALL_S: Final = 45.0
"""`LIMIT` refusals within `WITHIN_S` withhold a GPU's partitions for `WITHHELD_S`. Refusals of one partition within
`ONE_CALL_S` count once: a call may try several times, and the kubelet repeats it after more than a minute."""


class CreationWatch(Protocol):
    """Receives the result of each creation, from any thread. Never raises."""

    def refused(self, partition: PartitionId, reason: str) -> None:
        """A process had the GPU open until the last attempt."""
        ...

    def created(self, partition: PartitionId) -> None: ...


class MigManager:
    """Creates and destroys the partitions of all GPUs of a node. Keeps no state. The caller holds the GPU's lock,
    across processes; under it any thread may call. All raise what `GpuControl` raises, and StorageError. Waits are
    bounded by ``within_s`` and `CLEANUP_S`; hardware calls take some seconds each."""

    def __init__(
        self,
        control: GpuControl,
        notes: GpuNotes,
        *,
        sleep: Sleep = time.sleep,
        clock: Clock = time.monotonic,
        holders: Callable[[GpuUuid], str | None] = lambda _gpu: None,
        watch: CreationWatch | None = None,
    ) -> None:
        """``holders`` describes the processes that have a GPU open, and never raises."""
        self._control = control
        self._notes = notes
        self._sleep = sleep
        self._clock = clock
        self._holders = holders
        self._watch = watch
        self._long_waits = threading.BoundedSemaphore(LONG_WAITS)

    def create(self, wanted: PartitionId, size: int, *, within_s: float) -> MigInstance:
        """Create the partition of ``size`` memory slices, and return it with ``.device`` set.

        An existing instance in its place belongs to another program: NoRoomError. So a caller uses `find` before it
        records the creation. A failure removes everything that was created, MIG mode included, and raises the first
        error: NoRoomError, MigUnsupportedError, ResetRequiredError, GpuBusyError (after ``within_s``, or `SHORT_WAIT_S`
        while `LONG_WAITS` others wait). Call `destroy` later if its ``left_over`` is True, and after a death half-way.
        """
        patient = self._long_waits.acquire(blocking=False)
        try:
            created = self._switch_on_and_create(wanted, size, within_s if patient else min(within_s, SHORT_WAIT_S))
        except errors.GpuBusyError as error:
            if self._watch is not None:
                self._watch.refused(wanted, str(error))
            raise
        finally:
            if patient:
                self._long_waits.release()
        if self._watch is not None:
            self._watch.created(wanted)
        return created

    def destroy(self, partition: PartitionId, *, within_s: float) -> None:
        """Remove the partition, and switch MIG mode off if this driver switched it on and no instance remains. A
        missing partition is success. GpuBusyError when a process still uses it after ``within_s``. A mode that stays on
        keeps its note."""
        retry = self._retry(within_s)
        instance = self.find(partition)
        if instance is not None:
            self._remove(partition, instance, retry)
        self._restore_mode_best_effort(partition.gpu_uuid)

    def find(self, partition: PartitionId) -> MigInstance | None:
        """The partition's GPU instance, complete or not; None when it does not exist."""
        try:
            instances = self._control.mig_instances(partition.gpu_uuid)
        except errors.MigUnsupportedError:
            return None
        return next((one for one in instances if _is_at(one, partition)), None)

    def restore_mode(self, gpu: GpuUuid) -> bool:
        """Switch MIG mode off if this driver switched it on and no instance remains; return whether no note is left."""
        if self._notes.gpu_note(gpu, MIG_MODE) is None:
            return True
        if self._is_on(gpu):
            if self._control.mig_instances(gpu):
                return False
            try:
                self._control.set_mig_mode(gpu, False)
            except (errors.GpuBusyError, errors.ResetRequiredError) as error:
                log.info("MIG mode cannot be switched off yet", extra={"gpu": gpu, "reason": str(error)})
                return False
            log.info("MIG mode switched off", extra={"gpu": gpu})
        self._notes.clear_gpu_note(gpu, MIG_MODE)
        return True

    def ensure_whole(self, gpu: GpuUuid, *, within_s: float) -> None:
        """Make the GPU usable as a whole, without MIG mode. GpuBusyError when an administrator switched it on, when an
        instance remains (waiting would not help), or when the GPU is busy after ``within_s``. Repeatable."""
        retry = self._retry(within_s)
        if self._is_on(gpu):
            if self._notes.gpu_note(gpu, MIG_MODE) is None:
                raise errors.GpuBusyError(
                    f"{gpu} cannot be used as a whole: MIG mode is on and this driver did not switch it on; "
                    f"an administrator has to switch it off with `nvidia-smi -i {gpu} -mig 0`, or offer its partitions "
                    "instead",
                    reason="MigModeForeign",
                )
            left = self._control.mig_instances(gpu)
            if left:
                raise errors.GpuBusyError(
                    f"{gpu} cannot be used as a whole: it still has {_listed(left)}; "
                    "remove instances that this driver did not create with `nvidia-smi mig -dci` and `-dgi`"
                )
            self._switch_off(gpu, retry)
        self.restore_mode(gpu)

    def _is_on(self, gpu: GpuUuid) -> bool:
        try:
            return self._control.mig_mode(gpu)
        except errors.MigUnsupportedError:
            return False

    def _switch_on(self, gpu: GpuUuid, retry: BusyRetry) -> None:
        """The note comes first: without a note the mode would count as an administrator's and never be switched off.
        The next `restore_mode` clears a note without the mode."""
        if self._control.mig_mode(gpu):
            return
        if self._notes.gpu_note(gpu, MIG_MODE) is None:
            self._notes.set_gpu_note(gpu, MIG_MODE, SWITCHED_ON)
        try:
            retry.attempt(partial(self._control.set_mig_mode, gpu, True))
        except errors.GpuBusyError as error:
            self._restore_mode_best_effort(gpu)
            raise self._busy(f"MIG mode of {gpu} cannot be switched on", gpu, retry, error) from error
        except errors.DraError:
            self._restore_mode_best_effort(gpu)
            raise
        log.info("MIG mode switched on", extra={"gpu": gpu})

    def _switch_off(self, gpu: GpuUuid, retry: BusyRetry) -> None:
        try:
            retry.attempt(partial(self._control.set_mig_mode, gpu, False))
        except errors.GpuBusyError as error:
            raise self._busy(f"MIG mode of {gpu} cannot be switched off", gpu, retry, error) from error
        log.info("MIG mode switched off", extra={"gpu": gpu})

    def _busy(self, problem: str, gpu: GpuUuid, retry: BusyRetry, error: errors.GpuBusyError) -> errors.GpuBusyError:
        waited_s = retry.waited_s  # before the search for holders, which takes time, too
        holders = self._holders(gpu)
        advice = LOOK_FOR if holders is None else f"{holders}; {_SUCCEEDS}"
        return errors.GpuBusyError(f"{problem}, tried for {waited_s:.0f} s: {error}; {advice}")

    def _restore_mode_best_effort(self, gpu: GpuUuid) -> None:
        """A failure neither hides the first error nor undoes a success: the note stays for the periodic reclaim of
        orphans."""
        try:
            self.restore_mode(gpu)
        except errors.DraError as error:
            log.warning("MIG mode is not restored yet; will retry", extra={"gpu": gpu, "reason": error})

    def _switch_on_and_create(self, wanted: PartitionId, size: int, within_s: float) -> MigInstance:
        retry = self._retry(within_s)
        self._switch_on(wanted.gpu_uuid, retry)
        try:
            return self._create(wanted, size, retry)
        except errors.DraError:
            self._restore_mode_best_effort(wanted.gpu_uuid)
            raise

    def _create(self, wanted: PartitionId, size: int, retry: BusyRetry) -> MigInstance:
        existing = self._control.mig_instances(wanted.gpu_uuid)
        found = next((one for one in existing if _is_at(one, wanted)), None)
        if found is not None:
            raise errors.NoRoomError(
                f"{wanted} exists already and was not created by this driver ({_listed([found])}), so it stays; "
                "the driver withholds it from scheduling once it has seen it: delete the pod to have it scheduled "
                "again, or remove the instance",
                reason="PlacementTaken",
            )
        overlapping = [one for one in existing if one.overlaps(wanted.start, size)]
        if overlapping:
            raise errors.NoRoomError(
                f"{wanted} needs memory slices {wanted.start} to {wanted.start + size - 1}, "
                f"and these are taken by {_listed(overlapping)}"
            )
        step = partial(self._control.create_gpu_instance, wanted.gpu_uuid, wanted.profile_id, wanted.start)
        try:
            # The driver shuts down NVLink, channels and the watchdog before the first instance of a GPU, and refuses it
            # while a process uses them (kernel_mig_manager.c, kmigmgrSetMIGState), although the mode could be switched.
            gi_id = retry.attempt(step)
        except (errors.NoRoomError, errors.MigUnsupportedError):
            raise  # this call created nothing; another program created any instance that exists now
        except errors.GpuBusyError as error:
            # Nothing was created either: the same function undoes its own steps.
            raise self._busy(f"{wanted} cannot be created", wanted.gpu_uuid, retry, error) from error
        except errors.DraError as error:
            raise self._after_cleanup(wanted, error) from error
        return self._add_compute_instance(wanted, gi_id, retry)

    def _add_compute_instance(self, wanted: PartitionId, gi_id: int, retry: BusyRetry) -> MigInstance:
        """Return the GPU instance as the GPU lists it with its new compute instance."""
        try:
            retry.attempt(partial(self._control.create_compute_instance, wanted.gpu_uuid, gi_id))
            created = self.find(wanted)
            if created is None or created.device is None:
                raise errors.DeviceLostError(
                    f"{wanted} was created as GPU instance {gi_id}, but the GPU does not list it with one usable "
                    "compute instance",
                    reason="InstanceNotListed",
                )
        except errors.DraError as error:
            raise self._after_cleanup(wanted, error) from error
        return created

    def _after_cleanup(self, wanted: PartitionId, first: errors.DraError) -> errors.DraError:
        """Remove this call's incomplete partition, and return ``first``, marked if it may be left over."""
        retry = self._retry(CLEANUP_S)
        try:
            incomplete = self.find(wanted)
            if incomplete is not None:
                self._remove(wanted, incomplete, retry)
        except errors.DraError as second:
            facts = {"partition": str(wanted), "reason": str(second)}
            log.warning("incomplete partition is not removed yet; will retry", extra=facts)
            failure = type(first)(
                f"{first}; and the incomplete instance could not be removed, which the driver tries again: {second}"
            )
            if isinstance(failure, errors.HardwareError):
                failure.left_over = True
            return failure
        return first

    def _remove(self, partition: PartitionId, instance: MigInstance, retry: BusyRetry) -> None:
        gpu, gi_id = partition.gpu_uuid, instance.gi_id
        try:
            for compute in instance.compute:
                retry.attempt(partial(self._control.destroy_compute_instance, gpu, gi_id, compute.ci_id))
            retry.attempt(partial(self._control.destroy_gpu_instance, gpu, gi_id))
        except errors.GpuBusyError as error:
            raise self._busy(f"{partition} ({_listed([instance])}) cannot be removed", gpu, retry, error) from error

    def _retry(self, within_s: float) -> BusyRetry:
        return BusyRetry(within_s, sleep=self._sleep, clock=self._clock)


def _is_at(instance: MigInstance, partition: PartitionId) -> bool:
    return instance.profile_id == partition.profile_id and instance.start == partition.start


class CutRefusals(Struct, frozen=True, kw_only=True):
    """The refusals of one GPU that count, ascending, at most `LIMIT`. Claims wait for ``partitions``.
    ``withheld_since`` is None unless partitions are withheld. Times are seconds of any clock; a jump back prolongs
    nothing beyond the limits from then on."""

    counted: tuple[tuple[float, PartitionId], ...] = ()
    partitions: frozenset[PartitionId] = frozenset()
    withheld_since: float | None = None

    @property
    def withheld(self) -> bool:
        return self.withheld_since is not None


NO_REFUSALS: Final = CutRefusals()


def after_refusal(state: CutRefusals, partition: PartitionId, now: float) -> CutRefusals:
    """The state after a refused creation at ``now``. It does not prolong a withholding."""
    state = at(state, now)
    state = replace(state, partitions=state.partitions | {partition})
    if state.withheld or any(each == partition and now - time < ONE_CALL_S for time, each in state.counted):
        return state
    counted = (*state.counted, (now, partition))[-LIMIT:]
    return replace(state, counted=counted, withheld_since=now if len(counted) == LIMIT else None)


def at(state: CutRefusals, now: float) -> CutRefusals:
    """The state at ``now``, without expired refusals."""
    if state.withheld_since is not None:
        since = min(state.withheld_since, now)
        return NO_REFUSALS if now - since >= WITHHELD_S else replace(state, withheld_since=since)
    counted = tuple((min(time, now), partition) for time, partition in state.counted if now - time < WITHIN_S)
    return replace(state, counted=counted) if counted else NO_REFUSALS
