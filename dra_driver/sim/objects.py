"""Small facts about pods, claims and conditions that several components of the embedded cluster need.

Pure functions over API objects, following pkg/api/v1/pod and k8s.io/dynamic-resource-allocation resourceclaim.
"""

from collections.abc import Iterator
from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, rfc3339

CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
FINALIZER = "resource.kubernetes.io/delete-protection"


def key(obj: Obj) -> tuple[str, str]:
    """Namespace and name."""
    return dig(obj, "metadata", "namespace", default=""), obj["metadata"]["name"]


def uid(obj: Obj) -> str:
    """metadata.uid"""
    return str(obj["metadata"]["uid"])


def is_finished(pod: Obj) -> bool:
    """Whether all containers have stopped for good."""
    return dig(pod, "status", "phase") in ("Succeeded", "Failed")


def is_deleted(obj: Obj) -> bool:
    """Whether deletion has begun."""
    return dig(obj, "metadata", "deletionTimestamp") is not None


def is_ready(pod: Obj) -> bool:
    """Whether the pod's Ready condition holds."""
    return condition(pod, "Ready") == "True"


def condition(obj: Obj, name: str) -> str:
    """The status of a condition, "" when there is none."""
    return next((item["status"] for item in entries(obj, "status", "conditions") if item.get("type") == name), "")


def owned_by(obj: Obj, owner: Obj) -> bool:
    """Whether ``owner`` is the object's controller."""
    return any(
        item.get("controller") and item.get("uid") == uid(owner) for item in entries(obj, "metadata", "ownerReferences")
    )


def owner_reference(owner: Obj, *, blocks_deletion: bool = True) -> Obj:
    """What makes an object the property of ``owner``, and go with it."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": blocks_deletion,
    }


def claim_names(pod: Obj) -> Iterator[tuple[str, str | None]]:
    """The pod's claims: their name in the pod and the ResourceClaim's name, None while that does not exist yet.

    A claim that the controller decided not to make has an entry without a name and is left out.
    """
    generated = {item["name"]: item for item in entries(pod, "status", "resourceClaimStatuses")}
    for item in entries(pod, "spec", "resourceClaims"):
        if item.get("resourceClaimName"):
            yield item["name"], item["resourceClaimName"]
        elif item["name"] not in generated:
            yield item["name"], None
        elif generated[item["name"]].get("resourceClaimName"):
            yield item["name"], generated[item["name"]]["resourceClaimName"]


def extended_claim_name(pod: Obj) -> str | None:
    """The ResourceClaim that the scheduler made for the pod's extended resources, None when it made none."""
    name: str | None = dig(pod, "status", "extendedResourceClaimStatus", "resourceClaimName")
    return name or None


def set_condition(
    obj: Obj,
    name: str,
    status: str,
    now: datetime,
    *,
    reason: str = "",
    message: str = "",
    stamp: str = "lastTransitionTime",
) -> bool:
    """Put a condition into the object's status; whether anything changed. The time moves only with the status."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    wanted = {"type": name, "status": status}
    if reason:
        wanted["reason"] = reason
    if message:
        wanted["message"] = message
    old = next((item for item in conditions if item.get("type") == name), None)
    if old is None:
        conditions.append({**wanted, stamp: rfc3339(now)})
        return True
    if all(old.get(field, "") == wanted.get(field, "") for field in ("status", "reason", "message")):
        return False
    moment = old.get(stamp) if old.get("status") == status else rfc3339(now)
    conditions[conditions.index(old)] = {**wanted, stamp: moment}
    return True
