"""Reads ResourceClaims and reduces their allocation to values, after checking every field that it uses.

Users and controllers write claims, and strings of a claim end in file names and container environments.
``node/claims/`` looks up the devices. Limits: kubernetes/kubernetes pkg/apis/resource/validation/validation.go and
resource/v1/types.go.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

from dra_driver.core.errors import (
    ClaimError,
    ClaimNotAllocatedError,
    ClaimReplacedError,
    DraError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, OpaqueConfig
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName
from dra_driver.core.text import quoted
from dra_driver.kube import paths
from dra_driver.kube.names import is_label, is_pool_name

MAX_RESULTS = 32
MAX_CONFIGS = 64
MAX_CAPACITIES = 32
MAX_PARAMETERS_BYTES = 10 * 1024
MAX_PARAMETERS_DEPTH = 32  # this driver's own: its kinds nest less, and deeper ones exhaust Python's stack

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_QUANTITY = re.compile(r"[+-]?[0-9.]{1,40}([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?")


class Getter(Protocol):
    """The part of ``rest.RestClient`` that reading a claim needs."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...


class BoundedGetter(Protocol):
    """The same with a deadline of the caller, and for several objects."""

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None
    ) -> dict[str, Any]: ...
    def get_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> list[dict[str, Any] | KubernetesApiError]: ...


