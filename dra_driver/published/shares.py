"""Capacities of a GPU that several claims may be allocated at once (consumable capacity, KEP-5075).

Memory and compute default to all of it, so a claim that asks for nothing in particular gets the GPU alone. A policy may
lower the default of compute, so that claims which ask for memory alone can share a GPU.

The API server's rules for a range: ``min`` <= ``default`` <= ``max`` <= value, ``default`` and ``max`` are whole steps
above ``min``, and ``min`` + ``step`` <= value (pkg/apis/resource/validation). So memory is rounded down to whole MiB.
"""

from typing import Final

from dra_driver.kube.types import CapacityRange, CapacityRequestPolicy, DeviceCapacity
from dra_driver.model.terms import SharingTerms
from dra_driver.published.names import ALL_PERCENT, COMPUTE_PERCENT, MEMORY, SHARES
from dra_driver.quantity import Quantity

MIB: Final = 2**20
"""The step of ``memory``, in bytes."""


def shareable_memory(memory_bytes: int | None) -> int | None:
    """How much of a GPU's memory its shares can ask for together, in bytes, a multiple of `MIB`.

    None when ``memory`` is not published: the GPU reports no memory of its own, or less than two steps.
    """
    return None if memory_bytes is None or memory_bytes < 2 * MIB else memory_bytes // MIB * MIB


def default_percent(memory_bytes: int | None, sharing: SharingTerms) -> int:
    """What a claim consumes of ``computePercent`` when it does not ask for it.

    Always everything on a GPU without ``memory``: compute is then all that keeps claims apart.
    """
    return ALL_PERCENT if shareable_memory(memory_bytes) is None else sharing.default_percent


def capacity_of(memory_bytes: int | None, sharing: SharingTerms) -> dict[str, DeviceCapacity]:
    """``computePercent``, ``memory`` where it is known, and ``shares`` where their number is limited (1 per claim)."""
    found = {COMPUTE_PERCENT: _percent(default_percent(memory_bytes, sharing))}
    total = shareable_memory(memory_bytes)
    if total is not None:
        found[MEMORY] = _memory(total)
    if sharing.max_shares is not None:
        found[SHARES] = _shares(max(1, sharing.max_shares))
    return found


def _percent(default: int) -> DeviceCapacity:
    span = CapacityRange(min=str(min(1, default)), max=str(ALL_PERCENT), step="1")
    policy = CapacityRequestPolicy(default=str(default), validRange=span)
    return DeviceCapacity(value=str(ALL_PERCENT), requestPolicy=policy)


def _memory(memory_bytes: int) -> DeviceCapacity:
    total = str(Quantity.from_bytes(memory_bytes))
    span = CapacityRange(min="1Mi", max=total, step="1Mi")
    return DeviceCapacity(value=total, requestPolicy=CapacityRequestPolicy(default=total, validRange=span))


def _shares(count: int) -> DeviceCapacity:
    policy = CapacityRequestPolicy(default="1", validRange=CapacityRange(min="1", step="1"))
    if count == 1:  # a range must have room for one step
        policy = CapacityRequestPolicy(default="1", validValues=["1"])
    return DeviceCapacity(value=str(count), requestPolicy=policy)
