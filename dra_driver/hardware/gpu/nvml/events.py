"""Wait for NVML events that report a change of MIG instances by any process.

nvmlEventMigConfigChange (0x100, nvml.h) of every GPU with MIG. An event does not say what changed; the next poll finds
out, as it does for changes of the time without a set. The set is renewed and freed as ``event_set.py`` says.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pynvml

from dra_driver.hardware.gpu.nvml.errors import optional
from dra_driver.hardware.gpu.nvml.event_set import EventSet
from dra_driver.hardware.gpu.nvml.session import Session

Reading = Callable[[int, int], AbstractContextManager[None]]
"""Takes the turn of a GPU, by session and index, and raises GiveWay when it is taken."""


def mig_events(session: Session, reading: Reading, renewed: Callable[[], None]) -> EventSet:
    """The set. ``renewed`` is called when GPUs have been registered: their events before that are lost."""

    def add(generation: int, index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
        with reading(generation, index):
            return optional("nvmlDeviceRegisterEvents", partial(_add, index, events)) or False

    return EventSet(session, add, lambda _: False, renewed)


def _add(index: int, events: pynvml.c_nvmlEventSet_t) -> bool:
    """Register the GPU at ``index`` for MIG changes; whether it has such events."""
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    if optional("nvmlDeviceGetMigMode", partial(pynvml.nvmlDeviceGetMigMode, handle)) is None:
        return False
    wanted = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & pynvml.nvmlEventMigConfigChange
    if wanted:
        pynvml.nvmlDeviceRegisterEvents(handle, wanted, events)
    return bool(wanted)
