"""Check shares of devices (KEP-5075), admin access (KEP-5018), overlapping and abandoned calls, and largest inputs."""

import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final

from dra_driver.conformance import cdi_folder, cluster
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER, KUBELET, PROTO, check_devices, largest_claim
from dra_driver.conformance.checks.registration import TYPES
from dra_driver.conformance.plugin import AnsweredDevice, ClaimKey, PrepareAnswer, check_complete, read_prepared
from dra_driver.conformance.values import NotApplicableError, ViolationError, full
from dra_driver.core.unix_grpc import CallError, PendingCall


@full("share-ids", f"{TYPES}:1845-1854, {PROTO}:79-81", needs=("shares",))
def share_ids(bench: Bench) -> None:
    """The answer for a share contains its share id.

    ShareID uniquely identifies an individual allocation share of the device.
    """
    claim = _share(bench)
    _check_ids(claim, bench.prepared(claim))


@full(
    "share-two-claims", f"{TYPES} (Device.AllowMultipleAllocations), test/e2e_node/dra_test.go:1296", needs=("shares",)
)
def two_claims(bench: Bench) -> None:
    """Two claims can have shares of one device.

    AllowMultipleAllocations marks whether the device is allowed to be allocated to multiple DeviceRequests.
    """
    first, second = _share(bench), _share(bench)
    for claim in (first, second):
        devices = bench.prepared(claim)
        _check_ids(claim, devices)
        bench.check_resolves(devices, "two shares of one device")


@full("share-twice", f"{TYPES}:1845-1854, test/e2e_node/dra_test.go:1310", needs=("shares",))
def twice_in_one_claim(bench: Bench) -> None:
    """One claim can have two shares of one device.

    ShareID serves as an additional map key to differentiate concurrent shares of the same device.
    """
    device = _shared(bench)
    [request] = cluster.default_spec(bench.cluster.class_name, **_smallest(device))["devices"]["requests"]
    requests = [{**request, "name": name} for name in ("first", "second")]
    claim = bench.claim(keys={device.key}, spec={"devices": {"requests": requests}})
    _check_ids(claim, bench.prepared(claim))


@full("share-one-ends", f"{TYPES}:1845-1854, 2082", needs=("shares",))
def one_ends(bench: Bench) -> None:
    """The end of one share leaves all other shares prepared.

    Shares are keyed by driver, pool, device and ShareID.
    """
    kept, ended = _share(bench), _share(bench)
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    bench.check_resolves(before, "the end of one share removed the device of another share")
    if bench.prepared(kept) != before:
        raise ViolationError("the end of one share changed the answer for another")


@full("admin-beside-user", f"{TYPES}:1083-1094", needs=("admin-access",))
def admin_beside_user(bench: Bench) -> None:
    """Admin access works while a claim holds the device.

    Claims with AdminAccess ignore all ordinary claims to the device with respect to access modes and any resource
    allocations.
    """
    user = _exclusive(bench)
    bench.prepared(user)
    admin = bench.claim(keys=user.devices(), busy=True, adminAccess=True)
    devices = bench.prepared(admin)
    bench.check_resolves(devices, "a claim with admin access to a device in use")


@full("admin-leaves-device-free", f"{TYPES}:1083-1094", needs=("admin-access",))
def user_beside_admin(bench: Bench) -> None:
    """Admin access does not block the device for other claims.

    Claims with AdminAccess are expected to be used for monitoring or other management services.
    """
    user = _exclusive(bench)
    admin = bench.claim(keys=user.devices(), busy=True, adminAccess=True)
    bench.prepared(admin)
    bench.prepared(user)


@full("admin-ends", f"{TYPES}:1083-1094", needs=("admin-access",))
def admin_ends(bench: Bench) -> None:
    """The end of admin access changes nothing for the device's user.

    Claims with AdminAccess are expected to be used for monitoring or other management services.
    """
    user = _exclusive(bench)
    before = bench.prepared(user)
    admin = bench.claim(keys=user.devices(), busy=True, adminAccess=True)
    bench.prepared(admin)
    bench.unprepared(admin.key)
    bench.check_resolves(before, "the end of admin access removed the user's device")
    if bench.prepared(user) != before:
        raise ViolationError("the end of admin access changed the answer for the user's claim")


