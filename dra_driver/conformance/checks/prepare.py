"""NodePrepareResources and NodeUnprepareResources: answers, devices, CDI ids, repetition, malformed claims."""

import uuid
from typing import Final

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.registration import TYPES
from dra_driver.conformance.cluster import NAMESPACE, CheckClaim, JsonObject
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.conformance.values import ViolationError, basic
from dra_driver.core.unix_grpc import shown

PROTO: Final = "staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto"
HELPER: Final = "staging/src/k8s.io/dynamic-resource-allocation/kubeletplugin/draplugin.go"
KUBELET: Final = "pkg/kubelet/cm/dra/manager.go"
OTHER_DRIVER: Final = "other.conformance.dra-driver.io"


@basic("prepare-nothing", f"{PROTO}:25-41")
def no_claims(bench: Bench) -> None:
    """A call without claims succeeds.

    NodePrepareResources prepares several ResourceClaims; the list may be empty, and probes of drivers call it so.
    """
    bench.answers([])


@basic("prepare-answers", f"{PROTO}:43-51, {KUBELET}:405-437, pkg/kubelet/cm/dra/plugin/dra_plugin.go:42")
def answered(bench: Bench) -> None:
    """An allocated claim is prepared, with one entry in the answer, within 45 s.

    It is an error if some claim listed in NodePrepareResourcesRequest does not get prepared.
    """
    bench.prepared(bench.claim())


@basic("prepare-devices", f"{PROTO}:64-73")
def devices_match(bench: Bench) -> None:
    """The answer has the allocated devices, with pool, name and request.

    pool_name and device_name are required; request_names are the requests in the claim that this device is
    associated with.
    """
    claim = bench.claim()
    check_devices(bench, claim, bench.prepared(claim))


@basic("prepare-subrequests", f"{HELPER}:1057, 1091-1098")
def requests_are_base_names(bench: Bench) -> None:
    """request_names have no subrequest.

    The helper strips subrequest names: the kubelet compares with the request's own name.
    """
    exactly = {"deviceClassName": bench.cluster.class_name, "allocationMode": "ExactCount", "count": 1}
    request = {"name": "first", "firstAvailable": [{"name": "choice", **exactly}]}
    claim = bench.claim(spec={"devices": {"requests": [request]}})
    for device in bench.prepared(claim):
        if wrong := [name for name in device.requests if name != "first"]:
            raise ViolationError(
                f"device {device.device} has request_names {wrong}, expected ['first']: the kubelet looks devices up "
                "by the name of the request without the subrequest"
            )


@basic("prepare-cdi-names", "cncf-tags/container-device-interface SPEC.md (CDI JSON Specification)")
def cdi_ids_are_qualified(bench: Bench) -> None:
    """CDI device ids are fully qualified.

    A fully-qualified CDI device name is vendor/class=name.
    """
    for device in bench.prepared(bench.claim()):
        for name in device.cdi_ids:
            if not cdi_folder.is_qualified(name):
                raise ViolationError(f"device {device.device} has CDI id {shown(name)!r}, expected vendor/class=name")


@basic("prepare-cdi-resolves", f"{HELPER}:90-95, cncf-tags/container-device-interface pkg/cdi/cache.go")
def cdi_ids_resolve(bench: Bench) -> None:
    """CDI device ids resolve to valid CDI files when the call returns.

    Container runtimes must reload files in case of a cache miss; an id that no file defines is an error.
    """
    bench.check_resolves(bench.prepared(bench.claim()), "a container with this claim cannot start")


@basic("prepare-repeated", f"{HELPER}:74-75")
def repeated(bench: Bench) -> None:
    """A repeated prepare gives the same answer.

    This call must be idempotent because the kubelet might have to ask for preparation multiple times.
    """
    claim = bench.claim()
    first, second = bench.prepared(claim), bench.prepared(claim)
    if first != second:
        raise ViolationError(f"the second prepare answered {_brief(second)}, the first {_brief(first)}")


@basic("prepare-two-claims", f"{HELPER}:62-64", needs=("2-devices",))
def two_claims(bench: Bench) -> None:
    """Two claims in one call are both prepared.

    It gets called with the complete list of claims handled by this DRA driver that are needed by some pod.
    """
    claims = [bench.claim(), bench.claim()]
    for uid, answer in bench.answers([claim.key for claim in claims]).items():
        if answer.error:
            raise ViolationError(f"two claims in one call: {uid} failed: {answer.error}")


