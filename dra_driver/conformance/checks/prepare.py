"""NodePrepareResources: answers, devices, CDI ids, repetition, and claims that cannot be prepared."""

import uuid
from typing import Any, Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.cdi_folder import is_qualified
from dra_driver.conformance.claims import CheckClaim
from dra_driver.conformance.cluster import NAMESPACE
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.conformance.values import Check, ViolationError
from dra_driver.core.unix_grpc import shown

PROTO: Final = "staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
HELPER: Final = "staging/src/k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go"
KUBELET: Final = "pkg/kubelet/cm/dra/manager.go"
TYPES: Final = "staging/src/k8s.io/api/resource/v1/types.go"
OTHER_DRIVER: Final = "other.conformance.dra-driver.io"


def no_claims(bench: Bench) -> None:
    bench.answers([])


def answered(bench: Bench) -> None:
    bench.prepared(bench.claim())


def devices_match(bench: Bench) -> None:
    claim = bench.claim()
    check_devices(bench, claim, bench.prepared(claim))


def requests_are_base_names(bench: Bench) -> None:
    exactly = {"deviceClassName": bench.cluster.class_name, "allocationMode": "ExactCount", "count": 1}
    request = {"name": "first", "firstAvailable": [{"name": "choice", **exactly}]}
    claim = bench.claim(spec={"devices": {"requests": [request]}})
    for device in bench.prepared(claim):
        if wrong := [name for name in device.requests if name != "first"]:
            raise ViolationError(
                f"device {device.device} has request_names {wrong}, expected ['first']: the kubelet looks devices up "
                "by the name of the request without the subrequest"
            )


def cdi_ids_are_qualified(bench: Bench) -> None:
    for device in bench.prepared(bench.claim()):
        for name in device.cdi_ids:
            if not is_qualified(name):
                raise ViolationError(f"device {device.device} has CDI id {shown(name)!r}, expected vendor/class=name")


def cdi_ids_resolve(bench: Bench) -> None:
    if problem := bench.unresolved(bench.prepared(bench.claim())):
        raise ViolationError(f"a container with this claim cannot start: {problem}")


def repeated(bench: Bench) -> None:
    claim = bench.claim()
    first, second = bench.prepared(claim), bench.prepared(claim)
    if first != second:
        raise ViolationError(f"the second prepare answered {_brief(second)}, the first {_brief(first)}")


def two_claims(bench: Bench) -> None:
    claims = [bench.claim(), bench.claim()]
    for uid, answer in bench.answers([claim.key for claim in claims]).items():
        if answer.error:
            raise ViolationError(f"two claims in one call: {uid} failed: {answer.error}")


def missing_claim(bench: Bench) -> None:
    _expect_refusal(bench, ClaimKey(namespace=NAMESPACE, name="absent", uid=str(uuid.uuid4())), "that does not exist")


def replaced_claim(bench: Bench) -> None:
    claim = bench.claim()
    other = ClaimKey(namespace=claim.key.namespace, name=claim.key.name, uid=str(uuid.uuid4()))
    _expect_refusal(bench, other, "whose UID is that of another object")


def unallocated_claim(bench: Bench) -> None:
    claim = bench.adopt(bench.scheduler.create())
    _expect_refusal(bench, claim.key, "without an allocation")


def unknown_device(bench: Bench) -> None:
    def rename(allocation: dict[str, Any]) -> None:
        for result in allocation["devices"]["results"]:
            result["device"] = "no-such-device"

    claim = bench.claim(change=rename)
    _expect_refusal(bench, claim.key, "for a device that does not exist")
    bench.prepared(bench.claim())


def device_in_use(bench: Bench) -> None:
    keys = {device.key for device in bench.scheduler.devices() if not device.is_shared and not device.is_blocked}
    first = bench.claim(keys=keys)
    bench.prepared(first)
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError(f"device {min(first.devices())[1]} was prepared for two claims; expected an error")
    bench.unprepared(second.key)
    bench.prepared(first)


