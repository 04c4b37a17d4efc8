"""Read the devices of resource.k8s.io/v1 objects whose shapes were checked (`kube.state`). Null and missing parts read
as empty; a part of another type raises AttributeError or TypeError, except in a `HeldClaim`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from dra_driver.core.model.health import TAINT_KEYS
from dra_driver.core.wire import from_wire

Wire = Mapping[str, Any]

# --- Who has which devices, from the fields that say it: a claim with another odd field still holds its devices.


class HeldResult(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of ``status.allocation.devices.results``. Of the first three "" is unknown."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    request: object = ""
    share_id: object = field(default="", name="shareID")
    admin_access: object = False
    consumed_capacity: dict[str, object] = {}

    @property
    def key(self) -> tuple[str, str, str]:
        return self.driver, self.pool, self.device


class Consumer(Struct, frozen=True, kw_only=True, rename="camel"):
    """One entry of ``status.reservedFor``."""

    resource: object = ""
    name: object = ""
    uid: object = ""
    api_group: object = ""


class _MatchField(Struct, frozen=True, kw_only=True):
    key: object = ""
    values: tuple[str, ...] = ()


class _Term(Struct, frozen=True, kw_only=True, rename="camel"):
    match_fields: tuple[_MatchField, ...] = ()


class _NodeSelector(Struct, frozen=True, kw_only=True, rename="camel"):
    node_selector_terms: tuple[_Term, ...] = ()


class _Devices(Struct, frozen=True, kw_only=True):
    results: tuple[HeldResult, ...] = ()


class _Allocation(Struct, frozen=True, kw_only=True, rename="camel"):
    devices: _Devices = _Devices()
    node_selector: _NodeSelector = _NodeSelector()


class _ClaimStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class HeldMeta(Struct, frozen=True, kw_only=True, rename="camel"):
    name: object = ""
    namespace: object = ""
    uid: object = ""
    creation_timestamp: object = ""
    deletion_timestamp: object = ""
    annotations: dict[str, object] = {}


class HeldClaim(Struct, frozen=True, kw_only=True):
    """A claim with its devices and users."""

    metadata: HeldMeta = HeldMeta()
    status: _ClaimStatus = _ClaimStatus()

    @property
    def devices(self) -> tuple[HeldResult, ...]:
        return self.status.allocation.devices.results if self.status.allocation else ()

    @property
    def users(self) -> tuple[str, ...]:
        """The names of pods for which it is reserved; other users as ``resource/name``."""
        every = self.status.reserved_for
        return tuple(str(user.name) if user.resource == "pods" else f"{user.resource}/{user.name}" for user in every)


C = TypeVar("C", bound=HeldClaim)


def held_claim(kind: type[C], item: Wire) -> tuple[C, bool]:
    """Return the claim without malformed parts, and whether all its devices are valid. Raises ValueError."""
    claim = from_wire(kind, item)
    try:
        stated = len(results_of(item))
    except (AttributeError, TypeError):
        return claim, False
    return claim, stated == len(claim.devices) and not any("" in device.key for device in claim.devices)


def allocation_results(allocation: Wire | None) -> Sequence[Wire]:
    results: Sequence[Wire] = ((allocation or {}).get("devices") or {}).get("results") or ()
    return results


def results_of(claim: Wire) -> Sequence[Wire]:
    return allocation_results((claim.get("status") or {}).get("allocation"))


def users_of(claim: Wire) -> Sequence[Wire]:
    """``status.reservedFor``: who may use the claim, pods and others."""
    users: Sequence[Wire] = (claim.get("status") or {}).get("reservedFor") or ()
    return users


def user_label(user: Wire) -> str:
    """Return a pod's name, and the name of another user with its resource: ``podgroups/pair``."""
    return str(user.get("name")) if is_pod(user) else f"{user.get('resource')}/{user.get('name')}"


def is_pod(user: Wire) -> bool:
    """Return whether an entry of ``reservedFor`` names a pod: the core API group is absent or empty."""
    return user.get("resource") == "pods" and not user.get("apiGroup")


def pool_of(item: Wire) -> tuple[str, str]:
    """Driver and name of a ResourceSlice's pool: the name alone is not unique."""
    spec = item.get("spec") or {}
    return str(spec.get("driver") or ""), str((spec.get("pool") or {}).get("name") or "")


def generation_of(item: Wire) -> int:
    """``spec.pool.generation`` of a ResourceSlice. Left out it is 0, as in Kubernetes' own clients."""
    return int(((item.get("spec") or {}).get("pool") or {}).get("generation") or 0)


def newest_slices(slices: Iterable[Wire]) -> list[Wire]:
    """Return the ResourceSlices of each pool's newest generation, in their order. The scheduler ignores older ones."""
    every = list(slices)
    newest: dict[tuple[str, str], int] = {}
    for item in every:
        newest[pool_of(item)] = max(newest.get(pool_of(item), 0), generation_of(item))
    return [item for item in every if generation_of(item) == newest[pool_of(item)]]


_HEALTH_KEYS: Final = frozenset(TAINT_KEYS.values())


def unhealthy_by(device: Wire) -> tuple[str, ...]:
    """The health taints of a device that keep new claims away, as ``key=value``. A drain or a policy is not one."""
    found = [taint for taint in device.get("taints") or () if is_health_taint(taint.get("key"), taint.get("effect"))]
    return tuple(f"{taint['key']}={taint['value']}" if taint.get("value") else str(taint["key"]) for taint in found)


def is_health_taint(key: object, effect: object) -> bool:
    """Return whether such a taint marks a broken device; effect None only informs."""
    return key in _HEALTH_KEYS and effect != "None"


def attribute_of(attributes: Wire | None, driver: str, name: str) -> Wire:
    """The value of a device's attribute, such as ``{"string": "GPU-1"}``; empty without it. A name without a domain is
    in the domain of the driver (resource/v1 ``QualifiedName``)."""
    known = attributes or {}
    value: Wire = known.get(name) or known.get(f"{driver}/{name}") or {}
    return value if isinstance(value, Mapping) else {}


def attribute_text(attributes: Wire | None, driver: str, name: str) -> str:
    """The text of an attribute; "" without it, and for one of another type."""
    value = attribute_of(attributes, driver, name).get("string")
    return value if isinstance(value, str) else ""


def attribute_shown(attributes: Wire | None, driver: str, name: str) -> str:
    """An attribute of any type as text, such as ``1.2.3`` of ``{"version": "1.2.3"}``; "" without it."""
    return str(next(iter(attribute_of(attributes, driver, name).values()), ""))