class ApiClaimReader:
    """Reads claims with one GET each. Thread-safe."""

    def __init__(self, rest: BoundedGetter, driver_name: str) -> None:
        self._rest = rest
        self._driver = driver_name

    def read(self, ref: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
        """The claim with this driver's results and configs, in the object's order.

        Takes at most ``within_s``; None means the client's own limit. Raises ClaimReplacedError when it is gone or
        another object has its name, ClaimNotAllocatedError when no result is for this driver, ClaimError when it is
        malformed, KubernetesApiError when it could not be read.
        """
        path = _path(ref)
        try:
            document = self._rest.get(path, within_s=within_s)
        except KubernetesApiError as error:
            found = _of_claim(ref, error)
            if found is error:
                raise
            raise found from error
        return allocated_claim(document, ref, self._driver)

    def read_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> dict[ClaimUid, AllocatedClaim | DraError]:
        """The same for several claims, read side by side; errors are returned."""
        found: dict[ClaimUid, AllocatedClaim | DraError] = {}
        wanted: list[tuple[ClaimRef, str]] = []
        for ref in refs:
            try:
                wanted.append((ref, _path(ref)))
            except ClaimError as error:
                found[ref.uid] = error
        documents = self._rest.get_all([path for _, path in wanted], within_s=within_s)
        for (ref, _), document in zip(wanted, documents, strict=True):
            found[ref.uid] = self._checked(ref, document)
        return found

    def _checked(self, ref: ClaimRef, document: dict[str, Any] | KubernetesApiError) -> AllocatedClaim | DraError:
        if isinstance(document, KubernetesApiError):
            return _of_claim(ref, document)
        try:
            return allocated_claim(document, ref, self._driver)
        except DraError as error:
            return error


def _path(ref: ClaimRef) -> str:
    try:
        return paths.resource_claim(ref.namespace, ref.name)
    except ValueError as error:
        raise ClaimError(f"claim {ref}: {error}") from error


def _of_claim(ref: ClaimRef, error: KubernetesApiError) -> DraError:
    """``error``, or what it means for the claim. (A 404 without a reason: the server does not serve the API group.)"""
    if isinstance(error, NotFoundError) and error.reason == "NotFound":
        return ClaimReplacedError(f"claim {ref} does not exist any more; the pod has to be deleted")
    return error


def allocated_claim(document: Mapping[str, Any], ref: ClaimRef, driver: str) -> AllocatedClaim:
    """Checks a ResourceClaim object of any shape. Pure; raises as ``ApiClaimReader.read`` does."""
    at = _At(f"claim {ref}")
    uid = at.mapping(document.get("metadata"), "metadata").get("uid")
    if uid != ref.uid:
        raise ClaimReplacedError(
            f"claim {ref.namespace}/{ref.name} was replaced: the kubelet asks for uid {ref.uid}, "
            f"the API server has uid {_cut(uid)}"
        )
    allocation = at.mapping(document.get("status") or {}, "status").get("allocation")
    if allocation is None:
        raise ClaimNotAllocatedError(
            f"claim {ref} is not allocated: status.allocation is empty; the scheduler fills it"
        )
    devices = at.mapping(at.mapping(allocation, "status.allocation").get("devices") or {}, "status.allocation.devices")
    results = tuple(_results(at, devices.get("results"), driver))
    if not results:
        raise ClaimNotAllocatedError(
            f"claim {ref} has no device of driver {driver} in status.allocation.devices.results"
        )
    return AllocatedClaim(ref=ref, results=results, configs=tuple(_configs(at, devices.get("config"), driver)))


def _results(at: "_At", value: Any, driver: str) -> Iterator[AllocatedDevice]:
    where = "status.allocation.devices.results"
    for index, entry in enumerate(at.sequence(value, where, MAX_RESULTS)):
        place = f"{where}[{index}]"
        result = at.mapping(entry, place)
        if at.text(result.get("driver"), f"{place}.driver", 63) == driver:
            yield _result(at, result, place, driver)


def _result(at: "_At", result: Mapping[str, Any], place: str, driver: str) -> AllocatedDevice:
    admin = result.get("adminAccess")
    if admin is not None and not isinstance(admin, bool):
        raise at.error(f"{place}.adminAccess", admin, "true or false")
    return AllocatedDevice(
        request=_request_name(at, result.get("request"), f"{place}.request"),
        driver=driver,
        pool=PoolName(
            at.matching(result.get("pool"), f"{place}.pool", is_pool_name, "a pool name like <node>/<driver>")
        ),
        device=DeviceName(at.matching(result.get("device"), f"{place}.device", is_label, "a DNS label")),
        admin_access=admin is True,
        share_id=_share_id(at, result.get("shareID"), f"{place}.shareID"),
        consumed_capacity=_capacities(at, result.get("consumedCapacity"), f"{place}.consumedCapacity"),
    )


def _request_name(at: "_At", value: Any, place: str) -> str:
    """``main`` or ``main/sub``."""

    def valid(text: str) -> bool:
        parts = text.split("/")
        return len(parts) <= 2 and all(is_label(part) for part in parts)

    return at.matching(value, place, valid, "a request name, or <request>/<subrequest>")


def _share_id(at: "_At", value: Any, place: str) -> str | None:
    if value is None:
        return None
    return at.matching(value, place, lambda text: _UUID.fullmatch(text) is not None, "a UUID in lower case")


def _capacities(at: "_At", value: Any, place: str) -> dict[str, str]:
    found = at.mapping({} if value is None else value, place)
    if len(found) > MAX_CAPACITIES:
        raise at.error(place, f"{len(found)} entries", f"at most {MAX_CAPACITIES}")
    for name, quantity in found.items():
        if not _QUALIFIED.fullmatch(name) or not isinstance(quantity, str) or not _QUANTITY.fullmatch(quantity):
            raise at.error(place, {name: quantity}, "capacity names with quantities like 10Gi")
    return dict(found)


def _configs(at: "_At", value: Any, driver: str) -> Iterator[OpaqueConfig]:
    where = "status.allocation.devices.config"
    for index, entry in enumerate(at.sequence(value, where, MAX_CONFIGS)):
        place = f"{where}[{index}]"
        config = at.mapping(entry, place)
        opaque = config.get("opaque")
        if opaque is None:
            continue  # another kind of configuration, not for drivers
        opaque = at.mapping(opaque, f"{place}.opaque")
        if at.text(opaque.get("driver"), f"{place}.opaque.driver", 63) == driver:
            yield _config(at, config, opaque.get("parameters"), place)


def _config(at: "_At", config: Mapping[str, Any], parameters: Any, place: str) -> OpaqueConfig:
    source: Literal["FromClass", "FromClaim"]
    match config.get("source"):
        case "FromClass":
            source = "FromClass"
        case "FromClaim":
            source = "FromClaim"
        case other:
            raise at.error(f"{place}.source", other, "FromClass or FromClaim")
    names = enumerate(at.sequence(config.get("requests"), f"{place}.requests", MAX_RESULTS))
    return OpaqueConfig(
        source=source,
        requests=tuple(_request_name(at, name, f"{place}.requests[{index}]") for index, name in names),
        parameters=_parameters(at, parameters, f"{place}.opaque.parameters"),
    )


def _parameters(at: "_At", value: Any, place: str) -> Mapping[str, Any]:
    found = at.mapping(value, place)
    if _deeper_than(MAX_PARAMETERS_DEPTH, found):
        raise at.error(place, "more levels", f"an object nested at most {MAX_PARAMETERS_DEPTH} levels deep")
    size = len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > MAX_PARAMETERS_BYTES:
        raise at.error(place, f"{size} bytes", f"at most {MAX_PARAMETERS_BYTES}")
    return found


def _deeper_than(limit: int, value: Any) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: Any) -> Iterator[Any]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return (child for child in children if isinstance(child, dict | list))


class _At:
    """Type checks that name the claim and the field's path in what they raise."""

    def __init__(self, claim: str) -> None:
        self._claim = claim

    def error(self, place: str, seen: Any, expected: str) -> ClaimError:
        return ClaimError(f"{self._claim} is malformed: {place} is {_cut(seen)}, expected {expected}")

    def mapping(self, value: Any, place: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self.error(place, value, "an object")
        return value

    def sequence(self, value: Any, place: str, limit: int) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self.error(place, value, "a list")
        if len(value) > limit:
            raise self.error(place, f"{len(value)} entries long", f"at most {limit}")
        return value

    def text(self, value: Any, place: str, limit: int = 253) -> str:
        if not isinstance(value, str) or not 0 < len(value) <= limit:
            raise self.error(place, value, f"a string of 1 to {limit} characters")
        return value

    def matching(self, value: Any, place: str, valid: Any, expected: str) -> str:
        text = self.text(value, place)
        if not valid(text):
            raise self.error(place, text, expected)
        return text


def _cut(value: Any) -> str:
    """The value as text, short enough for an event; deep objects are never printed (repr would recurse)."""
    if isinstance(value, dict | list) and _deeper_than(3, value):
        return f"a nested {type(value).__name__}"
    return quoted(value)