def _share(bench: Bench) -> cluster.CheckClaim:
    device = _shared(bench)
    return bench.claim(keys={device.key}, **_smallest(device))


def _shared(bench: Bench) -> cluster.PublishedDevice:
    found = [one for one in bench.scheduler.devices() if one.is_shared and not one.is_blocked]
    if not found:
        raise NotApplicableError("every shared device has a taint")
    return found[0]


def _smallest(device: cluster.PublishedDevice) -> cluster.JsonObject:
    amounts = {}
    for name, capacity in (device.wire.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        if policy.get("validRange") or policy.get("validValues"):
            amounts[name] = policy["validRange"]["min"] if policy.get("validRange") else policy["validValues"][0]
    return {"capacity": {"requests": amounts}} if amounts else {}


def _exclusive(bench: Bench) -> cluster.CheckClaim:
    claim = largest_claim(bench)
    if claim is None:
        raise NotApplicableError("every device is shared or has a taint")
    return claim


def _check_ids(claim: cluster.CheckClaim, devices: tuple[AnsweredDevice, ...]) -> None:
    wanted = sorted(str(result.get("shareID", "none")) for result in claim.results)
    found = sorted(device.share_id or "none" for device in devices)
    if wanted != found:
        raise ViolationError(f"the answer has share ids {found[:4]}, the claim's allocation has {wanted[:4]}")


CALLS: Final = 6
ROUNDS: Final = 10
GIVEN_UP_S: Final = (0.001, 0.01, 0.05)


@full("parallel-same-claim", f"{HELPER}:74-75, pkg/kubelet/cm/dra/plugin/dra_plugin.go:82")
def same_claim(bench: Bench) -> None:
    """Overlapping prepares of one claim give the same answer.

    This call must be idempotent. After its deadline of 45 s, the kubelet calls again while the driver may still
    process the first call.
    """
    claim = bench.claim()
    plugin = bench.plugin()
    answers = _all(bench, [plugin.begin_prepare([claim.key]) for _ in range(CALLS)])
    for answer in answers:
        check_complete("NodePrepareResources", [claim.key], answer)
        if error := answer[claim.key.uid].error:
            raise ViolationError(f"one of {CALLS} calls for the same claim failed: {error}")
    if len({answer[claim.key.uid].sorted() for answer in answers}) > 1:
        raise ViolationError(f"{CALLS} calls at the same time for one claim gave different answers")


@full("parallel-claims", f"{KUBELET}:398-405", needs=("2-devices",))
def different_claims(bench: Bench) -> None:
    """Claims of two pods can be prepared at the same time.

    The kubelet starts pods in parallel, and each calls NodePrepareResources.
    """
    claims = [bench.claim() for _ in range(2)]
    plugin = bench.plugin()
    for claim, answer in zip(claims, _all(bench, [plugin.begin_prepare([claim.key]) for claim in claims]), strict=True):
        check_complete("NodePrepareResources", [claim.key], answer)
        if error := answer[claim.key.uid].error:
            raise ViolationError(f"a claim failed while another one was prepared: {error}")


@full("parallel-device-in-use", f"{HELPER}:77-82")
def same_device(bench: Bench) -> None:
    """A device of two claims in overlapping calls is prepared for at most one of them.

    The DRA driver is the last line of defense against using the same device for two different unrelated workloads.
    """
    first = bench.exclusive_claim()
    claims = [first, *(bench.claim(keys=first.devices(), busy=True) for _ in range(CALLS - 1))]
    plugin = bench.plugin()
    pending = [plugin.begin_prepare([claim.key], bench.limits.in_use_s) for claim in claims]
    bench.check_granted_once(claims, [partial(read_prepared, call) for call in pending])


@full("parallel-given-up", "test/e2e_node/dra_test.go:203, 270")
def caller_gave_up(bench: Bench) -> None:
    """A claim is prepared after calls that the kubelet canceled.

    must keep pod in pending state if NodePrepareResources times out; the kubelet then calls again.
    """
    claim = bench.claim()
    for seconds in GIVEN_UP_S:
        pending = bench.plugin().begin_prepare([claim.key])
        bench.pause(seconds)
        pending.cancel()
    bench.check_resolves(bench.prepared(claim), "after calls that the kubelet canceled")
    bench.unprepared(claim.key)


@full("parallel-unprepare", "test/e2e_node/dra_test.go:729")
def unprepare_twice_at_once(bench: Bench) -> None:
    """Overlapping unprepares of one claim all succeed.

    must call NodeUnprepareResources again if it's in progress for one plugin when Kubelet restarts
    """
    claim = bench.prepared_claim()
    plugin = bench.plugin()
    for pending in [plugin.begin_unprepare([claim.key]) for _ in range(CALLS)]:
        try:
            answer = pending.answer()
        except CallError as error:
            raise ViolationError(str(error)) from error
        if claim.key.uid not in answer.claims:
            raise ViolationError("an unprepare that overlaps another one has no entry for the claim")
        if error_text := answer.claims[claim.key.uid].error:
            raise ViolationError(f"an unprepare that overlaps another one failed: {error_text[:200]}")


@full("parallel-nothing-piles-up", f"{HELPER}:98")
def nothing_piles_up(bench: Bench) -> None:
    """Ten claims leave no files.

    UnprepareResourceClaims must undo whatever work PrepareResourceClaims did.
    """
    bench.finish(bench.prepared_claim())
    before = len(cdi_folder.files(bench.subject.cdi_dirs))
    for _ in range(ROUNDS):
        bench.finish(bench.prepared_claim())
    after = len(cdi_folder.files(bench.subject.cdi_dirs))
    if after >= before + ROUNDS:
        raise ViolationError(
            f"the CDI directories had {before} files before {ROUNDS} claims and have {after} after them"
        )


def _all(bench: Bench, pending: Sequence[PendingCall]) -> list[dict[str, PrepareAnswer]]:
    bench.left_s(1.0)
    try:
        return [read_prepared(call) for call in pending]
    except CallError as error:
        raise ViolationError(f"one of {len(pending)} calls at the same time failed: {error}") from error


CLAIMS: Final = 100
LONGEST_NAME: Final = 253


@full("large-32-devices", f"{TYPES}:1747-1749", needs=("32-devices",))
def many_devices(bench: Bench) -> None:
    """A claim with 32 devices is prepared.

    AllocationResultsMaxSize represents the maximum number of entries in allocation.devices.results: 32.
    """
    usable = bench.scheduler.usable()
    chosen = cluster.together(bench.slices(), usable, cluster.MANY)
    claim = bench.claim(keys={device.key for device in chosen}, count=cluster.MANY)
    devices = bench.prepared(claim)
    check_devices(bench, claim, devices)
    bench.check_resolves(devices, f"a claim with {cluster.MANY} devices")
    bench.unprepared(claim.key)


@full("large-100-claims", f"{PROTO}:89-95")
def many_claims(bench: Bench) -> None:
    """A call with 100 claims gets 100 entries.

    All claims in the request must have an entry in the response. A message has at most 4 MiB.
    """
    keys = [
        ClaimKey(namespace=cluster.NAMESPACE, name=f"never-prepared-{at}" + "x" * 200, uid=str(uuid.uuid4()))
        for at in range(CLAIMS)
    ]
    bench.unprepared(*keys)


@full("large-name", "staging/src/k8s.io/apimachinery/pkg/util/validation/validation.go (DNS1123SubdomainMaxLength)")
def long_name(bench: Bench) -> None:
    """A claim with the longest possible name is prepared.

    Names of objects are DNS subdomains of at most 253 characters.
    """
    name = (uuid.uuid4().hex + ".") * 8
    claim = bench.claim(name=name[:LONGEST_NAME].rstrip("."))
    bench.check_resolves(bench.prepared(claim), f"a claim with a name of {LONGEST_NAME} characters")
    bench.unprepared(claim.key)
