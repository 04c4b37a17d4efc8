"""Devices that several claims share (KEP-5075), and admin access (KEP-5018)."""

from typing import Final

from dra_driver.conformance.bench import Bench
from dra_driver.conformance.claims import CheckClaim, default_spec
from dra_driver.conformance.cluster import JsonObject
from dra_driver.conformance.plugin import AnsweredDevice
from dra_driver.conformance.published import PublishedDevice, size
from dra_driver.conformance.values import NotApplicableError, ViolationError, full

TYPES: Final = "staging/src/k8s.io/api/resource/v1/types.go"
PROTO: Final = "staging/src/k8s.io/kubelet/pkg/apis/dra/v1/api.proto"


@full("share-ids", f"{TYPES}:1845-1854, {PROTO}:79-81", needs=("shares",))
def share_ids(bench: Bench) -> None:
    """The answer for a share has its share id.

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
    [request] = default_spec(bench.cluster.class_name, **_smallest(device))["devices"]["requests"]
    requests = [{**request, "name": name} for name in ("first", "second")]
    claim = bench.claim(keys={device.key}, spec={"devices": {"requests": requests}})
    _check_ids(claim, bench.prepared(claim))


@full("share-one-ends", f"{TYPES}:1845-1854, 2082", needs=("shares",))
def one_ends(bench: Bench) -> None:
    """The end of one share leaves the others.

    Shares are keyed by driver, pool, device and ShareID.
    """
    kept, ended = _share(bench), _share(bench)
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    bench.check_resolves(before, "the end of one share took another one's device")
    if bench.prepared(kept) != before:
        raise ViolationError("the end of one share changed the answer for another")


@full("admin-beside-user", f"{TYPES}:1083-1094", needs=("admin-access",))
def admin_beside_user(bench: Bench) -> None:
    """Admin access works while a claim has the device.

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
    """Admin access does not keep others from the device.

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
    bench.check_resolves(before, "the end of admin access took the user's device")
    if bench.prepared(user) != before:
        raise ViolationError("the end of admin access changed the answer for the user's claim")


def _share(bench: Bench) -> CheckClaim:
    device = _shared(bench)
    return bench.claim(keys={device.key}, **_smallest(device))


def _shared(bench: Bench) -> PublishedDevice:
    found = [one for one in bench.scheduler.devices() if one.is_shared and not one.is_blocked]
    if not found:
        raise NotApplicableError("every shared device has a taint")
    return found[0]


def _smallest(device: PublishedDevice) -> JsonObject:
    """The part of a request that asks for the smallest share."""
    amounts = {}
    for name, capacity in (device.wire.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        if policy.get("validRange") or policy.get("validValues"):
            amounts[name] = policy["validRange"]["min"] if policy.get("validRange") else policy["validValues"][0]
    return {"capacity": {"requests": amounts}} if amounts else {}


def _exclusive(bench: Bench) -> CheckClaim:
    """A claim for the largest device: a small one may be a partition that only a claim makes, and admin access not."""
    found = [one for one in bench.scheduler.devices() if not one.is_shared and not one.is_blocked]
    if not found:
        raise NotApplicableError("every device is shared or has a taint")
    return bench.claim(keys={max(found, key=size).key})


def _check_ids(claim: CheckClaim, devices: tuple[AnsweredDevice, ...]) -> None:
    """Raise ViolationError unless the answer has the share id of every result."""
    wanted = sorted(str(result.get("shareID", "none")) for result in claim.results)
    found = sorted(device.share_id or "none" for device in devices)
    if wanted != found:
        raise ViolationError(f"the answer has share ids {found[:4]}, the claim's allocation has {wanted[:4]}")
