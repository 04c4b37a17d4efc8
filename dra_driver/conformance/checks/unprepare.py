"""NodeUnprepareResources: repetition, unknown claims, and claims whose object is gone."""

import uuid

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER, PROTO
from dra_driver.conformance.cluster import NAMESPACE
from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.values import ViolationError, basic


@basic("unprepare-nothing", f"{PROTO}:32-35")
def nothing(bench: Bench) -> None:
    """A call without claims succeeds.

    The same error handling rules apply as for NodePrepareResources.
    """
    bench.unprepared()


@basic("unprepare-answers", f"{PROTO}:89-95")
def answered(bench: Bench) -> None:
    """A prepared claim is unprepared, with one entry in the answer.

    All claims in the request must have an entry in the response, even if that entry is nil.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)


@basic("unprepare-repeated", f"{HELPER}:112-113")
def repeated(bench: Bench) -> None:
    """A repeated unprepare succeeds.

    This call must be idempotent because the kubelet might have to ask for un-preparation multiple times.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    bench.unprepared(claim.key)


@basic("unprepare-unknown", f"{HELPER}:114-115")
def unknown(bench: Bench) -> None:
    """A claim that was never prepared is no error.

    It is not an error if this gets called for a ResourceClaim which is not currently prepared.
    """
    bench.unprepared(_unknown())


@basic("unprepare-claim-gone", f"{HELPER}:100-104")
def claim_is_gone(bench: Bench) -> None:
    """A claim whose object was deleted is unprepared.

    At the time when this gets called, the original ResourceClaims may have been deleted already.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.cluster.delete_claim(claim.wire)
    bench.unprepared(claim.key)


@basic("unprepare-mixed", f"{HELPER}:120-122")
def known_and_unknown(bench: Bench) -> None:
    """Known and unknown claims in one call all get an entry.

    All claims must have an entry in the response, even if that entry is nil.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(_unknown(), claim.key, _unknown())


@basic("unprepare-frees", f"{HELPER}:98")
def device_is_free_again(bench: Bench) -> None:
    """The device can be prepared for another claim afterwards.

    UnprepareResourceClaims must undo whatever work PrepareResourceClaims did.
    """
    keys = {device.key for device in bench.scheduler.devices() if not device.is_shared and not device.is_blocked}
    first = bench.claim(keys=keys)
    bench.prepared(first)
    bench.unprepared(first.key)
    bench.prepared(bench.claim(keys=first.devices(), busy=True))


@basic("unprepare-then-prepare", "pkg/kubelet/cm/dra/manager.go:628-638")
def prepared_again(bench: Bench) -> None:
    """A claim can be prepared again after it was unprepared.

    The next pod of a claim that several pods use makes the kubelet prepare it again.
    """
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    if problem := bench.unresolved(bench.prepared(claim)):
        raise ViolationError(f"after unprepare and a second prepare: {problem}")


@basic("unprepare-others-stay", f"{PROTO}:89-95", needs=("2-devices",))
def others_stay(bench: Bench) -> None:
    """Other claims stay prepared.

    The claims of the request are reverted, and no others.
    """
    kept, ended = bench.claim(), bench.claim()
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    if problem := bench.unresolved(before):
        raise ViolationError(f"unprepare of one claim took devices of another: {problem}")
    if bench.prepared(kept) != before:
        raise ViolationError("unprepare of one claim changed the answer for another")


@basic("unprepare-files", f"{HELPER}:90-92", level="should")
def files_go(bench: Bench) -> None:
    """CDI files of the claim are removed.

    It is possible to create the CDI spec files on-the-fly; UnprepareResourceClaims then can remove them.
    """
    folders = bench.subject.cdi_dirs
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    left = [path.name for path in cdi_folder.files(folders) if claim.key.uid in path.name]
    if left:
        raise ViolationError(f"CDI files of the claim remain: {', '.join(left[:4])}")


def _unknown() -> ClaimKey:
    return ClaimKey(namespace=NAMESPACE, name="never-prepared", uid=str(uuid.uuid4()))
