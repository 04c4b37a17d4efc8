"""What a claim can ask of a GPU that several claims may have at once (consumable capacity, KEP-5075).

Pure. Owns the capacities and their request policies. Memory and compute default to all of it, so a claim that asks for
nothing in particular has the GPU alone, with or without other shares around. Refuses to know how a share is enforced.

The API server's rules for a range: ``min`` <= ``default`` <= ``max`` <= value, ``default`` and ``max`` are whole steps
above ``min``, and ``min`` + ``step`` <= value (pkg/apis/resource/validation). So memory is rounded down to whole MiB.
"""

from typing import Final

from dra_driver.kube.types import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from dra_driver.quantity import Quantity

_MIB: Final = 2**20
_PERCENT: Final = DeviceCapacity(
    value="100",
    requestPolicy=CapacityRequestPolicy(default="100", validRange=CapacityRange(min="1", max="100", step="1")),
)


def capacity_of(memory_bytes: int | None, max_shares: int | None) -> dict[str, DeviceCapacity]:
    """``memory``, ``computePercent`` and, where their number is limited, ``shares``, of which a claim has one."""
    found = {"computePercent": _PERCENT}
    if memory_bytes is not None and memory_bytes >= 2 * _MIB:
        found["memory"] = _memory(memory_bytes)
    if max_shares is not None:
        found["shares"] = _shares(max(1, max_shares))
    return found


def _memory(memory_bytes: int) -> DeviceCapacity:
    total = str(Quantity.from_bytes(memory_bytes // _MIB * _MIB))
    span = CapacityRange(min="1Mi", max=total, step="1Mi")
    return DeviceCapacity(value=total, requestPolicy=CapacityRequestPolicy(default=total, validRange=span))


def _shares(count: int) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default="1", validRange=CapacityRange(min="1", step="1"))
    if count == 1:  # a range needs room for one step
        policy = CapacityRequestPolicy(default="1", validValues=["1"])
    return DeviceCapacity(value=str(count), requestPolicy=policy)
