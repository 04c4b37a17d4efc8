"""Device taints and tolerations.

Follows resourceclaim/devicetoleration.go of k8s.io/dynamic-resource-allocation: only NoSchedule and NoExecute prevent
the allocation of a device; other effects, also those of later versions, are ignored.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.scheduler.allocation.events import Tainted

Wire = Mapping[str, Any]
_BLOCKING: Final = ("NoSchedule", "NoExecute")


def untolerated(taints: Sequence[Wire], tolerations: Sequence[Wire], *, every_effect: bool = False) -> Tainted | None:
    """The first taint that prevents the allocation, None if there is none. ``every_effect``: see `SchedulerQuirks`."""
    for taint in taints:
        if (every_effect or taint.get("effect") in _BLOCKING) and not any(
            tolerates(item, taint) for item in tolerations
        ):
            return Tainted(key=taint.get("key") or "", value=taint.get("value") or "", effect=taint.get("effect") or "")
    return None


def tolerates(toleration: Wire, taint: Wire) -> bool:
    """Whether the toleration covers the taint; an empty effect covers all effects, an empty key all keys."""
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("key") and toleration["key"] != taint.get("key"):
        return False
    operator = toleration.get("operator") or "Equal"
    if operator == "Equal":
        return (toleration.get("value") or "") == (taint.get("value") or "")
    return bool(operator == "Exists")
