"""Functions over pods, claims and conditions, as in pkg/api/v1/pod of kubernetes/kubernetes and
k8s.io/dynamic-resource-allocation resourceclaim."""

from collections.abc import Iterator
from datetime import datetime

from dra_driver.core.time import rfc3339
from dra_driver.kube.claims import POD_CLAIM_ANNOTATION
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries

CLAIM_ANNOTATION = POD_CLAIM_ANNOTATION
FINALIZER = "resource.kubernetes.io/delete-protection"


def key(obj: Obj) -> tuple[str, str]:
    return dig(obj, "metadata", "namespace", default=""), obj["metadata"]["name"]


def uid(obj: Obj) -> str:
    return str(obj["metadata"]["uid"])


def is_finished(pod: Obj) -> bool:
    return dig(pod, "status", "phase") in ("Succeeded", "Failed")


def is_deleted(obj: Obj) -> bool:
    return dig(obj, "metadata", "deletionTimestamp") is not None


def is_ready(pod: Obj) -> bool:
    return condition(pod, "Ready") == "True"


def condition(obj: Obj, name: str) -> str:
    return next((item["status"] for item in entries(obj, "status", "conditions") if item.get("type") == name), "")


def owned_by(obj: Obj, owner: Obj) -> bool:
    return any(
        item.get("controller") and item.get("uid") == uid(owner) for item in entries(obj, "metadata", "ownerReferences")
    )


def is_reserved(claim: Obj, pod: Obj) -> bool:
    return any(user.get("uid") == uid(pod) for user in entries(claim, "status", "reservedFor"))


def generated_claims(pod: Obj) -> set[str]:
    """Names in the pod of the claims that are made from templates."""
    return {item["name"] for item in entries(pod, "spec", "resourceClaims") if item.get("resourceClaimTemplateName")}


def owner_reference(owner: Obj) -> Obj:
    """An ownerReferences entry that makes ``owner`` the controller; the garbage collector then deletes dependents."""
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": owner["metadata"]["name"],
        "uid": uid(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claim_names(pod: Obj) -> Iterator[tuple[str, str | None]]:
    """Each claim's name in the pod with the name of its ResourceClaim, None while it does not exist yet. Omits claims
    that the controller decided not to create: their status entry has no ResourceClaim name."""
    generated = {item["name"]: item for item in entries(pod, "status", "resourceClaimStatuses")}
    for item in entries(pod, "spec", "resourceClaims"):
        if item.get("resourceClaimName"):
            yield item["name"], item["resourceClaimName"]
        elif item["name"] not in generated:
            yield item["name"], None
        elif generated[item["name"]].get("resourceClaimName"):
            yield item["name"], generated[item["name"]]["resourceClaimName"]


def extended_claim_name(pod: Obj) -> str | None:
    """The ResourceClaim that the scheduler created for the pod's extended resources, None without one."""
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
) -> bool:
    """Set a condition in the status; returns whether anything changed. Its time changes only with its status."""
    conditions = obj.setdefault("status", {}).setdefault("conditions", [])
    wanted = {"type": name, "status": status}
    if reason:
        wanted["reason"] = reason
    if message:
        wanted["message"] = message
    old = next((item for item in conditions if item.get("type") == name), None)
    if old is None:
        conditions.append({**wanted, "lastTransitionTime": rfc3339(now)})
        return True
    if all(old.get(field, "") == wanted.get(field, "") for field in ("status", "reason", "message")):
        return False
    moment = old.get("lastTransitionTime") if old.get("status") == status else rfc3339(now)
    conditions[conditions.index(old)] = {**wanted, "lastTransitionTime": moment}
    return True
