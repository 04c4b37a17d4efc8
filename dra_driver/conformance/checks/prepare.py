"""Check NodePrepareResources and NodeUnprepareResources: answers, devices, CDI ids, repetition, malformed claims."""

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.cdi_edits import MergedEdits, sameness
from dra_driver.conformance.checks.registration import TYPES
from dra_driver.conformance.cluster import NAMESPACE, CheckClaim, JsonObject, PublishedDevice, size, together
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey
from dra_driver.conformance.values import NotApplicableError, UnableError, ViolationError, basic
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

    The helper strips subrequest names: the kubelet compares with the name of the request.
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


@basic("prepare-cdi-ids", f"{PROTO}:75-77", needs=("cdi",))
def cdi_ids_are_given(bench: Bench) -> None:
    """Each request of the claim gets a CDI device id.

    A single device instance may map to several CDI device IDs. None is also valid, if the driver passes devices to
    containers in another way (--no-cdi).
    """
    claim = bench.claim()
    devices = bench.prepared(claim)
    check_devices(bench, claim, devices)
    for request in sorted(_requests(bench, claim)):
        # An answer without request_names applies to all requests.
        if not any(device.cdi_ids for device in devices if request in device.requests or not device.requests):
            raise ViolationError(
                f"claim {claim.key}: no device of request {shown(request)} has cdi_device_ids, so a container gets "
                "no device; answer with the ids of the device, or run with --no-cdi if you pass it in another way"
            )


CDI_EDITS: Final = "cncf-tags/container-device-interface pkg/cdi/container-edits_unix.go"


@basic("prepare-cdi-nodes", CDI_EDITS)
def device_nodes_exist(bench: Bench) -> None:
    """Device nodes in the edits exist on the host, with the same type and numbers.

    A runtime fails the container if a device node has no type and major, and its path is not a device node.
    """
    for what, edits in _samples(bench):
        _raise_first(what, bench.subject.host.node_problems(edits), "name a node of the device")


@basic("prepare-cdi-hooks", "opencontainers/runtime-spec config.md (POSIX-platform Hooks, Mounts)")
def hooks_can_run(bench: Bench) -> None:
    """Hooks in the edits are executable files, and sources of mounts exist.

    A runtime that cannot run a hook, or mount a source, fails the container.
    """
    for what, edits in _samples(bench):
        _raise_first(what, bench.subject.host.hook_problems(edits), "install it or remove it from the edits")


@basic("prepare-cdi-isolation", "opencontainers/runtime-spec config-linux.md (Devices, Allowed Device list)")
def the_host_stays_closed(bench: Bench) -> None:
    """No device node in the edits gives access to the host's disks or memory.

    Edits give the container full access to each device node.
    """
    for what, edits in _samples(bench):
        for path, opens in bench.subject.host.dangers(edits):
            if opens != "a block device" or not bench.subject.has_disks:
                raise ViolationError(
                    f"{what}: deviceNodes: {shown(path)} is {opens}; remove it (--block-devices allows disks)"
                )


@basic("prepare-cdi-differs", f"{HELPER}:77-82", needs=("2-devices",))
def devices_differ(bench: Bench) -> None:
    """Two devices that exclude other users get different edits, with separate device nodes if they have any.

    The DRA driver is the last line of defense against using the same device for two different unrelated workloads.
    """
    slices, usable = bench.slices(), bench.scheduler.usable()
    for largest in (False, True):
        pair = together(slices, usable, 2, largest=largest)
        if len(pair) < 2:
            raise NotApplicableError("every two devices are shared or exclude each other")
        claims = [bench.claim(keys={device.key}) for device in pair]
        sides = [(claim.key.uid, bench.edits(bench.prepared(claim), f"claim {claim.key}")) for claim in claims]
        if sides[0][1].parts and (same := sameness(sides)):
            raise ViolationError(
                f"claims for devices {pair[0].name} and {pair[1].name}: {same}; "
                "give each device the edits of its hardware"
            )
        for claim in claims:
            bench.finish(claim)


def _samples(bench: Bench) -> Iterator[tuple[str, MergedEdits]]:
    """The edits of the default claim, and of the largest device."""
    for claim in (bench.claim(), largest_claim(bench)):
        if claim is not None:
            devices = bench.prepared(claim)
            what = f"claim for {', '.join(sorted(shown(name) for _, name in claim.devices())[:4])}"
            yield what, bench.edits(devices, what)
            bench.finish(claim)


