"""Reads the share of a GPU from the capacity that the scheduler writes as consumed. Pure.

A claim that consumes everything gets the GPU alone. `published.shares` has the other half, the capacities as they are
published. Source: ``consumedCapacity`` of ``DeviceRequestAllocationResult`` (KEP-5075).

What is published is less than the GPU has, by a reserve that a policy or another NVIDIA driver changes. A share that
was allocated while the reserve was smaller, or while there was none, is as good as any other: shares may add up to all
of the GPU's memory, and more than is published now is not everything.
"""

from dra_driver.core.errors import ClaimError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.core.quantity import Quantity
from dra_driver.kube.published import (
    ALL_PERCENT,
    COMPUTE_PERCENT,
    MEMORY,
    MIB,
    SHARES,
    default_percent,
    shareable_memory,
    total_memory,
)
from dra_driver.node.claims.entry import AssignedShare


def share_of(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, terms: GpuTerms) -> AssignedShare | None:
    """The share of ``gpu`` in ``result``; None when it is the whole GPU.

    Raises `ClaimError` for numbers that no scheduler can have written, and for a share of a GPU that is not shared.
    """
    total = total_memory(gpu)
    memory = _consumed(ref, result, MEMORY)
    percent = _consumed(ref, result, COMPUTE_PERCENT, least=0)
    count = _consumed(ref, result, SHARES)
    if _is_all(memory, gpu, terms) and percent in _alone(gpu, terms):
        return None
    if terms.sharing is None:
        policy = f"policy {terms.policy} does not share" if terms.policy else "no policy shares"
        raise ClaimError(
            f"device {result.device} of claim {ref} is a share of a GPU, but {policy} that GPU now; "
            "delete the pod so that it is scheduled again"
        )
    if percent is not None and percent > ALL_PERCENT:
        raise _broken(ref, result, f"{COMPUTE_PERCENT} is {percent}, expected 0 to {ALL_PERCENT}")
    if memory is not None and memory < MIB:
        raise _broken(ref, result, f"{MEMORY} is {memory} bytes, expected at least 1Mi")
    return AssignedShare(
        memory=memory,
        percent=ALL_PERCENT if percent is None else percent,
        # None where it was granted before there was a limit: the scheduler does not count it against a later one.
        count=0 if count is None else count,
        total_memory=total,
        max_shares=terms.sharing.max_shares,
    )


def _is_all(memory: int | None, gpu: Gpu, terms: GpuTerms) -> bool:
    """Whether it is all that the GPU has, or all that is published of it (by default, if it is not shared any more)."""
    total = total_memory(gpu)
    if memory is None or (total is not None and memory >= total):
        return True
    sharings = [terms.sharing] if terms.sharing is not None else [SharingTerms(strategy=each) for each in Strategy]
    return any(memory == shareable_memory(gpu, sharing) for sharing in sharings)


def _alone(gpu: Gpu, terms: GpuTerms) -> tuple[int | None, ...]:
    """The values of ``computePercent`` with which a claim for all of the memory did not ask for a part of compute."""
    default = default_percent(gpu, terms.sharing) if terms.sharing is not None else ALL_PERCENT
    return (None, ALL_PERCENT, default)


def _consumed(ref: ClaimRef, result: AllocatedDevice, name: str, *, least: int = 1) -> int | None:
    """A consumed capacity, rounded up as the scheduler does; None when the device has no such capacity."""
    text = result.consumed_capacity.get(name) or result.consumed_capacity.get(f"{result.driver}/{name}")
    if text is None:
        return None
    try:
        amount = Quantity.parse(text).as_int()
    except ValueError as error:
        raise _broken(ref, result, f"{name}: {error}") from error
    if not least <= amount < 2**63:
        raise _broken(ref, result, f"{name} is {text}, expected at least {least} and less than 8Ei")
    return amount


def _broken(ref: ClaimRef, result: AllocatedDevice, what: str) -> ClaimError:
    return ClaimError(
        f"the allocation of claim {ref} is invalid: consumed capacity of {result.device}: {what}; "
        "delete the claim and create it again"
    )
