"""The time slice of a GPU, for which one process keeps it while others wait, and its compute mode.

Both belong to the GPU and affect all its processes, so they change only for claims that request it and are reset only
if a note records that this driver set them. NVIDIA's DRA driver runs the command for every plain GPU, which fails on
GPUs without time slices. ``nvidia-smi compute-policy -i UUID --set-timeslice N``, N from 0 (default) to 3 (long): no
NVML call exists.
"""

import logging
import re
from contextlib import suppress
from typing import Final

from dra_driver.core.errors import CommandError, DraError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, TIME_SLICE, ComputeMode, ComputeModes, GpuNotes

log = logging.getLogger(__name__)

UNDO_S: Final = 5.0
"""Seconds that a failed call may take to restore the previous state, beyond the caller's own limit."""
_UNSUPPORTED: Final = re.compile(r"not\s+(?:be\s+)?supported|unsupported", re.IGNORECASE)


def set_compute_mode(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, wanted: ComputeMode) -> None:
    """Set the GPU's mode, with a durable note of the previous one unless the GPU has the mode already. An existing note
    is older and holds the original mode. Idempotent, also after a death half-way. The caller holds the GPU's lock.
    Raises what `ComputeModes` raises (nvmlDeviceSetComputeMode), and StorageError."""
    found = control.compute_mode(gpu)
    if found is wanted:
        return
    if notes.gpu_note(gpu, COMPUTE_MODE) is None:
        notes.set_gpu_note(gpu, COMPUTE_MODE, found.name)
    control.set_compute_mode(gpu, wanted)


def restore_compute_mode(control: ComputeModes, notes: GpuNotes, gpu: GpuUuid, expected: ComputeMode) -> None:
    """Set the noted mode again and clear the note. A mode other than ``expected``, which this driver set, was
    changed by an administrator or a reboot, and stays."""
    noted = notes.gpu_note(gpu, COMPUTE_MODE)
    if noted is None:
        return
    if control.compute_mode(gpu) is expected:
        control.set_compute_mode(gpu, ComputeMode.__members__.get(noted, ComputeMode.DEFAULT))
    notes.clear_gpu_note(gpu, COMPUTE_MODE)


class _NoTimeSlicesError(CommandError):
    """The GPU has no such setting. A restore is not needed."""


class TimeSlicer:
    """Sets and resets time slices of whole GPUs. Keeps no state; the caller holds the GPU's lock. Methods raise
    CommandError, what `ComputeModes` raises, and StorageError. Compute mode is DEFAULT while an interval is set:
    processes cannot share a GPU in EXCLUSIVE_PROCESS."""

    def __init__(self, smi: Smi, control: ComputeModes, notes: GpuNotes) -> None:
        self._smi = smi
        self._control = control
        self._notes = notes

    def set(self, gpu: GpuUuid, interval: Interval, *, within_s: float) -> None:
        """Set the GPU's interval; `Interval.DEFAULT` does nothing where this driver set none. Idempotent. A failed call
        restores the previous state within `UNDO_S`, or leaves a note for `reset`."""
        if interval is Interval.DEFAULT:
            return self.reset(gpu, within_s=within_s)
        self._smi.find()  # before any record or change
        before = self._notes.gpu_note(gpu, TIME_SLICE)
        self._notes.set_gpu_note(gpu, TIME_SLICE, interval.value)
        try:
            set_compute_mode(self._control, self._notes, gpu, ComputeMode.DEFAULT)
            self._command(gpu, interval, within_s)
        except DraError as error:
            self._undo(gpu, before, error)
            raise
        log.info("time slice set", extra={"gpu": gpu, "interval": interval.value})
        return None

    def reset(self, gpu: GpuUuid, *, within_s: float) -> None:
        """Set the default interval and the previous compute mode if a note records that this driver changed them.
        Idempotent. The note stays after a failure."""
        if self._notes.gpu_note(gpu, TIME_SLICE) is None:
            return
        with suppress(_NoTimeSlicesError):  # a process can die after the note and before it sees this error
            self._command(gpu, Interval.DEFAULT, within_s)
        self._forget(gpu)
        log.info("time slice reset", extra={"gpu": gpu})

    def _undo(self, gpu: GpuUuid, before: str | None, why: DraError) -> None:
        """Never raises, so that the caller reports the first error."""
        try:
            if isinstance(why, CommandError) and not isinstance(why, _NoTimeSlicesError):
                former = Interval(before) if before in set(Interval) else Interval.DEFAULT
                self._command(gpu, former, UNDO_S)
            if before is None:
                self._forget(gpu)
            else:
                self._notes.set_gpu_note(gpu, TIME_SLICE, before)
        except DraError as error:
            log.warning("time slice is not restored yet; will retry", extra={"gpu": gpu, "reason": str(error)})

    def _forget(self, gpu: GpuUuid) -> None:
        # The mode first: while the note of the time slice exists, the whole reset can be repeated.
        restore_compute_mode(self._control, self._notes, gpu, ComputeMode.DEFAULT)
        self._notes.clear_gpu_note(gpu, TIME_SLICE)

    def _command(self, gpu: GpuUuid, interval: Interval, within_s: float) -> None:
        arguments = ("compute-policy", "-i", gpu, "--set-timeslice", str(interval.number))
        try:
            self._smi.run(arguments, within_s=within_s)
        except CommandError as error:
            if not _UNSUPPORTED.search(str(error)):
                raise
            raise _NoTimeSlicesError(
                f"GPU {gpu} has no time-slice setting (it takes a GPU with compute preemption, Volta or newer as a"
                f" rule): omit the interval or request Default. {error}"
            ) from error