def largest_claim(bench: Bench) -> CheckClaim | None:
    """Claim the largest device: a small one may be a partition that admin access cannot create."""
    found = [one for one in bench.scheduler.usable() if not one.is_shared]
    with suppress(UnableError):  # the largest may exclude a device of another claim
        return bench.claim(keys={max(found, key=size).key}) if found else None
    return None


def _raise_first(what: str, problems: Iterable[str], advice: str) -> None:
    for problem in problems:
        raise ViolationError(f"{what}: {problem}; {advice}")


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


@basic("prepare-device-in-use", f"{HELPER}:77-82")
def device_in_use(bench: Bench) -> None:
    """A device of another claim is not prepared again.

    A DRA driver should verify that all devices are not already in use for some other ResourceClaim: it is the last
    line of defense.
    """
    first = bench.exclusive_claim()
    bench.prepared(first)
    second = bench.claim(keys=first.devices(), busy=True)
    if not bench.refusal(second.key, waits=True):
        raise ViolationError(
            f"device {min(first.devices())[1]} was prepared for claims {first.key} and {second.key}; expected an error"
        )
    bench.unprepared(second.key)
    bench.prepared(first)


@basic("prepare-device-twice", f"{HELPER}:77-82")
def device_twice_in_a_call(bench: Bench) -> None:
    """A device of two claims in one call is prepared for at most one of them.

    A DRA driver should verify that all devices are not already in use for some other ResourceClaim.
    """
    first = bench.exclusive_claim()
    claims = [first, bench.claim(keys=first.devices(), busy=True)]
    call = partial(bench.plugin().prepare, [claim.key for claim in claims], bench.limits.in_use_s)
    bench.check_granted_once(claims, [call])


@basic("prepare-overlap", "staging/src/k8s.io/api/resource/v1/types.go:185-240", needs=("partitions",))
def overlapping_devices(bench: Bench) -> None:
    """Only one of two devices that together exceed a counter is prepared at a time.

    Devices consume counters of the counter sets of their pool: both devices are the same hardware.
    """
    slices, usable = bench.slices(), sorted((one for one in bench.scheduler.usable() if not one.is_shared), key=size)
    pair = next(_overlapping(slices, usable), None)
    if pair is None:
        raise NotApplicableError("the driver has no untainted devices that exclude each other")
    small, large = (bench.claim(keys={device.key}, busy=True) for device in pair)
    bench.prepared(small)
    if not bench.refusal(large.key, waits=True):
        raise ViolationError(
            f"device {pair[1].name} was prepared while claim {small.key} has device {pair[0].name}, although both "
            "need more of their counters than the pool has; expected an error"
        )


def _overlapping(
    slices: list[JsonObject], usable: list[PublishedDevice]
) -> Iterator[tuple[PublishedDevice, PublishedDevice]]:
    for small in (device for device in usable if device.is_partition):
        for large in reversed(usable):
            if small.charges.keys() & large.charges.keys() and len(together(slices, [small, large], 2)) < 2:
                yield small, large


@basic("prepare-error-per-claim", f"{PROTO}:25-28", level="should")
def error_of_one_claim(bench: Bench) -> None:
    """A claim that fails does not fail other claims of the call.

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
    """The driver ignores devices of other drivers in the same claim.

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
    """The driver ignores configuration for other drivers.

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

    namespace, uid and name are required; a driver that builds file names from them must check them.
    """
    claim, mark = bench.claim(), f"dra-conformance-{uuid.uuid4().hex[:12]}"
    own = [*bench.subject.cdi_dirs, bench.subject.registrar_dir, Path(bench.plugin().info.endpoint).parent]
    escapes = [f"{'../' * depth}{mark}" for depth in (1, 2, 3)] + [f"{own[0].resolve().parent}/{mark}"]
    with _canaries(bench.subject.cdi_dirs, mark) as canaries:
        for uid in (*escapes, "", "x" * 4096, "a b\nc"):
            for name in (claim.key.name, f"../{mark}"):
                key = ClaimKey(namespace=NAMESPACE, name=name, uid=uid)
                bench.refusal(key)
                bench.ended(key)
            if lost := [path for path in canaries if not path.exists()]:
                raise ViolationError(f"unprepare of a claim with UID {shown(uid)!r} deleted {lost[0]}; {_CHECK_UIDS}")
            if left := [path for path in _beside(own) if mark in path.name and path not in canaries]:
                raise ViolationError(
                    f"a claim with UID {shown(uid)!r} left {left[0]} outside of the driver's directories; {_CHECK_UIDS}"
                )
    bench.prepared(claim)


