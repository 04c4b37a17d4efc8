"""Troubles of simulated GPUs by name: what real ones do that a described node alone would not show.

docs/simulated-gpus.md lists them beside what NVML does. The contract tests' fake NVML library has the same ones.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum

from dra_driver.core.errors import DeviceLostError, GpuBusyError
from dra_driver.core.model.ids import GpuUuid

HANG_S = 15.0
"""How long a call for a GPU that hangs is waited for: as long as for a real one (``nvml/turns.py``)."""
HANG_POLL_S = 0.05


class Trouble(StrEnum):
    """One GPU's trouble."""

    UNBOUND = "unbound"
    HANGS = "hangs"
    CALLS_FAIL = "calls fail"
    SUBSCRIBED = "subscribed"
    NO_PLACEMENTS = "no placements"
    NO_EVENTS = "no events"


def parse(names: Iterable[object]) -> frozenset[Trouble]:
    """Raises ValueError with the expected names."""
    found = set()
    for name in names:
        if name not in list(Trouble):
            raise ValueError(f"troubles of {', '.join(Trouble)}, not {name!r:.60}")
        found.add(Trouble(str(name)))
    return frozenset(found)


def why_left_out(gpu: GpuUuid, troubles: Collection[Trouble]) -> str | None:
    """The reason why the GPU is on the node and not usable; None when it is usable."""
    return _hangs(gpu) if Trouble.HANGS in troubles else None


def check(
    method: str, gpu: GpuUuid, troubles: Callable[[], Collection[Trouble]], sleep: Callable[[float], None]
) -> None:
    """What a call of ``method`` for the GPU meets before it does its work. ``troubles`` reads them anew.

    Raises DeviceLostError, and GpuBusyError for instances that another process has asked for. Waits while the GPU
    hangs, at most ``HANG_S``.
    """
    found = troubles()
    if Trouble.UNBOUND in found:
        raise DeviceLostError(f"GPU {gpu} is not on this node")
    left_s = HANG_S
    while Trouble.HANGS in troubles():
        if left_s <= 0:
            raise DeviceLostError(_hangs(gpu))
        sleep(HANG_POLL_S)
        left_s -= HANG_POLL_S
    if Trouble.CALLS_FAIL in found:
        raise DeviceLostError(f"{method} of GPU {gpu} failed: Unknown Error (NVML code 999)")
    if Trouble.SUBSCRIBED in found and method == "destroy_gpu_instance":
        raise GpuBusyError(f"no GPU instance of {gpu} can be destroyed: another process has asked for it")


def _hangs(gpu: GpuUuid) -> str:
    return f"GPU {gpu} does not answer: a simulated call has not returned for {HANG_S:.0f} s"
