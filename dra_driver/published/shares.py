"""What a claim can ask of a GPU that several claims may have at once (consumable capacity, KEP-5075).

Pure. Owns the capacities and their request policies. Memory and compute default to all of it, so a claim that asks for
nothing in particular has the GPU alone, with or without other shares around; a policy may lower the default of compute,
so that claims which ask for memory alone can be neighbours. Refuses to know how a share is enforced.

The API server's rules for a range: ``min`` <= ``default`` <= ``max`` <= value, ``default`` and ``max`` are whole steps
above ``min``, and ``min`` + ``step`` <= value (pkg/apis/resource/validation). So memory is rounded down to whole MiB.
"""

from typing import Final

from dra_driver.kube.types import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from dra_driver.model.terms import SharingTerms
from dra_driver.quantity import Quantity

_MIB: Final = 2**20
ALL_PERCENT: Final = 100


def capacity_of(memory_bytes: int | None, sharing: SharingTerms) -> dict[str, DeviceCapacity]:
    """``memory``, ``computePercent`` and, where their number is limited, ``shares``, of which a claim has one.

    Without memory, compute alone keeps claims apart, so its default stays everything.
    """
    if memory_bytes is None or memory_bytes < 2 * _MIB:
        found = {"computePercent": _percent(ALL_PERCENT)}
    else:
        found = {"computePercent": _percent(sharing.default_percent), "memory": _memory(memory_bytes)}
    if sharing.max_shares is not None:
        found["shares"] = _shares(max(1, sharing.max_shares))
    return found


def _percent(default: int) -> DeviceCapacity:
    span = CapacityRange(min=str(min(1, default)), max=str(ALL_PERCENT), step="1")
    policy = CapacityRequestPolicy(default=str(default), validRange=span)
    return DeviceCapacity(value=str(ALL_PERCENT), requestPolicy=policy)


def _memory(memory_bytes: int) -> DeviceCapacity:
    total = str(Quantity.from_bytes(memory_bytes // _MIB * _MIB))
    span = CapacityRange(min="1Mi", max=total, step="1Mi")
    return DeviceCapacity(value=total, requestPolicy=CapacityRequestPolicy(default=total, validRange=span))


def _shares(count: int) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default="1", validRange=CapacityRange(min="1", step="1"))
    if count == 1:  # a range needs room for one step
        policy = CapacityRequestPolicy(default="1", validValues=["1"])
    return DeviceCapacity(value=str(count), requestPolicy=policy)
