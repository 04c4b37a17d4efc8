"""Calls that overlap, calls whose caller has given up, many calls in a row, and the largest claims and calls."""

import uuid
from collections.abc import Sequence
from typing import Final

from dra_driver.conformance import cdi_folder
from dra_driver.conformance.bench import Bench
from dra_driver.conformance.checks.prepare import HELPER, KUBELET, PROTO, TYPES, check_devices
from dra_driver.conformance.cluster import NAMESPACE
from dra_driver.conformance.plugin import ClaimKey, PrepareAnswer, check_complete, read_prepared
from dra_driver.conformance.published import MANY, together
from dra_driver.conformance.values import ViolationError, full
from dra_driver.core.unix_grpc import CallError, PendingCall

CALLS: Final = 6
ROUNDS: Final = 10
GIVEN_UP_S: Final = (0.001, 0.01, 0.05)


@full("parallel-same-claim", f"{HELPER}:74-75, pkg/kubelet/cm/dra/plugin/dra_plugin.go:82")
def same_claim(bench: Bench) -> None:
    """Overlapping prepares of one claim give the same answer.

    This call must be idempotent. After its deadline of 45 s, the kubelet calls again while the driver may still
    work on the first call.
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


@full("parallel-given-up", "test/e2e_node/dra_test.go:203, 270")
def caller_gave_up(bench: Bench) -> None:
    """A claim is prepared after calls that the kubelet gave up.

    must keep pod in pending state if NodePrepareResources times out; the kubelet then calls again.
    """
    claim = bench.claim()
    for seconds in GIVEN_UP_S:
        pending = bench.plugin().begin_prepare([claim.key])
        bench.pause(seconds)
        pending.cancel()
    bench.check_resolves(bench.prepared(claim), "after calls that the kubelet gave up")
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
    """Ten claims leave no files behind.

    UnprepareResourceClaims must undo whatever work PrepareResourceClaims did.
    """
    _one_claim(bench)
    before = len(cdi_folder.files(bench.subject.cdi_dirs))
    for _ in range(ROUNDS):
        _one_claim(bench)
    after = len(cdi_folder.files(bench.subject.cdi_dirs))
    if after >= before + ROUNDS:
        raise ViolationError(f"the CDI folders had {before} files before {ROUNDS} claims and have {after} after them")


def _one_claim(bench: Bench) -> None:
    claim = bench.prepared_claim()
    bench.finish(claim)


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
    chosen = together(bench.slices(), usable, MANY)
    claim = bench.claim(keys={device.key for device in chosen}, count=MANY)
    devices = bench.prepared(claim)
    check_devices(bench, claim, devices)
    bench.check_resolves(devices, f"a claim with {MANY} devices")
    bench.unprepared(claim.key)


@full("large-100-claims", f"{PROTO}:89-95")
def many_claims(bench: Bench) -> None:
    """A call with 100 claims gets 100 entries.

    All claims in the request must have an entry in the response. A message has at most 4 MiB.
    """
    keys = [
        ClaimKey(namespace=NAMESPACE, name=f"never-prepared-{at}" + "x" * 200, uid=str(uuid.uuid4()))
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
