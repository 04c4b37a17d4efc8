"""The API server refuses, denies, conflicts, is busy, slow or silent: prepared claims do not notice."""

import ssl
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import pairwise

import pytest
import trustme

from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.server import ApiServer
from tests.chaos.stage import SHORT_S, FaultRecord, Stage
from tests.fakes.live_claims import gpu
from tests.fakes.live_node import until
from tests.fakes.recording_proxy import GOOD, Call, Misbehaviour

FAULT_S = 6.0  # how long each fault lasts
GROWTH_S = 15.0  # for four pauses that double from half a second
RETRY_AFTER_S = 4


def everything(found: Misbehaviour) -> Callable[[Call], Misbehaviour]:
    return lambda call: found


@pytest.mark.parametrize(
    ("status", "reason", "hint"),
    [
        pytest.param(
            401, "Unauthorized", "; check the service account's", marks=pytest.mark.fault("api-401"), id="401"
        ),
        pytest.param(403, "Forbidden", "; check the ClusterRole", marks=pytest.mark.fault("api-403"), id="403"),
        pytest.param(500, "InternalError", "", marks=pytest.mark.fault("api-500"), id="500"),
        pytest.param(429, "TooManyRequests", "", marks=pytest.mark.fault("api-429"), id="429"),
    ],
)
def test_refusals_delay_new_claims_alone(status: int, reason: str, hint: str, stage: Stage, fault: FaultRecord) -> None:
    claim = stage.spare_claim()
    extra = stage.hold("extra", gpu(of=stage.node.gpus[5:]))
    asked = len(stage.proxy.calls)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == 429 else {}
    stage.proxy.rule = everything(Misbehaviour(status=status, reason=reason, headers=headers))
    stage.node.remove_slices()
    stage.proxy.drop_connections()
    seen = stage.prepare(claim)
    assert f"{status} {reason}: {reason}, said by the test{hint}" in seen, seen
    stage.assert_intact()
    assert stage.node.unprepare(stage.end("extra")) == "", "it needs no API server"
    time.sleep(FAULT_S)
    if status == 429:
        _assert_paced(stage.proxy.calls[asked:])
    stage.proxy.rule = everything(GOOD)
    since = time.monotonic()
    stage.scheduler.release(extra)
    stage.finish(fault, since, seen=seen, waited=claim)


def _pauses(calls: list[Call]) -> Iterator[list[float]]:
    """By path: the pauses between lists. A list of many parts comes back at once, and counts as one."""
    begun: dict[str, list[float]] = {}
    for call in calls:
        if "watch=" not in call.path and "?" in call.path:
            begun.setdefault(call.path.partition("?")[0], []).append(call.at)
    for times in begun.values():
        yield [later - earlier for earlier, later in pairwise(times) if later - earlier > 0.1]


def _assert_paced(calls: list[Call]) -> None:
    last: dict[str, float] = {}
    for call in calls:
        path = f"{call.verb} {call.path.partition('?')[0]}"
        if "/resourceclaims/" in path:
            continue
        assert call.at - last.get(path, 0.0) > 0.9 * RETRY_AFTER_S, f"{path} again after {call.at - last[path]:.1f} s"
        last[path] = call.at


@pytest.mark.fault("api-refused")
def test_a_refused_connection_delays_new_claims_alone(stage: Stage, fault: FaultRecord) -> None:
    claim = stage.spare_claim()
    stage.proxy.refuse()
    stage.node.remove_slices()
    seen = stage.prepare(claim)
    assert "connection refused" in seen
    stage.assert_intact()
    time.sleep(FAULT_S)
    stage.proxy.accept()
    stage.finish(fault, time.monotonic(), seen=seen, waited=claim)


@pytest.mark.fault("api-409")
def test_conflicts_of_writes_end_with_the_conflict(stage: Stage, fault: FaultRecord) -> None:
    conflict = Misbehaviour(status=409, reason="Conflict")
    stage.proxy.rule = lambda call: GOOD if call.verb == "GET" else conflict
    stage.node.remove_slices()
    seen = stage.wait_logged("409 Conflict")
    claim = stage.spare_claim_without_slices()
    assert stage.prepare(claim) == ""
    stage.assert_intact()
    time.sleep(FAULT_S)
    stage.proxy.rule = everything(GOOD)
    stage.finish(fault, time.monotonic(), seen=seen, waited=claim)