@basic("prepare-missing-claim", f"{HELPER}:66-67")
def missing_claim(bench: Bench) -> None:
    """A claim that does not exist is refused.

    The helper retrieves the ResourceClaim objects and fails the call if one is missing.
    """
    _expect_refusal(bench, _absent(), "that does not exist")


@basic("prepare-replaced-claim", f"{PROTO}:102-112")
def replaced_claim(bench: Bench) -> None:
    """A claim that another object of the same name has replaced is refused.

    The UID of the Resource claim is required: a claim of that name with another UID is another claim.
    """
    claim = bench.claim()
    other = ClaimKey(namespace=claim.key.namespace, name=claim.key.name, uid=str(uuid.uuid4()))
    _expect_refusal(bench, other, "whose UID is that of another object")


@basic("prepare-unallocated-claim", f"{HELPER}:66-67")
def unallocated_claim(bench: Bench) -> None:
    """A claim without an allocation is refused.

    The helper verifies that all claims are really allocated.
    """
    claim = bench.adopt(bench.scheduler.create())
    _expect_refusal(bench, claim.key, "without an allocation")


@basic("prepare-unknown-device", f"{TYPES}:1764-1792, {HELPER}:86-88")
def unknown_device(bench: Bench) -> None:
    """A claim for a device that does not exist is refused, and the next one is prepared.

    Results identify devices by driver, pool and device name; preparation of a claim can be reported as failed.
    """

    def rename(allocation: JsonObject) -> None:
        for result in allocation["devices"]["results"]:
            result["device"] = "no-such-device"

    claim = bench.claim(change=rename)
    _expect_refusal(bench, claim.key, "for a device that does not exist")
    bench.prepared(bench.claim())


@basic("prepare-device-in-use", f"{HELPER}:77-82", level="should")
def device_in_use(bench: Bench) -> None:
    """A device that another claim has is not prepared again.

    A DRA driver should verify that all devices are not already in use for some other ResourceClaim: it is the last
    line of defense.
    """
    first = bench.exclusive_claim()
    bench.prepared(first)
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError(f"device {min(first.devices())[1]} was prepared for two claims; expected an error")
    bench.unprepared(second.key)
    bench.prepared(first)


@basic("prepare-error-per-claim", f"{PROTO}:25-28", level="should")
def error_of_one_claim(bench: Bench) -> None:
    """A claim that fails does not fail the others of the call.

    Failures for individual claims can be reported inside NodePrepareResourcesResponse.
    """
    good = bench.claim()
    bad = _absent()
    answers = bench.answers([good.key, bad])
    if not answers[bad.uid].error:
        raise ViolationError("a claim that does not exist was prepared")
    if answers[good.key.uid].error:
        raise ViolationError(f"the good claim of the call failed, too: {answers[good.key.uid].error}")


@basic("prepare-other-results", f"{TYPES}:1764-1775")
def results_of_other_drivers(bench: Bench) -> None:
    """Devices of other drivers in the same claim are left to them.

    Driver specifies the name of the DRA driver whose kubelet plugin should be invoked for the device.
    """

    def add(allocation: JsonObject) -> None:
        own = allocation["devices"]["results"][0]
        foreign = {"request": own["request"], "driver": OTHER_DRIVER, "pool": "other", "device": "other"}
        allocation["devices"]["results"].insert(0, foreign)

    claim = bench.claim(change=add)
    check_devices(bench, claim, bench.prepared(claim))


@basic("prepare-other-configuration", f"{TYPES}:1732-1738")
def configuration_of_other_drivers(bench: Bench) -> None:
    """Configuration for other drivers is ignored.

    This includes configuration parameters for drivers which have no allocated devices in the result. They can
    silently ignore unknown configuration parameters.
    """

    def add(allocation: JsonObject) -> None:
        opaque = {"driver": OTHER_DRIVER, "parameters": {"apiVersion": "other.example.com/v1", "kind": "Other"}}
        allocation["devices"].setdefault("config", []).append({"source": "FromClaim", "opaque": opaque})

    bench.prepared(bench.claim(change=add))


