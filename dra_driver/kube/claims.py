"""Read ResourceClaims and reduce their allocation to values. Every used field is checked: users write claims, and their
strings end in file names and container environments. Limits: kubernetes/kubernetes
pkg/apis/resource/validation/validation.go and resource/v1/types.go."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, Protocol

from dra_driver.core import errors
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, OpaqueConfig
from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName
from dra_driver.core.text import quoted
from dra_driver.kube import paths
from dra_driver.kube.objects.meta import Quantity
from dra_driver.kube.objects.resource import (
    DeviceAllocationConfiguration,
    DeviceAllocationResult,
    DeviceRequestAllocationResult,
    OpaqueDeviceConfiguration,
    ResourceClaim,
)
from dra_driver.kube.shapes import is_label, is_pool_name, read

POD_CLAIM_ANNOTATION = "resource.kubernetes.io/pod-claim-name"
MAX_RESULTS = 32
MAX_CONFIGS = 64
MAX_CAPACITIES = 32
MAX_PARAMETERS_BYTES = 10 * 1024
MAX_PARAMETERS_DEPTH = 32  # this driver's own: its kinds nest less, and deeper ones exhaust Python's stack

_LONGEST = 253
_RESULTS = "status.allocation.devices.results"
_CONFIGS = "status.allocation.devices.config"
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_QUALIFIED = re.compile(r"([a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?/)?[A-Za-z_][A-Za-z0-9_]{0,31}")
_QUANTITY = re.compile(r"[+-]?[0-9.]{1,40}([eE][+-]?[0-9]{1,3}|[KMGTPE]i|[numkMGTPE])?")


class Getter(Protocol):
    """The part of ``rest.RestClient`` that reading a claim needs."""

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, object]: ...


class BoundedGetter(Protocol):
    """The same with a deadline of the caller, and for several objects."""

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, within_s: float | None = None
    ) -> dict[str, object]: ...
    def send_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> Callable[[], list[dict[str, object] | errors.KubernetesApiError]]: ...


class ApiClaimReader:
    """Reads claims with one GET each. Thread-safe."""

    def __init__(self, rest: BoundedGetter, driver_name: str) -> None:
        self._rest = rest
        self._driver = driver_name

    def read(self, ref: ClaimRef, *, within_s: float | None = None) -> AllocatedClaim:
        """The claim with this driver's results and configs, in the object's order. Takes at most ``within_s``; None for
        the client's limit.

        Raises ClaimReplacedError when it is deleted or another object has its name, ClaimNotAllocatedError without a
        result for this driver, ClaimError when it is malformed, KubernetesApiError when it cannot be read.
        """
        path = _path(ref)
        try:
            document = self._rest.get(path, within_s=within_s)
        except errors.KubernetesApiError as error:
            found = _of_claim(ref, error)
            if found is error:
                raise
            raise found from error
        return allocated_claim(document, ref, self._driver)

    def ask_all(
        self, refs: Sequence[ClaimRef], *, within_s: float | None = None
    ) -> Callable[[], dict[ClaimUid, AllocatedClaim | errors.DraError]]:
        """The same for several claims, read side by side. Sends the first requests; the result, which the caller must
        call, waits for the answers and returns errors."""
        found: dict[ClaimUid, AllocatedClaim | errors.DraError] = {}
        wanted: list[tuple[ClaimRef, str]] = []
        for ref in refs:
            try:
                wanted.append((ref, _path(ref)))
            except errors.ClaimError as error:
                found[ref.uid] = error
        receive = self._rest.send_all([path for _, path in wanted], within_s=within_s)

        def answers() -> dict[ClaimUid, AllocatedClaim | errors.DraError]:
            for (ref, _), document in zip(wanted, receive(), strict=True):
                found[ref.uid] = self._checked(ref, document)
            return found

        return answers

    def _checked(
        self, ref: ClaimRef, document: dict[str, object] | errors.KubernetesApiError
    ) -> AllocatedClaim | errors.DraError:
        if isinstance(document, errors.KubernetesApiError):
            return _of_claim(ref, document)
        try:
            return allocated_claim(document, ref, self._driver)
        except errors.DraError as error:
            return error


def _path(ref: ClaimRef) -> str:
    try:
        return paths.resource_claim(ref.namespace, ref.name)
    except ValueError as error:
        raise errors.ClaimError(f"claim {ref}: {error}") from error


def _of_claim(ref: ClaimRef, error: errors.KubernetesApiError) -> errors.DraError:
    """Return ``error``, or `ClaimReplacedError` for a missing claim. A 404 without a reason is a missing API group."""
    if isinstance(error, errors.NotFoundError) and error.reason == "NotFound":
        return errors.ClaimReplacedError(f"claim {ref} no longer exists: delete the pod", claim=ref)
    return error


def allocated_claim(document: Mapping[str, object], ref: ClaimRef, driver: str) -> AllocatedClaim:
    """Checks a ResourceClaim object of any shape. Pure; raises as ``ApiClaimReader.read`` does."""
    try:
        claim = read(ResourceClaim, document)
    except ValueError as error:
        raise errors.ClaimError(f"claim {ref} is malformed: {error}", reason="Malformed") from error
    if claim.metadata.uid != ref.uid:
        raise errors.ClaimReplacedError(
            f"claim {ref.namespace}/{ref.name} was replaced: the kubelet asks for uid {ref.uid}, "
            f"the API server has uid {_cut(claim.metadata.uid)}"
        )
    allocation = claim.status.allocation if claim.status is not None else None
    if allocation is None:
        raise errors.ClaimNotAllocatedError(
            f"claim {ref} is not allocated: status.allocation is empty; the scheduler fills it"
        )
    devices = allocation.devices or DeviceAllocationResult()
    check = _Check(f"claim {ref}")
    check.at_most(len(devices.results), MAX_RESULTS, _RESULTS)
    check.at_most(len(devices.config), MAX_CONFIGS, _CONFIGS)
    results = tuple(
        _result(check, result, f"{_RESULTS}[{index}]")
        for index, result in enumerate(devices.results)
        if result.driver == driver
    )
    if not results:
        raise errors.ClaimNotAllocatedError(
            f"claim {ref} has no device of driver {driver} in status.allocation.devices.results"
        )
    configs = tuple(
        _config(check, config, config.opaque, f"{_CONFIGS}[{index}]")
        for index, config in enumerate(devices.config)
        if config.opaque is not None and config.opaque.driver == driver
    )
    named = claim.metadata.annotations.get(POD_CLAIM_ANNOTATION, "")
    pod_claim = named if is_label(named) else None  # it becomes part of a path, and users can set annotations
    return AllocatedClaim(ref=ref, results=results, configs=configs, pod_claim=pod_claim)


def _result(check: "_Check", result: DeviceRequestAllocationResult, place: str) -> AllocatedDevice:
    return AllocatedDevice(
        request=_request_name(check, result.request, f"{place}.request"),
        driver=result.driver,
        pool=PoolName(check.text(result.pool, f"{place}.pool", is_pool_name, "a pool name like <node>/<driver>")),
        device=DeviceName(check.text(result.device, f"{place}.device", is_label, "a DNS label")),
        admin_access=result.admin_access,
        share_id=check.text(result.share_id, f"{place}.shareID", _is_uuid, "a UUID in lower case")
        if result.share_id
        else None,
        consumed_capacity=_capacities(check, result.consumed_capacity, f"{place}.consumedCapacity"),
    )


def _is_uuid(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _request_name(check: "_Check", name: str, place: str) -> str:

    def valid(text: str) -> bool:
        parts = text.split("/")
        return len(parts) <= 2 and all(is_label(part) for part in parts)

    return check.text(name, place, valid, "a request name, or <request>/<subrequest>")


def _capacities(check: "_Check", found: Mapping[str, Quantity], place: str) -> dict[str, str]:
    check.at_most(len(found), MAX_CAPACITIES, place)
    amounts: dict[str, str] = {}
    for name, quantity in found.items():
        if not _QUALIFIED.fullmatch(name) or not isinstance(quantity, str) or not _QUANTITY.fullmatch(quantity):
            raise check.error(place, {name: quantity}, "capacity names with quantities like 10Gi")
        amounts[name] = quantity
    return amounts


def _config(
    check: "_Check", config: DeviceAllocationConfiguration, opaque: OpaqueDeviceConfiguration, place: str
) -> OpaqueConfig:
    source: Literal["FromClass", "FromClaim"]
    match config.source:
        case "FromClass":
            source = "FromClass"
        case "FromClaim":
            source = "FromClaim"
        case other:
            raise check.error(f"{place}.source", other, "FromClass or FromClaim")
    check.at_most(len(config.requests), MAX_RESULTS, f"{place}.requests")
    names = enumerate(config.requests)
    return OpaqueConfig(
        source=source,
        requests=tuple(_request_name(check, name, f"{place}.requests[{index}]") for index, name in names),
        parameters=_parameters(check, opaque.parameters, f"{place}.opaque.parameters"),
    )


def _parameters(check: "_Check", found: object, place: str) -> Mapping[str, object]:
    if not isinstance(found, dict):
        raise check.error(place, found, "an object")
    if _deeper_than(MAX_PARAMETERS_DEPTH, found):
        raise check.error(place, "more levels", f"an object nested at most {MAX_PARAMETERS_DEPTH} levels deep")
    size = len(json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass"))
    if size > MAX_PARAMETERS_BYTES:
        raise check.error(place, f"{size} bytes", f"at most {MAX_PARAMETERS_BYTES}")
    return found


def _deeper_than(limit: int, value: object) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for node in level for child in _children(node)]
        if not level:
            return False
    return True


def _children(node: object) -> Iterator[object]:
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return (child for child in children if isinstance(child, dict | list))


class _Check:
    """Checks of values. Errors name the claim and the path of the field."""

    def __init__(self, claim: str) -> None:
        self._claim = claim

    def error(self, place: str, seen: object, expected: str) -> errors.ClaimError:
        return errors.ClaimError(f"{self._claim} is malformed: {place} is {_cut(seen)}, expected {expected}")

    def at_most(self, count: int, limit: int, place: str) -> None:
        if count > limit:
            raise self.error(place, f"{count} entries long", f"at most {limit}")

    def text(self, text: str, place: str, valid: Callable[[str], bool], expected: str) -> str:
        if not 0 < len(text) <= _LONGEST:
            raise self.error(place, text, f"a string of 1 to {_LONGEST} characters")
        if not valid(text):
            raise self.error(place, text, expected)
        return text


def _cut(value: object) -> str:
    if isinstance(value, dict | list) and _deeper_than(3, value):
        return f"a nested {type(value).__name__}"
    return quoted(value)
