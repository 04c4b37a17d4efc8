"""NodeUnprepareResources: repetition, unknown claims, and claims whose object is gone."""

import uuid
from typing import Final

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER, PROTO
from dra_driver.conformance.cluster import NAMESPACE
from dra_driver.conformance.plugin import ClaimKey
from dra_driver.conformance.values import Check, ViolationError


def answered(bench: Bench) -> None:
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)


def nothing(bench: Bench) -> None:
    bench.unprepared()


def repeated(bench: Bench) -> None:
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    bench.unprepared(claim.key)


def unknown(bench: Bench) -> None:
    bench.unprepared(_unknown())


def claim_is_gone(bench: Bench) -> None:
    claim = bench.claim()
    bench.prepared(claim)
    bench.cluster.delete_claim(claim.wire)
    bench.unprepared(claim.key)


def known_and_unknown(bench: Bench) -> None:
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(_unknown(), claim.key, _unknown())


def device_is_free_again(bench: Bench) -> None:
    keys = {device.key for device in bench.scheduler.devices() if not device.is_shared and not device.is_blocked}
    first = bench.claim(keys=keys)
    bench.prepared(first)
    bench.unprepared(first.key)
    bench.prepared(bench.claim(keys=first.devices(), busy=True))


def prepared_again(bench: Bench) -> None:
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    if problem := bench.unresolved(bench.prepared(claim)):
        raise ViolationError(f"after unprepare and a second prepare: {problem}")


def others_stay(bench: Bench) -> None:
    kept, ended = bench.claim(), bench.claim()
    before = bench.prepared(kept)
    bench.prepared(ended)
    bench.unprepared(ended.key)
    if problem := bench.unresolved(before):
        raise ViolationError(f"unprepare of one claim took devices of another: {problem}")
    if bench.prepared(kept) != before:
        raise ViolationError("unprepare of one claim changed the answer for another")


def files_go(bench: Bench) -> None:
    folders = bench.subject.cdi_dirs
    claim = bench.claim()
    bench.prepared(claim)
    bench.unprepared(claim.key)
    left = [path.name for path in cdi_folder.files(folders) if claim.key.uid in path.name]
    if left:
        raise ViolationError(f"CDI files of the claim remain: {', '.join(left[:4])}")


def _unknown() -> ClaimKey:
    return ClaimKey(namespace=NAMESPACE, name="never-prepared", uid=str(uuid.uuid4()))


CHECKS: Final = (
    Check(
        id="unprepare-nothing",
        title="A call without claims succeeds",
        rule="The same error handling rules apply as for NodePrepareResources.",
        source=f"{PROTO}:32-35",
        run=nothing,
    ),
    Check(
        id="unprepare-answers",
        title="A prepared claim is unprepared, with one entry in the answer",
        rule="All claims in the request must have an entry in the response, even if that entry is nil.",
        source=f"{PROTO}:89-95",
        run=answered,
    ),
    Check(
        id="unprepare-repeated",
        title="A repeated unprepare succeeds",
        rule="This call must be idempotent because the kubelet might have to ask for un-preparation multiple times.",
        source=f"{HELPER}:112-113",
        run=repeated,
    ),
    Check(
        id="unprepare-unknown",
        title="A claim that was never prepared is no error",
        rule="It is not an error if this gets called for a ResourceClaim which is not currently prepared.",
        source=f"{HELPER}:114-115",
        run=unknown,
    ),
    Check(
        id="unprepare-claim-gone",
        title="A claim whose object was deleted is unprepared",
        rule="At the time when this gets called, the original ResourceClaims may have been deleted already.",
        source=f"{HELPER}:100-104",
        run=claim_is_gone,
    ),
    Check(
        id="unprepare-mixed",
        title="Known and unknown claims in one call all get an entry",
        rule="All claims must have an entry in the response, even if that entry is nil.",
        source=f"{HELPER}:120-122",
        run=known_and_unknown,
    ),
    Check(
        id="unprepare-frees",
        title="The device can be prepared for another claim afterwards",
        rule="UnprepareResourceClaims must undo whatever work PrepareResourceClaims did.",
        source=f"{HELPER}:98",
        run=device_is_free_again,
    ),
    Check(
        id="unprepare-then-prepare",
        title="A claim can be prepared again after it was unprepared",
        rule="The next pod of a claim that several pods use makes the kubelet prepare it again.",
        source="pkg/kubelet/cm/dra/manager.go:628-638",
        run=prepared_again,
    ),
    Check(
        id="unprepare-others-stay",
        title="Other claims stay prepared",
        rule="The claims of the request are reverted, and no others.",
        source=f"{PROTO}:89-95",
        run=others_stay,
        needs=("2-devices",),
    ),
    Check(
        id="unprepare-files",
        title="CDI files of the claim are removed",
        rule="It is possible to create the CDI spec files on-the-fly; UnprepareResourceClaims then can remove them.",
        source=f"{HELPER}:90-92",
        run=files_go,
        level="should",
    ),
)
