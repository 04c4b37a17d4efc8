"""Answer for `kubectl dra smoke` whether a pod would be placed on a node. Busy devices are not a failure. No I/O."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from dra_driver.core.errors import DraError
from dra_driver.diagnose.smoke import Fit, TryKind
from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kubectl.explain.explanation import explain_pods
from dra_driver.kubectl.explain.report import Answer, Explanation
from dra_driver.kubectl.explain.scheduler import SchedulerModel, scheduler_for

Wire = Mapping[str, Any]

_OTHER_KIND: Final = frozenset({"classSelector", "requestSelector", "nodeSelection"})
"""Codes of `explain` for devices that are of another kind."""
_BUSY: Final = {
    "inUse": "allocated",
    "takenByThisPod": "allocated",
    "capacityShort": "allocated to others",
    "counterShort": "in use in another form",
}
_TAINTED: Final = "tainted"


def fits_under(whole: ClusterState) -> Callable[[ClusterState, Wire, Wire, TryKind], Fit]:
    """Return `fit_of` for parts of a cluster's state: the scheduler's version and features are those of the whole."""
    scheduler = scheduler_for(whole)
    return lambda state, pod, claim, kind: fit_of(state, pod, claim, kind, scheduler)


def fit_of(state: ClusterState, pod: Wire, claim: Wire, kind: TryKind, scheduler: SchedulerModel) -> Fit:
    """Whether the pod with its claim would be placed on the one node of ``state`` now."""
    try:
        found = explain_pods(with_objects(state, [claim]), [pod], scheduler=scheduler)[0]
    except DraError as error:
        return Fit(fits=False, answer=str(error))
    if found.verdict.answer is Answer.FITS:
        return Fit(fits=True)
    return Fit(fits=False, busy=_busy(found, kind), answer=_answer(found))


def _busy(found: Explanation, kind: TryKind) -> str:
    """A sentence if only the use or taints of devices, or the node's other pods, stand in the way."""
    if any(cause.blocks for cause in found.causes):
        return ""
    other = [reason.message for reason in found.nodes if not reason.by_devices]
    if other:
        return f"no pod is placed there: {other[0]}"
    counts: dict[str, int] = {}
    tainted = ""
    for reason in (reason for request in found.requests for reason in request.reasons):
        if reason.code in _OTHER_KIND:
            continue
        if reason.code == _TAINTED:
            tainted, word = reason.message, "tainted"
        elif reason.code in _BUSY:
            word = _BUSY[reason.code]
        else:
            return ""
        counts[word] = counts.get(word, 0) + reason.devices
    return _counted(kind, counts, tainted) if counts else ""


def _counted(kind: TryKind, counts: Mapping[str, int], tainted: str) -> str:
    total = sum(counts.values())
    if set(counts) == {"allocated"} and kind.form == "gpu":
        return f"all {total} GPUs are allocated" if total > 1 else "its only GPU is allocated"
    listed = ", ".join(f"{count} {word}" for word, count in counts.items())
    noun = {"gpu": "GPUs", "mig": f"places for {kind.name}", "shared": "shared GPUs"}[kind.form]
    why = f" ({tainted})" if tainted else ""
    return f"none of {total} {noun} is free: {listed}{why}" if total > 1 else f"not free: {listed}{why}"


def _answer(found: Explanation) -> str:
    """The verdict, with causes and the fix that it does not say itself."""
    text = found.verdict.sentence
    more = [cause.message for cause in found.causes if cause.blocks]
    more += [found.nearest_miss.fix] if found.nearest_miss is not None else []
    for part in more:
        text = text if part in text else f"{text}; {part}"
    return text
