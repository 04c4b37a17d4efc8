"""The time slice of a GPU: how long one process keeps it while others wait.

Owns the order of note, compute mode and command, and their undoing. Refuses to know claims. The setting is the GPU's,
seen by everybody on the node, so it is made only when somebody asked for another interval than the default, and taken
back only when a note says that it was made here: NVIDIA's driver runs the command at every prepare and unprepare of a
plain GPU, which fails on GPUs that have no such setting.

``nvidia-smi compute-policy -i UUID --set-timeslice N``, N from 0 (default) to 3 (long); no NVML call does it. Processes
cannot share a GPU in compute mode EXCLUSIVE_PROCESS, so the mode is DEFAULT while an interval is set.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from dra_driver.errors import CommandError, DraError
from dra_driver.gpu.backend import ComputeMode, ComputeModes
from dra_driver.gpu.notes import TIME_SLICE, GpuNotes
from dra_driver.model.ids import GpuUuid
from dra_driver.model.terms import Interval
from dra_driver.sharing import compute_mode

log = logging.getLogger(__name__)

UNDO_S: Final = 5.0
"""How long taking back what a failed call did may take beyond the caller's own limit."""
_UNSUPPORTED: Final = re.compile(r"not\s+(?:be\s+)?supported|unsupported", re.IGNORECASE)


class _NoTimeSlicesError(CommandError):
    """The GPU has no such setting, so there is nothing to take back."""


class SmiProgram(Protocol):
    """``nvidia-smi``, see ``sharing.smi.Smi``."""

    def find(self) -> str: ...
    def run(self, arguments: Sequence[str], *, within_s: float) -> str: ...


class TimeSlicer:
    """Sets and resets time slices of whole GPUs. Keeps nothing between calls.

    The caller holds the GPU's lock for each method; under it they may be called from any thread. They raise
    CommandError, what `ComputeModes` raises, and StorageError from the notes.
    """

    def __init__(self, smi: SmiProgram, control: ComputeModes, notes: GpuNotes) -> None:
        self._smi = smi
        self._control = control
        self._notes = notes

    def set(self, gpu: GpuUuid, interval: Interval, *, within_s: float) -> None:
        """Make ``interval`` the GPU's; `Interval.DEFAULT` does nothing at all where nothing was set before.

        Idempotent. A call that fails has taken back what it did, in at most `UNDO_S` more; where that fails too, or the
        process dies, the note stays and `reset` puts things right.
        """
        if interval is Interval.DEFAULT:
            return self.reset(gpu, within_s=within_s)
        self._smi.find()  # before anything is noted or changed
        before = self._notes.gpu_note(gpu, TIME_SLICE)
        self._notes.set_gpu_note(gpu, TIME_SLICE, interval.value)
        try:
            compute_mode.set_with_undo(self._control, self._notes, gpu, ComputeMode.DEFAULT)
            self._command(gpu, interval, within_s)
        except DraError as error:
            self._undo(gpu, before, error)
            raise
        log.info("time slice set", extra={"gpu": gpu, "interval": interval.value})
        return None

    def reset(self, gpu: GpuUuid, *, within_s: float) -> None:
        """Set the default interval and the compute mode of before, if a note says that they were changed. Idempotent;
        after a failure the note is still there."""
        if self._notes.gpu_note(gpu, TIME_SLICE) is None:
            return
        with suppress(_NoTimeSlicesError):  # the process that left the note died before it found that out
            self._command(gpu, Interval.DEFAULT, within_s)
        self._forget(gpu)
        log.info("time slice reset", extra={"gpu": gpu})

    def _undo(self, gpu: GpuUuid, before: str | None, why: DraError) -> None:
        """Set what was noted before. Never raises: the first error is the one that is told."""
        try:
            if isinstance(why, CommandError) and not isinstance(why, _NoTimeSlicesError):
                self._command(gpu, _interval(before), UNDO_S)
            if before is None:
                self._forget(gpu)
            else:
                self._notes.set_gpu_note(gpu, TIME_SLICE, before)
        except DraError as error:
            log.warning("a time slice is not taken back yet", extra={"gpu": gpu, "reason": str(error)})

    def _forget(self, gpu: GpuUuid) -> None:
        # The mode first: while there is a note of the slice, a repeat of the whole reset is harmless.
        compute_mode.restore(self._control, self._notes, gpu, ComputeMode.DEFAULT)
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
                f" rule): leave the interval away or ask for Default. {error}"
            ) from error


def _interval(noted: str | None) -> Interval:
    return Interval(noted) if noted in set(Interval) else Interval.DEFAULT
