"""Two records of one GPU's faults made one: of two node processes that run at the same time, and of their file. Pure.

During a rolling update two processes watch the same GPUs and share one file. Each sees most of what happens, at
slightly different times; events of the time before it listened it does not see. For each fault the later news wins:
that it was seen, or that recovery was seen. At the same time the fault wins. A fault that only one of them has stays,
because a fault is never removed to say that it is over: it stays as one that is over for an hour.

The result does not depend on the order of the two, and merging twice changes nothing.
"""

from math import inf, nextafter

from msgspec.structs import replace

from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health.fault import (
    MOST_GPUS,
    RANK,
    FaultPhase,
    Faults,
    HealthFault,
    HealthRecord,
    trimmed,
)


def merged_records(own: HealthRecord, other: HealthRecord) -> HealthRecord:
    """All that two records of one boot have; of another boot than ``own``, ``other`` has nothing to add."""
    if not same_boot(own.boot_id, other.boot_id):
        return own
    forgotten = {gpu: max(times) for gpu in (*own.forgotten, *other.forgotten) if (times := _times(gpu, own, other))}
    gpus = {gpu: merged(own.gpus.get(gpu, {}), other.gpus.get(gpu, {})) for gpu in (*own.gpus, *other.gpus)}
    never = float("-inf")  # without what was known of a GPU when it was forgotten
    kept = {
        gpu: {key: fault for key, fault in faults.items() if _news(fault)[0] > forgotten.get(gpu, never)}
        for gpu, faults in list(gpus.items())[:MOST_GPUS]
    }
    return HealthRecord(
        boot_id=own.boot_id, gpus={gpu: faults for gpu, faults in kept.items() if faults}, forgotten=forgotten
    )


def until(record: HealthRecord, clock: float, wall: float) -> HealthRecord:
    """The record with no time after now, whatever became of the clocks: such a time would last for years.

    Only the order of a fault's own times stays: it is seen before it recovers.
    """
    gpus = {
        gpu: {key: _until(fault, clock, wall) for key, fault in known.items()} for gpu, known in record.gpus.items()
    }
    return replace(record, gpus=gpus, forgotten={gpu: min(time, clock) for gpu, time in record.forgotten.items()})


def _until(fault: HealthFault, clock: float, wall: float) -> HealthFault:
    seen, recovered = min(fault.seen, clock), fault.recovered
    return replace(
        fault,
        since=min(fault.since, wall),
        opened=min(fault.opened, clock),
        seen=seen,
        recovered=None if recovered is None else min(recovered, max(clock, nextafter(seen, inf))),
        ended=None if fault.ended is None else min(fault.ended, clock),
    )


def same_boot(first: str, second: str) -> bool:
    """Whether two boot ids are of the same boot; one that could not be read counts as the same."""
    return first == second or not first or not second


def _times(gpu: GpuUuid, *records: HealthRecord) -> list[float]:
    return [record.forgotten[gpu] for record in records if gpu in record.forgotten]


def merged(first: Faults, second: Faults) -> Faults:
    """All faults of both, each as its later news says."""
    both = {key: _newer(fault, second[key]) for key, fault in first.items() if key in second}
    return trimmed({**first, **second, **both})


def _newer(first: HealthFault, second: HealthFault) -> HealthFault:
    if first.phase is second.phase is FaultPhase.OPEN:
        return _both_open(first, second)
    newer = max((first, second), key=_news)
    # What one of them calls a return, the other may not have noticed.
    return replace(newer, repeats=max(first.repeats, second.repeats))


def _both_open(first: HealthFault, second: HealthFault) -> HealthFault:
    """Open since the earlier moment, and as strong as the stronger, since that one's moment."""
    stronger = max((first, second), key=lambda fault: (RANK[fault.severity], -fault.since, fault.detail))
    return replace(
        max((first, second), key=lambda fault: (fault.seen, fault.detail)),
        severity=stronger.severity,
        since=stronger.since,
        opened=min(first.opened, second.opened),
        seen=max(first.seen, second.seen),
        repeats=max(first.repeats, second.repeats),
        passing=first.passing and second.passing,
    )


def _news(fault: HealthFault) -> tuple[float, int, float, float, float, float, int, bool, str]:
    """When the newest thing was learnt about it; of news of the same time, that it holds is the one to go by.

    The rest only makes the order total.
    """
    learnt, rank = (
        (fault.seen, 2) if fault.recovered is None else (fault.recovered, 1 if fault.ended is not None else 0)
    )
    rest = (fault.ended or 0.0, fault.seen, fault.opened, fault.since, RANK[fault.severity], fault.passing)
    return (learnt, rank, *rest, fault.detail + fault.evidence)
