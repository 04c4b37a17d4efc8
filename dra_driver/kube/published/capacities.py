"""Capacities of whole GPUs and partitions that one claim gets alone; `shares` has those of a shared GPU.

Names and values are those of NVIDIA's DRA driver, but for the memory of a whole GPU, which is its real total here. A
number that the hardware does not report is absent.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.quantity import Quantity
from dra_driver.kube.objects.resource import DeviceCapacity
from dra_driver.kube.published.names import MEMORY


class Dimension(NamedTuple):
    """One number of a partition: the names of its capacity and its counter, and how to read it from a profile."""

    capacity: str
    counter: str
    read: Callable[[MigProfile], int | None]

    def of(self, profile: MigProfile) -> int | None:
        """The number; None when the hardware does not report it."""
        value = self.read(profile)
        return value if value is not None and value >= 0 else None


DIMENSIONS: Final = (
    Dimension("multiprocessors", "multiprocessors", lambda profile: profile.multiprocessors),
    Dimension("copyEngines", "copy-engines", lambda profile: profile.copy_engines),
    Dimension("decoders", "decoders", lambda profile: profile.decoders),
    Dimension("encoders", "encoders", lambda profile: profile.encoders),
    Dimension("jpegEngines", "jpeg-engines", lambda profile: profile.jpeg_engines),
    Dimension("ofaEngines", "ofa-engines", lambda profile: profile.ofa_engines),
    Dimension(MEMORY, MEMORY, lambda profile: profile.memory_bytes),
)
"""In the order in which they are published."""


def of_profile(profile: MigProfile) -> dict[str, DeviceCapacity]:
    """The capacities of a partition of ``profile``."""
    known = ((each.capacity, each.of(profile)) for each in DIMENSIONS)
    return {name: DeviceCapacity(value=amount_text(name, value)) for name, value in known if value is not None}


def of_whole(gpu: Gpu, *, beside_partitions: bool) -> dict[str, DeviceCapacity]:
    """The capacities of a whole GPU that is not shared.

    ``beside_partitions``: it is published next to partitions and has all their capacities, so that a selector that
    compares one of them finds it on both.
    """
    found = _greatest(gpu) if beside_partitions else {}
    if gpu.memory_bytes is not None and gpu.memory_bytes > 0:
        # The real total: a 7g instance has less.
        found[MEMORY] = DeviceCapacity(value=amount_text(MEMORY, gpu.memory_bytes))
    return found


def memory_slices(start: int, size: int) -> dict[str, DeviceCapacity]:
    """``memorySlice<i>`` of an existing partition, for claims that want two of the same or of other memory slices."""
    return {f"memorySlice{index}": DeviceCapacity(value="1") for index in range(start, start + size)}


def amount_text(name: str, value: int) -> str:
    """``value`` as it is published under ``name``, a capacity or a counter; memory is in bytes."""
    return str(Quantity.from_bytes(value)) if name == MEMORY else str(value)


def _greatest(gpu: Gpu) -> dict[str, DeviceCapacity]:
    """For each number but memory, the greatest of all profiles, as NVIDIA's driver publishes it.

    Less than the board has where no profile gets all of it (98 of 108 multiprocessors of an A100).
    """
    found: dict[str, DeviceCapacity] = {}
    for each in DIMENSIONS:
        known = [value for profile in gpu.mig_profiles if (value := each.of(profile)) is not None]
        if known and each.capacity != MEMORY:
            found[each.capacity] = DeviceCapacity(value=amount_text(each.capacity, max(known)))
    return found