def error_of_one_claim(bench: Bench) -> None:
    good = bench.claim()
    bad = ClaimKey(namespace=NAMESPACE, name="absent", uid=str(uuid.uuid4()))
    answers = bench.answers([good.key, bad])
    if not answers[bad.uid].error:
        raise ViolationError("a claim that does not exist was prepared")
    if answers[good.key.uid].error:
        raise ViolationError(f"the good claim of the call failed, too: {answers[good.key.uid].error}")


def results_of_other_drivers(bench: Bench) -> None:
    def add(allocation: dict[str, Any]) -> None:
        own = allocation["devices"]["results"][0]
        foreign = {"request": own["request"], "driver": OTHER_DRIVER, "pool": "other", "device": "other"}
        allocation["devices"]["results"].insert(0, foreign)

    claim = bench.claim(change=add)
    check_devices(bench, claim, bench.prepared(claim))


def configuration_of_other_drivers(bench: Bench) -> None:
    def add(allocation: dict[str, Any]) -> None:
        opaque = {"driver": OTHER_DRIVER, "parameters": {"apiVersion": "other.example.com/v1", "kind": "Other"}}
        allocation["devices"].setdefault("config", []).append({"source": "FromClaim", "opaque": opaque})

    bench.prepared(bench.claim(change=add))


def malformed_claims(bench: Bench) -> None:
    for uid in ("../../../escape", "", "x" * 4096, "a b\nc"):
        bench.refusal(ClaimKey(namespace=NAMESPACE, name="../escape", uid=uid))
    bench.prepared(bench.claim())


def check_devices(bench: Bench, claim: CheckClaim, devices: tuple[AnsweredDevice, ...]) -> None:
    """Raise ViolationError unless the answer has the claim's devices of this driver, each with its request."""
    own = [result for result in claim.results if result["driver"] == bench.subject.driver]
    wanted = sorted((result["pool"], result["device"]) for result in own)
    found = sorted((device.pool, device.device) for device in devices)
    if sorted(set(found)) != sorted(set(wanted)) or len(found) < len(wanted):
        raise ViolationError(f"the answer has devices {_pairs(found)}, the claim's allocation has {_pairs(wanted)}")
    requests = {result["request"].partition("/")[0] for result in own}
    for device in devices:
        if not set(device.requests) <= requests:
            raise ViolationError(
                f"device {device.device} has request_names {[shown(one) for one in device.requests]}, expected some of "
                f"{sorted(requests)}"
            )


def _expect_refusal(bench: Bench, claim: ClaimKey, which: str) -> None:
    if not bench.refusal(claim):
        raise ViolationError(f"a claim {which} was prepared; expected an error")


def _pairs(keys: list[tuple[str, str]]) -> str:
    return ", ".join(shown(f"{pool}/{name}") for pool, name in keys[:4]) or "none"


def _brief(devices: tuple[AnsweredDevice, ...]) -> str:
    return ", ".join(shown(f"{one.device} {list(one.cdi_ids)}") for one in devices[:2]) or "no device"