@basic("prepare-malformed", f"{PROTO}:102-112")
def malformed_claims(bench: Bench) -> None:
    """Claims with malformed names and UIDs do no harm.

    namespace, uid and name are required; a driver that builds file names of them has to check them.
    """
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


@basic("unprepare-nothing", f"{PROTO}:32-35")
def unprepared_nothing(bench: Bench) -> None:
    """A call without claims succeeds.

    The same error handling rules apply as for NodePrepareResources.
    """
    bench.unprepared()


@basic("unprepare-answers", f"{PROTO}:89-95")
def unprepared(bench: Bench) -> None:
    """A prepared claim is unprepared, with one entry in the answer.

    All claims in the request must have an entry in the response, even if that entry is nil.
    """
    claim = bench.prepared_claim()
    bench.unprepared(claim.key)


@basic("unprepare-repeated", f"{HELPER}:112-113")
def unprepared_twice(bench: Bench) -> None:
    """A repeated unprepare succeeds.

    This call must be idempotent because the kubelet might have to ask for un-preparation multiple times.
    """
    claim = bench.prepared_claim()
    bench.unprepared(claim.key)
    bench.unprepared(claim.key)


@basic("unprepare-unknown", f"{HELPER}:114-115")
def unprepared_unknown(bench: Bench) -> None:
    """A claim that was never prepared is no error.

    It is not an error if this gets called for a ResourceClaim which is not currently prepared.
    """
    bench.unprepared(_absent())


@basic("unprepare-claim-gone", f"{HELPER}:100-104")
def claim_is_gone(bench: Bench) -> None:
    """A claim whose object was deleted is unprepared.

    At the time when this gets called, the original ResourceClaims may have been deleted already.
    """
    claim = bench.prepared_claim()
    bench.cluster.delete_claim(claim.wire)
    bench.unprepared(claim.key)


@basic("unprepare-mixed", f"{HELPER}:120-122")
def known_and_unknown(bench: Bench) -> None:
    """Known and unknown claims in one call all get an entry.

    All claims must have an entry in the response, even if that entry is nil.
    """
    claim = bench.prepared_claim()
    bench.unprepared(_absent(), claim.key, _absent())


@basic("unprepare-frees", f"{HELPER}:98")
def device_is_free_again(bench: Bench) -> None:
    """The device can be prepared for another claim afterwards.

    UnprepareResourceClaims must undo whatever work PrepareResourceClaims did.
    """
    first = bench.exclusive_claim()
    bench.prepared(first)
    bench.unprepared(first.key)
    bench.prepared(bench.claim(keys=first.devices(), busy=True))


@basic("unprepare-then-prepare", "pkg/kubelet/cm/dra/manager.go:628-638")
def prepared_again(bench: Bench) -> None:
    """A claim can be prepared again after it was unprepared.

    The next pod of a claim that several pods use makes the kubelet prepare it again.
    """
    claim = bench.prepared_claim()
    bench.unprepared(claim.key)
    bench.check_resolves(bench.prepared(claim), "after unprepare and a second prepare")


@basic("unprepare-others-stay", f"{PROTO}:89-95", needs=("2-devices",))
def others_stay(bench: Bench) -> None:
    """Other claims stay prepared.

    The claims of the request are reverted, and no others.
    """
    kept, ended = bench.claim(), bench.claim()
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    bench.check_resolves(before, "unprepare of one claim took devices of another")
    if bench.prepared(kept) != before:
        raise ViolationError("unprepare of one claim changed the answer for another")


@basic("unprepare-files", f"{HELPER}:90-92", level="should")
def files_go(bench: Bench) -> None:
    """CDI files of the claim are removed.

    It is possible to create the CDI spec files on-the-fly; UnprepareResourceClaims then can remove them.
    """
    folders = bench.subject.cdi_dirs
    claim = bench.prepared_claim()
    bench.unprepared(claim.key)
    left = [path.name for path in cdi_folder.files(folders) if claim.key.uid in path.name]
    if left:
        raise ViolationError(f"CDI files of the claim remain: {', '.join(left[:4])}")


def _absent() -> ClaimKey:
    return ClaimKey(namespace=NAMESPACE, name="absent", uid=str(uuid.uuid4()))
