"""What one share of a GPU may use, from the capacity that the scheduler says it consumed.

Pure. Owns the capacities' names and bounds, and the rule that whoever consumed everything has the GPU alone. Refuses to
know what enforces a share (``sharing/``) and other claims' shares (`conflicts`). Source: ``consumedCapacity`` of
``DeviceRequestAllocationResult`` (KEP-5075).
"""

from dra_driver.claims.entry import AssignedShare
from dra_driver.claims.planning.conflicts import TOTAL_PERCENT
from dra_driver.errors import ClaimError
from dra_driver.model.claim import AllocatedDevice, ClaimRef
from dra_driver.model.gpu import Gpu
from dra_driver.model.terms import GpuTerms
from dra_driver.quantity import Quantity

MEMORY = "memory"
PERCENT = "computePercent"
SHARES = "shares"
MIB = 2**20


def share_of(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, terms: GpuTerms) -> AssignedShare | None:
    """The share of ``gpu`` that ``result`` is; None when it is all of it.

    Raises `ClaimError` for numbers that no scheduler can have written, and for a share of a GPU that is not shared.
    """
    total = published_memory(gpu)
    memory = _consumed(ref, result, MEMORY)
    percent = _consumed(ref, result, PERCENT, least=0)
    count = _consumed(ref, result, SHARES)
    all_memory = memory is None or (total is not None and memory >= total)
    if all_memory and percent in _alone(total, terms):
        return None
    if terms.sharing is None:
        policy = f"policy {terms.policy} does not share" if terms.policy else "no policy shares"
        raise ClaimError(
            f"device {result.device} of claim {ref} is a share of a GPU, but {policy} that GPU (any more); "
            "delete the pod so that it is scheduled again"
        )
    if percent is not None and percent > TOTAL_PERCENT:
        raise _broken(ref, result, f"{PERCENT} is {percent}, expected 0 to {TOTAL_PERCENT}")
    if memory is not None and memory < MIB:
        raise _broken(ref, result, f"{MEMORY} is {memory} bytes, expected at least 1Mi")
    return AssignedShare(
        memory=memory,
        percent=TOTAL_PERCENT if percent is None else percent,
        # None where it was granted before there was a limit: the scheduler does not count it against a later one.
        count=0 if count is None else count,
        total_memory=total,
        max_shares=terms.sharing.max_shares,
    )


def _alone(total: int | None, terms: GpuTerms) -> tuple[int | None, ...]:
    """What a claim with all of the memory has consumed of compute when it asked for no part of it."""
    default = terms.sharing.default_percent if terms.sharing is not None and total is not None else TOTAL_PERCENT
    return (None, TOTAL_PERCENT, default)


def published_memory(gpu: Gpu) -> int | None:
    """What of a shared GPU's memory can be asked for, in bytes: whole MiB, because shares are steps of 1Mi."""
    return None if gpu.memory_bytes is None else gpu.memory_bytes // MIB * MIB


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
        f"the allocation of claim {ref} cannot be understood: consumed capacity of {result.device}: {what}; "
        "delete the claim and make it again"
    )
