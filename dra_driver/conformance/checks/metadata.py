"""Check the device metadata files of KEP-5304, if the driver writes them."""

import json
from collections.abc import Iterator
from typing import Any, Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.cdi_edits import METADATA, AnsweredMount
from dra_driver.conformance.cluster import CheckClaim, JsonObject
from dra_driver.conformance.values import NotApplicableError, ViolationError, basic
from dra_driver.core.unix_grpc import shown

DECODE: Final = "staging/src/k8s.io/dynamic-resource-allocation/devicemetadata/decode.go"
LAYOUT: Final = "staging/src/k8s.io/dynamic-resource-allocation/api/metadata/doc.go"
HELPER: Final = "staging/src/k8s.io/dynamic-resource-allocation/kubeletplugin/metadata.go"
GROUP: Final = "metadata.resource.k8s.io"
KNOWN: Final = ("v1beta1", "v1alpha1")
POD_CLAIM: Final = "accelerator"
MAX_BYTES: Final = 4 * 2**20
MAX_ATTRIBUTES, MAX_TEXT_BYTES = 32, 64


@basic("metadata-decodes", f"{DECODE}:57-100")
def files_decode(bench: Bench) -> None:
    """Metadata files decode, and describe the devices of one request of the claim.

    The first object of a known version counts. A stream without one, or whose first known object does not decode, is
    an error for the program in the container.
    """
    claim = bench.claim()
    for request, mount in _mounted(bench, claim):
        _check_content(bench, claim, request, _decoded(bench, mount))


@basic("metadata-path", f"{LAYOUT}:34-71")
def paths_follow_the_claim(bench: Bench) -> None:
    """The path in the container follows from the pod: claim name, or name in the pod for a claim of a template.

    Requests in paths have no subrequest; the file has the full name of the request.
    """
    exactly = {"deviceClassName": bench.cluster.class_name, "allocationMode": "ExactCount", "count": 1}
    subrequest = {"devices": {"requests": [{"name": "first", "firstAvailable": [{"name": "choice", **exactly}]}]}}
    extended = {"devices": {"requests": [{"name": "container-0-request-1", "exactly": exactly}]}}
    for pod_claim, spec in (("", None), (POD_CLAIM, None), (POD_CLAIM, subrequest), ("", extended)):
        claim = bench.claim(spec=spec, pod_claim=pod_claim)
        place = f"resourceclaimtemplates/{pod_claim}" if pod_claim else f"resourceclaims/{claim.key.name}"
        for request, mount in _mounted(bench, claim):
            expected = f"{METADATA}/{place}/{request}/{bench.subject.driver}-metadata.json"
            if mount.container_path != expected:
                raise ViolationError(
                    f"claim {claim.key}: the metadata of request {shown(request)} is mounted at "
                    f"{shown(mount.container_path)}, expected {expected}"
                )
            _check_content(bench, claim, request, _decoded(bench, mount))
        bench.finish(claim)


@basic("metadata-repeated", f"{HELPER}:181-228", level="should")
def repeat_keeps_generation(bench: Bench) -> None:
    """A repeated prepare keeps the generation of the files.

    Updates increase the generation; a program that has seen a newer one would take the file for an old one.
    """
    claim = bench.claim()
    first, second = (
        {request: _decoded(bench, mount)["metadata"].get("generation", 0) for request, mount in _mounted(bench, claim)}
        for _ in range(2)
    )
    for request, generation in first.items():
        if second.get(request) != generation:
            raise ViolationError(
                f"request {shown(request)} had generation {generation} and has {second.get(request)} after a repeated "
                "prepare; write a file again only if its content changes"
            )


@basic("metadata-removed", f"{HELPER}:149-171")
def files_are_removed(bench: Bench) -> None:
    """Unprepare removes the metadata files of the claim.

    The helper removes all metadata files and CDI files of the claim.
    """
    claim = bench.claim()
    mounts = [mount for _, mount in _mounted(bench, claim)]
    bench.unprepared(claim.key)
    for mount in mounts:
        if bench.subject.host.content(mount.host_path, MAX_BYTES) is not None:
            raise ViolationError(f"claim {claim.key} was unprepared, but {shown(mount.host_path)} exists; delete it")


