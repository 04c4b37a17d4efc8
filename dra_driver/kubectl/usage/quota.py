"""Compare the namespaces' ResourceQuotas for devices and claims with their devices.

Kubernetes counts requests by class, ``<class>.deviceclass.resource.k8s.io/devices`` or a class' extended resource
``requests.<name>``, and claims, ``count/resourceclaims.resource.k8s.io``. Source: kubernetes/kubernetes
pkg/quota/v1/evaluator/core/resource_claims.go.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct, field

from dra_driver.core.document import JsonDocument, camel
from dra_driver.kube.devices import HeldClaim
from dra_driver.kube.objects.resource import DeviceClaim, ResourceClaimSpec
from dra_driver.kube.shapes import MetadataPart
from dra_driver.kubectl.usage.device_use import amount_in, text

DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
_REQUESTS: Final = "requests."


class QuotaSpec(Struct, frozen=True):
    hard: dict[str, object] = {}


class QuotaStatus(Struct, frozen=True):
    used: dict[str, object] = {}


class ResourceQuota(Struct, frozen=True):
    metadata: MetadataPart = MetadataPart()
    spec: QuotaSpec = QuotaSpec()
    status: QuotaStatus = QuotaStatus()


class CountedClaim(HeldClaim, frozen=True, kw_only=True):
    """A claim with its devices and their classes."""

    spec: ResourceClaimSpec = ResourceClaimSpec()


class QuotaRow(Struct, frozen=True, kw_only=True, rename=camel):
    """One limit of one quota; ``quota`` is "" and ``hard`` None for a class without a limit or if unreadable. ``used``
    is None until Kubernetes has counted. ``idle`` are devices of idle claims that count against it, None if unknown. A
    quota of Kueue is ``clusterqueue/NAME``, its ``used`` the reserved part, and memory in bytes."""

    namespace: str
    quota: str = ""
    limit: str = ""
    device_class: str = ""
    hard: int | None = field(name="hardCount", default=None)
    used: int | None = field(name="usedCount", default=None)
    left: int | None = field(name="leftCount", default=None)
    idle: int | None = field(name="idleCount", default=None)


class QuotaList(JsonDocument, frozen=True, kw_only=True):
    items: Sequence[QuotaRow]


def rows(
    quotas: Iterable[ResourceQuota], extended: Iterable[str], idle: Mapping[tuple[str, str], int] | None = None
) -> list[QuotaRow]:
    """Return the limits about devices and claims. ``extended`` are the extended resources of classes; ``idle`` counts
    devices of idle claims by namespace and class."""
    wanted = {CLAIMS, *(f"{_REQUESTS}{name}" for name in extended)}
    found = []
    for quota in quotas:
        namespace = text(quota.metadata.namespace)
        for limit, amount in quota.spec.hard.items():
            count, is_class = amount_in(amount), limit.endswith(DEVICES)
            if count is None or not (is_class or limit in wanted):
                continue
            device_class = limit.removesuffix(DEVICES) if is_class else ""
            found.append(
                QuotaRow(
                    namespace=namespace,
                    quota=text(quota.metadata.name),
                    limit=text(limit),
                    device_class=text(device_class),
                    hard=count,
                    used=(used := amount_in(quota.status.used.get(limit))),
                    left=None if used is None else max(0, count - used),
                    idle=None if idle is None or not is_class else idle.get((namespace, device_class), 0),
                )
            )
    return sorted(found, key=lambda row: (row.namespace, row.quota, row.limit))


def queue_rows(queues: Iterable[Mapping[str, Any]]) -> list[QuotaRow]:
    """Return the quotas for devices (qualified names) of Kueue's ClusterQueues, and the reserved parts."""
    found = []
    for queue in queues:
        groups = (queue.get("spec") or {}).get("resourceGroups") or ()
        hard = _sums([flavor for group in groups for flavor in group["flavors"]], "nominalQuota")
        used = _sums((queue.get("status") or {}).get("flavorsReservation") or (), "total")
        name = f"clusterqueue/{text(queue['metadata']['name'])}"
        for limit in sorted(each for each in hard if "/" in each):
            most, reserved = hard[limit], used.get(limit)
            left = None if most is None or reserved is None else max(0, most - reserved)
            found.append(QuotaRow(namespace="", quota=name, limit=text(limit), hard=most, used=reserved, left=left))
    return found


def _sums(flavors: Iterable[Mapping[str, Any]], field: str) -> dict[str, int | None]:
    """Return the sums by resource, None if an amount is unreadable."""
    found: dict[str, int | None] = {}
    for each in (each for flavor in flavors for each in flavor.get("resources") or ()):
        name, amount = str(each["name"]), amount_in(each.get(field))
        known = found.get(name, 0)
        found[name] = None if known is None or amount is None else known + amount
    return found


def unlimited(claims: Iterable[CountedClaim], found: Sequence[QuotaRow]) -> list[QuotaRow]:
    """Return the unlimited classes with devices in a namespace, sorted."""
    limited = {(row.namespace, row.device_class) for row in found}
    counts = Counter(
        (text(claim.metadata.namespace) or "default", name) for claim in claims for name in classes_held(claim)
    )
    return [
        QuotaRow(namespace=key[0], device_class=key[1], used=counts[key])
        for key in sorted(counts)
        if key[1] and key not in limited
    ]


def classes_held(claim: CountedClaim) -> list[str]:
    """Return the class of each device without admin access; "" for an unknown request.

    Devices of an alternative name ``request/alternative``.
    """
    classes: dict[str, str] = {}
    for request in (claim.spec.devices or DeviceClaim()).requests:
        ways = {f"{request.name}/{way.name}": way.device_class_name for way in request.first_available}
        classes |= {request.name: request.exactly.device_class_name} if request.exactly else ways
    return [text(classes.get(str(result.request))) for result in claim.devices if not result.admin_access]
