"""Reads names, users, phases and conditions from single wire objects whose shapes are already checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from dra_driver.kube.devices import users_of

Wire = Mapping[str, Any]


def name_of(item: Wire) -> str:
    metadata = item.get("metadata") or {}
    return str(metadata.get("name") or f"{metadata.get('generateName', '')}*")


def namespace_of(item: Wire) -> str:
    return str((item.get("metadata") or {}).get("namespace") or "default")


def uid_of(item: Wire) -> str:
    return str((item.get("metadata") or {}).get("uid") or "")


def label_of(item: Wire) -> str:
    """Returns ``namespace/name``."""
    return f"{namespace_of(item)}/{name_of(item)}"


def is_deleted(item: Wire) -> bool:
    return bool((item.get("metadata") or {}).get("deletionTimestamp"))


def is_finished(pod: Wire) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def spec_of(item: Wire) -> Wire:
    spec: Wire = item.get("spec") or {}
    return spec


def status_of(item: Wire) -> Wire:
    status: Wire = item.get("status") or {}
    return status


def allocation_of(claim: Wire) -> Wire | None:
    found: Wire | None = status_of(claim).get("allocation")
    return found


def is_reserved_for(claim: Wire, pod: Wire) -> bool:
    """Compares by UID; by name if the pod has no UID, as in manifests."""
    uid = uid_of(pod)
    for user in users_of(claim):
        if (user.get("uid") and uid and user["uid"] == uid) or (not uid and user.get("name") == name_of(pod)):
            return True
    return False


def condition_of(pod: Wire, kind: str) -> Wire:
    """Returns the condition of that type, or an empty mapping."""
    conditions: Sequence[Wire] = status_of(pod).get("conditions") or ()
    return next((item for item in conditions if item.get("type") == kind), {})


def is_owned_by(item: Wire, owner: Wire) -> bool:
    owners: Sequence[Wire] = (item.get("metadata") or {}).get("ownerReferences") or ()
    return any(reference.get("uid") == uid_of(owner) for reference in owners)