def _mounted(bench: Bench, claim: CheckClaim) -> Iterator[tuple[str, AnsweredMount]]:
    """Prepare the claim; for each base request the mount of its metadata file, as its container gets it."""
    devices = bench.prepared(claim)
    own = [result for result in claim.results if result["driver"] == bench.subject.driver]
    found: dict[str, list[AnsweredMount]] = {}
    for request in sorted({result["request"].partition("/")[0] for result in own}):
        edits = bench.edits([one for one in devices if request in one.requests], f"claim {claim.key}")
        found[request] = [mount for mount in edits.mounts if mount.container_path.startswith(f"{METADATA}/")]
    if not any(found.values()):
        raise NotApplicableError("the driver writes no metadata files")
    for request, mounts in found.items():
        mine = [mount for mount in mounts if f"/{request}/" in mount.container_path]
        if not mine:
            raise ViolationError(f"claim {claim.key}: request {shown(request)} has no metadata file, another one has")
        if "ro" not in (mine[0].options or ()):
            raise ViolationError(f"the metadata of request {shown(request)} is mounted writable; add the option ro")
        yield request, mine[0]


def _decoded(bench: Bench, mount: AnsweredMount) -> JsonObject:
    """The first object of a known version. Raises ViolationError where upstream's decoder fails."""
    content = bench.subject.host.content(mount.host_path, MAX_BYTES)
    what = f"metadata file {shown(mount.host_path)}"
    if content is None:
        raise ViolationError(f"{what} does not exist, or a user in the container cannot read it (mode 0644)")
    decoder, rest = json.JSONDecoder(), content.decode(errors="replace").lstrip()
    while rest:
        try:
            found, end = decoder.raw_decode(rest)
        except ValueError as error:
            raise ViolationError(f"{what} is not a stream of JSON objects: {error}") from error
        if not isinstance(found, dict) or not found.get("apiVersion") or not found.get("kind"):
            raise ViolationError(f"{what} has an object without apiVersion or kind, which ends the decoding")
        group, _, version = str(found["apiVersion"]).partition("/")
        if group == GROUP and version in KNOWN:
            return found
        rest = rest[end:].lstrip()
    raise ViolationError(f"{what} has no object of {GROUP} in a version of {', '.join(KNOWN)}")


def _check_content(bench: Bench, claim: CheckClaim, request: str, found: JsonObject) -> None:
    try:
        problem = next(_problems(bench, claim, request, found), "")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = f"a field is missing or has another type ({error!r})"
    if problem:
        raise ViolationError(f"metadata of request {shown(request)} of claim {claim.key}: {problem}")


def _problems(bench: Bench, claim: CheckClaim, request: str, found: JsonObject) -> Iterator[str]:
    meta, annotations = found["metadata"], claim.wire["metadata"].get("annotations") or {}
    if (meta["namespace"], meta["name"], meta["uid"]) != (claim.key.namespace, claim.key.name, claim.key.uid):
        yield f"metadata has namespace, name and uid of another claim: {shown(str(meta))}"
    if found.get("podClaimName") != annotations.get("resource.kubernetes.io/pod-claim-name"):
        yield f"podClaimName is {shown(str(found.get('podClaimName')))}, expected the claim's annotation"
    own = [one for one in claim.results if one["driver"] == bench.subject.driver]
    wanted = [one for one in own if one["request"].partition("/")[0] == request]
    names = [one["name"] for one in found["requests"]]
    if names != [wanted[0]["request"]]:
        yield f"requests has {names}, expected only {wanted[0]['request']}"
    devices = found["requests"][0]["devices"]
    listed = sorted((one["driver"], one["pool"], one["name"]) for one in devices)
    if listed != sorted((one["driver"], one["pool"], one["device"]) for one in wanted):
        yield f"devices are {shown(str(listed))}, which differ from the allocation"
    for device in devices:
        yield from _attribute_problems(device.get("attributes") or {})


def _attribute_problems(attributes: dict[str, dict[str, Any]]) -> Iterator[str]:
    if len(attributes) > MAX_ATTRIBUTES:
        yield f"a device has {len(attributes)} attributes, at most {MAX_ATTRIBUTES} are allowed"
    for name, value in attributes.items():
        types = {"string": str, "version": str, "int": int, "bool": bool}
        types |= dict.fromkeys(("strings", "versions", "ints", "bools"), list)
        [(kind, content)] = value.items()
        if not isinstance(content, types.get(kind, ())):
            yield f"attribute {shown(name)} is {shown(str(value))}"
        elif isinstance(content, str) and len(content.encode()) > MAX_TEXT_BYTES:
            yield f"attribute {shown(name)} has more than {MAX_TEXT_BYTES} bytes"