_CHECK_UIDS: Final = "accept only UIDs without a slash, and build no path from other UIDs"
_LEVELS: Final = 3
_MAX_NAMES: Final = 100_000


@contextmanager
def _canaries(folders: Iterable[Path], mark: str) -> Iterator[list[Path]]:
    """Files next to the CDI directories that a path made of a UID can hit; none where the suite cannot write."""
    made: list[Path] = []
    try:
        for path in {folder.resolve().parent / f"{mark}{ending}" for folder in folders for ending in ("", ".json")}:
            with suppress(OSError):
                path.touch(exist_ok=False)
                made.append(path)
        yield made
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def _beside(folders: Iterable[Path]) -> Iterator[Path]:
    """Entries of the directories above these, up to `_LEVELS`, that are outside of these."""
    resolved = {folder.resolve() for folder in folders}
    above = {parent for folder in resolved for parent in folder.parents[:_LEVELS]}
    for parent in sorted(above):
        if parent not in resolved and not resolved & set(parent.parents):
            with suppress(OSError):
                yield from islice(parent.iterdir(), _MAX_NAMES)


def check_devices(bench: Bench, claim: CheckClaim, devices: tuple[AnsweredDevice, ...]) -> None:
    """Raise ViolationError unless the answer has the claim's devices of this driver, each with its request."""
    own = [result for result in claim.results if result["driver"] == bench.subject.driver]
    wanted = sorted((result["pool"], result["device"]) for result in own)
    found = sorted((device.pool, device.device) for device in devices)
    if sorted(set(found)) != sorted(set(wanted)) or len(found) < len(wanted):
        raise ViolationError(
            f"the answer has devices {_pairs(found)}, the claim's allocation has {_pairs(wanted)}",
            reason="DevicesDiffer",
        )
    requests = _requests(bench, claim)
    for device in devices:
        if not set(device.requests) <= requests:
            raise ViolationError(
                f"device {device.device} has request_names {[shown(one) for one in device.requests]}, expected some of "
                f"{sorted(requests)}"
            )


def _requests(bench: Bench, claim: CheckClaim) -> set[str]:
    own = (result for result in claim.results if result["driver"] == bench.subject.driver)
    return {result["request"].partition("/")[0] for result in own}


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
    """Unprepare of a claim that was never prepared succeeds.

    It is not an error if this gets called for a ResourceClaim which is not currently prepared.
    """
    bench.unprepared(_absent())


@basic("unprepare-claim-gone", f"{HELPER}:100-104")
def claim_is_gone(bench: Bench) -> None:
    """A claim whose object is deleted is unprepared.

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
    """After unprepare, the device can be prepared for another claim.

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

    The driver unprepares only the claims of the request.
    """
    kept, ended = bench.claim(), bench.claim()
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    bench.check_resolves(before, "unprepare of one claim removed devices of another")
    if bench.prepared(kept) != before:
        raise ViolationError("unprepare of one claim changed the answer for another")


@basic("unprepare-files", f"{HELPER}:90-98")
def files_go(bench: Bench) -> None:
    """CDI files and ids of the claim are removed.

    UnprepareResourceClaims must undo whatever work PrepareResourceClaims did. It is possible to create the CDI spec
    files on-the-fly.
    """
    folders = bench.subject.cdi_dirs
    before = cdi_folder.resolved(folders)
    claim = bench.claim()
    made = {name for device in bench.prepared(claim) for name in device.cdi_ids} - before
    bench.unprepared(claim.key)
    left = [path.name for path in cdi_folder.files(folders) if claim.key.uid in path.name]
    left += sorted(made & cdi_folder.resolved(folders))
    if left:
        raise ViolationError(
            f"claim {claim.key} was unprepared, but its CDI files or ids remain: {', '.join(map(shown, left[:4]))}; "
            "delete them, or a container that names them still gets the device"
        )


def _absent() -> ClaimKey:
    return ClaimKey(namespace=NAMESPACE, name="absent", uid=str(uuid.uuid4()))
