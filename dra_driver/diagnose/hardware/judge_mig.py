"""Judge changes of MIG beside a second NVML client. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.diagnose.hardware.judging import IN_USE, judgement
from dra_driver.diagnose.hardware.values import Facts, Judgement

COMPLETED: Final = 3
NOT_RESTORED: Final = "the GPU is not as it was: restore it by hand with nvidia-smi -mig and nvidia-smi mig"


def first_create(facts: Facts, _survey: Facts) -> Judgement:
    """Check 12: beside a second client either works or is refused with IN_USE; without one it works."""
    differences = [*_not_restored(facts)]
    for step in ("mode beside client", "create beside client"):
        answer = facts[step]
        if "error" in answer and answer.get("code") != IN_USE:
            differences.append(f"{step}: {_told(answer)}, expected success or code {IN_USE}")
    for step in ("mode alone", "create alone"):
        if "error" in facts[step]:
            differences.append(f"{step}: {_told(facts[step])}, expected success")
    seen = ", ".join(f"{step}: {_told(facts[step])}" for step in ("mode beside client", "create beside client"))
    return judgement(
        differences,
        seen,
        right="IN_USE is tried again while the call has time, and the process that holds the GPU is named",
        wrong=NOT_RESTORED if any(_not_restored(facts)) else "a partition would fail instead of being tried again",
    )


def subscriptions(facts: Facts, _survey: Facts) -> Judgement:
    """Check 13: an instance that another process has listed can be destroyed, at the latest when that process ended."""
    differences = [*_not_restored(facts)]
    for step in ("mode", "create"):
        if "error" in facts[step]:
            differences.append(f"{step}: {_told(facts[step])}")
    beside, alone = facts.get("destroy beside client", {}), facts.get("destroy alone", {})
    if "error" in beside and beside.get("code") != IN_USE:
        differences.append(f"destroy beside client: {_told(beside)}, expected success or code {IN_USE}")
    if "error" in alone:
        differences.append(f"destroy alone: {_told(alone)}, expected success")
    return judgement(
        differences,
        f"destroying an instance that a second process has listed: {_told(beside)}; after its end: {_told(alone)}",
        right="two node processes during an update do not block each other for longer than one of them lists",
        wrong=NOT_RESTORED if any(_not_restored(facts)) else "unpreparing a claim would fail instead of being retried",
    )


def fabric(facts: Facts, _survey: Facts) -> Judgement:
    """Check 14: the fabric is complete again soon after MIG mode is off."""
    timeline = facts["fabric after"]
    differences = [*_not_restored(facts)]
    if not timeline or timeline[-1][1] != COMPLETED:
        differences.append(f"the fabric's state after MIG was {timeline}, expected {COMPLETED} (completed)")
    return judgement(
        differences,
        f"fabric states (seconds, state) after the last instance: {timeline}",
        right="a whole GPU after partitions waits this long for the fabric",
        wrong=NOT_RESTORED if any(_not_restored(facts)) else "CUDA would fail with code 802 on a whole GPU after MIG",
    )


def _not_restored(facts: Facts) -> Iterator[str]:
    before, after = facts.get("before"), facts.get("after")
    if before != after:
        yield f"before {before}, afterwards {after or 'unknown'}"


def _told(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        return f"{answer['error']} (code {answer.get('code')})"
    return f"ok in {answer['ms']:.0f} ms" if answer else "not tried"
