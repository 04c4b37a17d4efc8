"""What each namespace may have by its ResourceQuotas, and what it has. Pure.

Kubernetes counts what claims request, by class: ``<class>.deviceclass.resource.k8s.io/devices`` (also through a class'
extended resource, ``requests.<name>``), and objects: ``count/resourceclaims.resource.k8s.io``. Source:
kubernetes/kubernetes pkg/quota/v1/evaluator/core/resource_claims.go.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.quantity import Quantity
from dra_driver.kube.devices import results_of
from dra_driver.kubectl.usage.device_use import text

DEVICES: Final = ".deviceclass.resource.k8s.io/devices"
CLAIMS: Final = "count/resourceclaims.resource.k8s.io"
_REQUESTS: Final = "requests."


class QuotaRow(Struct, frozen=True, kw_only=True):
    """One limit of one quota. ``hard`` and ``used`` are counts, ``used`` None until Kubernetes has counted; ``idle``
    are devices of idle claims that count against it, None where that is not known."""

    namespace: str
    quota: str
    limit: str
    device_class: str = ""
    hard: int
    used: int | None
    idle: int | None = None

    @property
    def left(self) -> int | None:
        """What may still be requested; None while that is not known."""
        return None if self.used is None else max(0, self.hard - self.used)


class UnlimitedClass(Struct, frozen=True, kw_only=True):
    """Devices of a class that a namespace has, and no quota counts."""

    namespace: str
    device_class: str
    devices: int


def rows(
    quotas: Iterable[Mapping[str, Any]], extended: Iterable[str], idle: Mapping[tuple[str, str], int] | None = None
) -> list[QuotaRow]:
    """The limits about devices and claims. ``extended`` are names of extended resources that classes map; ``idle``
    counts devices of idle claims by namespace and class."""
    wanted = {f"{_REQUESTS}{name}" for name in extended}
    found = []
    for quota in quotas:
        metadata, status = quota.get("metadata") or {}, quota.get("status") or {}
        hard, used = (quota.get("spec") or {}).get("hard") or {}, status.get("used") or {}
        for limit, amount in hard.items() if isinstance(hard, dict) else ():
            if not (limit.endswith(DEVICES) or limit == CLAIMS or limit in wanted):
                continue
            count = _count(amount)
            if count is None:
                continue
            namespace, device_class = text(metadata.get("namespace")), limit.removesuffix(DEVICES)
            is_class = limit.endswith(DEVICES)
            found.append(
                QuotaRow(
                    namespace=namespace,
                    quota=text(metadata.get("name")),
                    limit=text(limit),
                    device_class=text(device_class) if is_class else "",
                    hard=count,
                    used=_count(used.get(limit)) if isinstance(used, dict) else None,
                    idle=None if idle is None or not is_class else idle.get((namespace, device_class), 0),
                )
            )
    return sorted(found, key=lambda row: (row.namespace, row.quota, row.limit))


def unlimited(claims: Iterable[Mapping[str, Any]], found: Sequence[QuotaRow]) -> list[UnlimitedClass]:
    """Classes of which a namespace has devices without any limit, in the order of names."""
    limited = {(row.namespace, row.device_class) for row in found}
    counts: dict[tuple[str, str], int] = {}
    for claim in claims:
        namespace = text((claim.get("metadata") or {}).get("namespace")) or "default"
        for request, devices in allocated(claim).items():
            device_class = class_of(claim, request)
            if device_class and (namespace, device_class) not in limited:
                counts[namespace, device_class] = counts.get((namespace, device_class), 0) + devices
    return [UnlimitedClass(namespace=key[0], device_class=key[1], devices=counts[key]) for key in sorted(counts)]


def allocated(claim: Mapping[str, Any]) -> dict[str, int]:
    """Devices by request; a request with alternatives is named ``request/alternative``. Admin access counts not."""
    counts: dict[str, int] = {}
    for result in results_of(claim):
        if not result.get("adminAccess"):
            name = str(result.get("request") or "")
            counts[name] = counts.get(name, 0) + 1
    return counts


def class_of(claim: Mapping[str, Any], request: str) -> str:
    """The class of a request, or of the alternative that was allocated; "" where the claim has no such request."""
    name, _, alternative = request.partition("/")
    for item in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        if item.get("name") != name:
            continue
        ways = item.get("firstAvailable") or ()
        chosen = next((way for way in ways if way.get("name") == alternative), None) if alternative else None
        return text((chosen or item.get("exactly") or {}).get("deviceClassName"))
    return ""


def _count(amount: Any) -> int | None:
    try:
        return Quantity.parse(str(amount)).as_int() if isinstance(amount, str | int) else None
    except ValueError:
        return None