CHECKS: Final = (
    Check(
        id="prepare-nothing",
        title="A call without claims succeeds",
        rule="NodePrepareResources prepares several ResourceClaims; the list may be empty, and probes of drivers call "
        "it so.",
        source=f"{PROTO}:25-41",
        run=no_claims,
    ),
    Check(
        id="prepare-answers",
        title="An allocated claim is prepared, with one entry in the answer, within 45 s",
        rule="It is an error if some claim listed in NodePrepareResourcesRequest does not get prepared.",
        source=f"{PROTO}:43-51, {KUBELET}:405-437, pkg/kubelet/cm/dra/plugin/dra_plugin.go:42",
        run=answered,
    ),
    Check(
        id="prepare-devices",
        title="The answer has the allocated devices, with pool, name and request",
        rule="pool_name and device_name are required; request_names are the requests in the claim that this device is "
        "associated with.",
        source=f"{PROTO}:64-73",
        run=devices_match,
    ),
    Check(
        id="prepare-subrequests",
        title="request_names have no subrequest",
        rule="The helper strips subrequest names: the kubelet compares with the request's own name.",
        source=f"{HELPER}:1057, 1091-1098",
        run=requests_are_base_names,
    ),
    Check(
        id="prepare-cdi-names",
        title="CDI device ids are fully qualified",
        rule="A fully-qualified CDI device name is vendor/class=name.",
        source="cncf-tags/container-device-interface SPEC.md (CDI JSON Specification)",
        run=cdi_ids_are_qualified,
    ),
    Check(
        id="prepare-cdi-resolves",
        title="CDI device ids resolve to valid CDI files when the call returns",
        rule="Container runtimes must reload files in case of a cache miss; an id that no file defines is an error.",
        source=f"{HELPER}:90-95, cncf-tags/container-device-interface pkg/cdi/cache.go",
        run=cdi_ids_resolve,
    ),
    Check(
        id="prepare-repeated",
        title="A repeated prepare gives the same answer",
        rule="This call must be idempotent because the kubelet might have to ask for preparation multiple times.",
        source=f"{HELPER}:74-75",
        run=repeated,
    ),
    Check(
        id="prepare-two-claims",
        title="Two claims in one call are both prepared",
        rule="It gets called with the complete list of claims handled by this DRA driver that are needed by some pod.",
        source=f"{HELPER}:62-64",
        run=two_claims,
        needs=("2-devices",),
    ),
    Check(
        id="prepare-missing-claim",
        title="A claim that does not exist is refused",
        rule="The helper retrieves the ResourceClaim objects and fails the call if one is missing.",
        source=f"{HELPER}:66-67",
        run=missing_claim,
    ),
    Check(
        id="prepare-replaced-claim",
        title="A claim that another object of the same name has replaced is refused",
        rule="The UID of the Resource claim is required: a claim of that name with another UID is another claim.",
        source=f"{PROTO}:102-112",
        run=replaced_claim,
    ),
    Check(
        id="prepare-unallocated-claim",
        title="A claim without an allocation is refused",
        rule="The helper verifies that all claims are really allocated.",
        source=f"{HELPER}:66-67",
        run=unallocated_claim,
    ),
    Check(
        id="prepare-unknown-device",
        title="A claim for a device that does not exist is refused, and the next one is prepared",
        rule="Results identify devices by driver, pool and device name; preparation of a claim can be reported as "
        "failed.",
        source=f"{TYPES}:1764-1792, {HELPER}:86-88",
        run=unknown_device,
    ),
    Check(
        id="prepare-device-in-use",
        title="A device that another claim has is not prepared again",
        rule="A DRA driver should verify that all devices are not already in use for some other ResourceClaim: it is "
        "the last line of defense.",
        source=f"{HELPER}:77-82",
        run=device_in_use,
        level="should",
    ),
    Check(
        id="prepare-error-per-claim",
        title="A claim that fails does not fail the others of the call",
        rule="Failures for individual claims can be reported inside NodePrepareResourcesResponse.",
        source=f"{PROTO}:25-28",
        run=error_of_one_claim,
        level="should",
    ),
    Check(
        id="prepare-other-results",
        title="Devices of other drivers in the same claim are left to them",
        rule="Driver specifies the name of the DRA driver whose kubelet plugin should be invoked for the device.",
        source=f"{TYPES}:1764-1775",
        run=results_of_other_drivers,
    ),
    Check(
        id="prepare-other-configuration",
        title="Configuration for other drivers is ignored",
        rule="This includes configuration parameters for drivers which have no allocated devices in the result. They "
        "can silently ignore unknown configuration parameters.",
        source=f"{TYPES}:1732-1738",
        run=configuration_of_other_drivers,
    ),
    Check(
        id="prepare-malformed",
        title="Claims with malformed names and UIDs do no harm",
        rule="namespace, uid and name are required; a driver that builds file names of them has to check them.",
        source=f"{PROTO}:102-112",
        run=malformed_claims,
    ),
)