@pytest.mark.fault("api-410")
def test_expired_versions_end_in_a_new_list(stage: Stage, fault: FaultRecord) -> None:
    expired = Misbehaviour(status=410, reason="Expired")
    stage.proxy.rule = lambda call: expired if "?" in call.path and call.verb == "GET" else GOOD
    stage.proxy.drop_connections()
    stage.node.remove_slices()
    asked = len(stage.proxy.calls)
    time.sleep(GROWTH_S)
    pauses = max(_pauses(stage.proxy.calls[asked:]), key=len)
    assert len(pauses) >= 3, "too few to call them growing"
    # Each pause doubles, and is shortened by up to half (core/backoff.py): the next but one is longer in any case.
    assert all(later > earlier for earlier, later in zip(pauses, pauses[2:], strict=False)), pauses
    shown = ", ".join(f"{pause:.1f}" for pause in pauses)
    seen = f"lists again after {shown} s: {stage.wait_logged('410 Expired')}"
    stage.assert_intact()
    claim = stage.spare_claim_without_slices()
    assert stage.prepare(claim) == "", "a GET of a claim needs no version"
    stage.proxy.rule = everything(GOOD)
    stage.finish(fault, time.monotonic(), seen=seen, waited=claim)


@pytest.mark.fault("api-slow")
def test_a_slow_api_server_slows_new_claims_alone(stage: Stage, fault: FaultRecord) -> None:
    stage.proxy.rule = everything(Misbehaviour(delay_s=2.0))
    claim = stage.spare_claim()
    stage.node.remove_slices()
    began = time.monotonic()
    assert stage.prepare(claim, 45.0) == ""
    took = time.monotonic() - began
    assert 2.0 <= took < 10.0
    began = time.monotonic()
    stage.assert_intact()
    assert time.monotonic() - began < 2.0, "what is prepared needs no API server"
    stage.proxy.rule = everything(GOOD)
    stage.finish(
        fault, time.monotonic(), seen=f"a prepare takes {took:.1f} s, a repeated one as long as ever", waited=claim
    )


@pytest.mark.fault("api-half-open")
def test_silent_connections_are_given_up(stage: Stage, fault: FaultRecord) -> None:
    claim = stage.spare_claim()
    stage.proxy.silent.set()
    stage.node.remove_slices()
    seen = stage.prepare(claim, SHORT_S)
    assert "GET" in seen, seen
    stage.assert_intact()
    time.sleep(FAULT_S)
    stage.proxy.silent.clear()
    stage.finish(fault, time.monotonic(), seen=seen, waited=claim)


@pytest.mark.fault("api-watch-closed")
def test_watches_that_end_each_second_cost_little(stage: Stage, fault: FaultRecord) -> None:
    stage.proxy.rule = everything(Misbehaviour(watch_s=1.0))
    stage.proxy.drop_connections()
    time.sleep(2.0)
    asked = len(stage.proxy.calls)
    time.sleep(10.0)
    count = len(stage.proxy.calls) - asked
    assert count < 60, [call.path for call in stage.proxy.calls[asked:]]
    stage.node.remove_slices()
    until(stage.node._published, "the slices to be published in spite of it", 30.0)
    stage.assert_intact()
    claim = stage.spare_claim()
    stage.proxy.rule = everything(GOOD)
    stage.finish(
        fault, time.monotonic(), seen=f"{count} requests in 10 s; slices deleted meanwhile come back", waited=claim
    )


@pytest.mark.parametrize("hours", [2, -2])
@pytest.mark.fault("clock-skew")
def test_clocks_that_differ_by_hours_change_nothing(hours: int, stage: Stage, fault: FaultRecord) -> None:
    node = stage.node
    node.api.stop()
    node.api = ApiServer(successor_of=node.api, clock=lambda: utc_now() + timedelta(hours=hours))
    node.api.start()
    since = time.monotonic()
    node.remove_slices()
    node.kill()
    node.start()
    stage.assert_intact()
    stage.finish(
        fault, since, seen=f"the API server is {hours:+d} h away; nothing is noticed", waited=stage.spare_claim()
    )


class Authority:
    """A CA of the API server that can be replaced, with the file in which clients find it."""

    def __init__(self, stage: Stage) -> None:
        self.file = stage.node.root / "ca.crt"
        self.rotate()

    def rotate(self) -> None:
        """A new CA, a new certificate, and the new CA in the file, as the kubelet renews it in a pod."""
        authority = trustme.CA()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._context)
        self.file.write_bytes(authority.cert_pem.bytes())

    def context(self) -> ssl.SSLContext:
        return self._context


@pytest.mark.fault("api-ca-rotated")
def test_a_new_authority_is_taken_from_its_file(fault: FaultRecord) -> None:
    stage = Stage()
    authority = Authority(stage)
    stage.serve_tls(authority.context, {"certificate-authority": str(authority.file)})
    with stage:
        authority.rotate()
        stage.proxy.drop_connections()
        since = time.monotonic()
        stage.node.remove_slices()
        claim = stage.spare_claim_without_slices()
        seen = stage.prepare(claim, 45.0)
        assert seen == ""
        seen = stage.wait_logged("certificate|credentials read again")
        stage.assert_intact()
        stage.finish(fault, since, seen=seen, waited=claim)
