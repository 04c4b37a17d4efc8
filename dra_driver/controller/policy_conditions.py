"""The condition of a policy, and its whole status as the API server stores it. Pure.

One condition says it in a sentence: ``InForce`` is True where every selected GPU has the policy or is left to one of
higher priority on purpose. ``kubectl wait --for=condition=InForce`` works, ``kubectl get -o wide`` shows its message.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from dra_driver.controller.policy_views import PolicyView
from dra_driver.core.model.gpu_node import PolicyCount, PolicyStatus
from dra_driver.core.text import printable
from dra_driver.core.time import rfc3339
from dra_driver.core.wire import to_wire

CONDITION: Final = "InForce"
_LONGEST: Final = 1024
_SHOWN: Final = 3
_KEPT: Final = "so what applied before stays"


def status_of(policy: PolicyView, totals: PolicyStatus, now: datetime) -> dict[str, Any] | None:
    """The new ``status`` of the object; None where the present one says the same already."""
    wanted = to_wire(totals)
    condition = _condition(policy, totals)
    present = _present(policy.status)
    is_same = present is not None and present.get("status") == condition["status"]
    since = present.get("lastTransitionTime") if present is not None and is_same else None
    stamp = since if isinstance(since, str) else rfc3339(now)
    wanted["conditions"] = [*_foreign(policy.status), {**condition, "lastTransitionTime": stamp}]
    return None if wanted == dict(policy.status) else wanted


def _condition(policy: PolicyView, totals: PolicyStatus) -> dict[str, Any]:
    status, reason, message = _judged(policy, totals)
    return {
        "type": CONDITION,
        "status": status,
        "observedGeneration": totals.observed_generation or 0,
        "reason": reason,
        "message": printable(message)[:_LONGEST],
    }


def _judged(policy: PolicyView, totals: PolicyStatus) -> tuple[str, str, str]:
    """Status, reason and message; of several reasons the worst."""
    done = f"in force on {_of(totals.in_force, totals.selected)}"
    first = _first_message(totals)
    if totals.refused.nodes:
        # An object that a node cannot read selects nothing there.
        done = f"; {done}" if totals.selected.gpus else ""
        return "False", "Refused", f"refused by {_many(totals.refused.nodes, 'node')}{first}, {_KEPT}{done}"
    if totals.conflicting.gpus:
        others = sorted({name for place in totals.conflicting.places for name in place.policies})
        with_ = f" with {', '.join(others)}" if others else ""
        return "False", "Conflicting", f"conflicts on {_gpus(totals.conflicting)}{with_}, {_KEPT}; {done}"
    if (totals.observed_generation or 0) < policy.generation:
        return "Unknown", "RollingOut", f"some nodes have not applied the newest spec yet; {done}"
    if totals.waiting.gpus:
        verb = "waits" if totals.waiting.gpus == 1 else "wait"
        return "False", "Waiting", f"{_gpus(totals.waiting)} {verb}{_for_claims(totals.waiting)}; {done}"
    if not totals.selected.gpus:
        return "False", "NothingSelected", "selects no GPU of a node that tells its GPUs"
    if not totals.in_force.gpus:
        return "False", "Outranked", f"policies of higher priority apply to all of its {_gpus(totals.selected)}"
    left = f"; others of higher priority apply to {_gpus(totals.outranked)}" if totals.outranked.gpus else ""
    return "True", "InForce", f"{done}{left}"


def _first_message(totals: PolicyStatus) -> str:
    said = next((place.message for place in totals.refused.places if place.message), None)
    return f" ({said})" if said else ""


def _for_claims(waiting: PolicyCount) -> str:
    """`` for team/a, team/b and others to end``; the places name the first."""
    claims = sorted({claim for place in waiting.places for claim in place.claims})
    others = " and others" if len(claims) > _SHOWN else ""
    return f" for {', '.join(claims[:_SHOWN])}{others} to end" if claims else ""


def _of(part: PolicyCount, whole: PolicyCount) -> str:
    """``12 of 16 GPUs of 2 nodes``."""
    return f"{part.gpus} of {_gpus(whole)} of {_many(whole.nodes, 'node')}"


def _gpus(count: PolicyCount) -> str:
    return _many(count.gpus, "GPU")


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _present(status: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((item for item in _conditions(status) if item.get("type") == CONDITION), None)


def _foreign(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Conditions that another writer has put there stay."""
    return [item for item in _conditions(status) if item.get("type") != CONDITION]


def _conditions(status: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found = status.get("conditions")
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
