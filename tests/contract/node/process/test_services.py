"""The services and health streams as a kubelet calls them, over real gRPC on a unix socket."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.core import errors
from dra_driver.core.errors import ClaimReplacedError, DeviceInUseError
from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.core.telemetry.metrics import RESULTS
from dra_driver.node.process.endpoints import DRA_THREADS, SUPPORTED_VERSIONS
from dra_driver.node.process.health_report import (
    MAX_STREAMS,
    SLOW_S,
    TIMEOUT_S,
    DeviceReport,
    DeviceState,
    HealthStreams,
)
from dra_driver.node.process.server import MAX_REQUEST_BYTES, UnixServer
from dra_driver.node.process.service import MAX_CLAIMS, PREPARE_THREADS, result_of
from tests.contract.node.process.conftest import DRIVER, Plugin
from tests.contract.node.process.processes import until
from tests.fakes.claims import prepared_device
from tests.fakes.kubelet import DraClient, dial, get_info, notify, v1, v1beta1, watch_health

A, B = "b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e", "1d2e3f40-5d0a-4c61-9f7e-0f6f0a8cffff"


@pytest.fixture
def channel(plugin: Plugin) -> Iterator[grpc.Channel]:
    with dial(plugin.paths.dra) as made:
        yield made


@pytest.fixture
def client(channel: grpc.Channel) -> DraClient:
    return DraClient(channel)


def test_registration_names_the_newest_version_first_and_a_refusal_is_a_problem(plugin: Plugin) -> None:
    """The kubelet uses the first version in the list that it knows."""
    with dial(plugin.paths.registration) as channel:
        info = get_info(channel)
        notify(channel, registered=False, error="endpoint is taken")
        assert "endpoint is taken" in str(plugin.registration.problem)
        notify(channel, registered=True)
        assert plugin.registration.problem is None
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", DRIVER, str(plugin.paths.dra))
    assert tuple(info.supported_versions) == SUPPORTED_VERSIONS
    assert SUPPORTED_VERSIONS.index("v1.DRAPlugin") < SUPPORTED_VERSIONS.index("v1beta1.DRAPlugin")


@pytest.mark.parametrize("messages", [v1, v1beta1])
def test_prepare_answers_devices_in_both_versions(plugin: Plugin, channel: grpc.Channel, messages: object) -> None:
    response = DraClient(channel, messages).prepare(A, name="train")
    (entry,) = response.claims[A].devices
    assert list(entry.request_names) == ["main"]
    assert (entry.pool_name, entry.device_name) == ("node/gpu.nvidia.com", "gpu-0")
    assert list(entry.cdi_device_ids) == ["k8s.gpu.nvidia.com/claim=gpu-0"]
    assert [(ref.namespace, ref.name, ref.uid) for ref in plugin.preparer.prepared] == [("default", "train", A)]


def test_every_claim_is_answered_with_its_own_failure(plugin: Plugin, client: DraClient) -> None:
    """The kubelet keeps a pod terminating for as long as one entry is missing."""
    plugin.preparer.answers[B] = ClaimReplacedError("no")
    response = client.unprepare(A, B)
    assert {uid: entry.error for uid, entry in response.claims.items()} == {A: "", B: "no"}
    response = client.prepare(A, B)
    found = {uid: (entry.error, bool(entry.devices)) for uid, entry in response.claims.items()}
    assert found == {A: ("", True), B: ("no", False)}


def test_defect_in_the_preparer_is_an_answer_for_each_claim_not_a_dead_process(
    plugin: Plugin, client: DraClient, caplog: pytest.LogCaptureFixture
) -> None:
    def explode(_: object) -> None:
        raise ZeroDivisionError("secret detail")

    plugin.preparer.before = explode
    response = client.prepare(A, B)
    for uid in (A, B):
        assert uid in response.claims[uid].error
        assert "ZeroDivisionError" in response.claims[uid].error
        assert "secret detail" not in response.claims[uid].error
    assert any(record.exc_info for record in caplog.records)
    plugin.preparer.before = lambda _: None
    assert client.prepare(A).claims[A].devices


@pytest.mark.parametrize(
    ("uid", "fields"),
    [
        *((uid, {}) for uid in ("../../etc/cron.d/x", "", "a" * 65, "a\nb")),
        *((A, fields) for fields in ({"name": "Not A Name"}, {"namespace": "../kube-system"}, {"name": ""})),
    ],
)
def test_a_malformed_claim_gets_an_error_and_reaches_no_preparer(
    plugin: Plugin, client: DraClient, uid: str, fields: dict[str, Any]
) -> None:
    response = client.prepare(uid, **fields)
    assert "malformed" in response.claims[uid].error
    assert plugin.preparer.prepared == []


def test_a_call_names_no_claim_or_one_twice_and_answers_share_ids(plugin: Plugin, client: DraClient) -> None:
    assert not client.prepare().claims
    assert not client.unprepare().claims
    assert plugin.preparer.prepared == []
    plugin.preparer.answers[A] = (prepared_device(share_id="s-1"), prepared_device("gpu-1"))
    answer = client.prepare(A, A)
    assert (set(answer.claims), len(plugin.preparer.prepared)) == ({A}, 1)
    shared, whole = answer.claims[A].devices
    assert (shared.share_id, whole.HasField("share_id")) == ("s-1", False), "unset without a share"


def test_oversized_calls_are_refused_as_a_whole(plugin: Plugin, client: DraClient) -> None:
    with pytest.raises(grpc.RpcError) as too_many:
        client.prepare(*(f"u{number}" for number in range(MAX_CLAIMS + 1)))
    assert too_many.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(MAX_CLAIMS) in str(too_many.value.details())
    with pytest.raises(grpc.RpcError) as too_large:
        client.prepare(A, name="n" * MAX_REQUEST_BYTES)
    assert too_large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert plugin.preparer.prepared == []


def test_very_long_error_is_cut_so_that_the_answer_arrives(plugin: Plugin, client: DraClient) -> None:
    plugin.preparer.answers[A] = DeviceInUseError("x" * 10_000_000)
    assert 1000 < len(client.prepare(A).claims[A].error) <= 2000


def test_a_call_that_the_kubelet_gave_up_does_not_block_the_next(plugin: Plugin, client: DraClient) -> None:
    """After 45 s the kubelet gives up and later calls again, while the first call still runs here."""
    release = threading.Event()
    first = threading.Event()

    def slow_once(_: object) -> None:
        if not first.is_set():
            first.set()
            release.wait(10)

    plugin.preparer.before = slow_once
    with pytest.raises(grpc.RpcError) as gave_up:
        client.prepare(A, timeout=0.2)
    assert gave_up.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    assert client.prepare(A).claims[A].devices
    release.set()
    assert until(lambda: len(plugin.preparer.prepared) == 2)


def test_unprepare_is_served_however_many_prepares_wait(plugin: Plugin, client: DraClient) -> None:
    """With a silent API server all prepares wait; an unprepare needs none, and it may release their devices."""
    release = threading.Event()
    plugin.preparer.before = lambda _: wait_for(release)
    request = client._messages.NodePrepareResourcesRequest(claims=[client.claim(A)])
    waiting = [client.prepare_method.future(request, timeout=20) for _ in range(100)]
    assert until(lambda: plugin.prepares._work_queue.qsize() == len(waiting) - PREPARE_THREADS)
    assert not client.unprepare(B, timeout=2).claims[B].error
    assert not any(call.done() for call in waiting)
    release.set()
    assert all(call.result(10).claims[A].devices for call in waiting)


def test_the_preparer_gets_the_time_left_until_the_kubelets_deadline(plugin: Plugin, client: DraClient) -> None:
    client.prepare(A, timeout=5.0)
    client.unprepare(A, timeout=5.0)
    heard = [left or 0.0 for left in plugin.preparer.time_left]
    assert heard == pytest.approx([5.0, 5.0], abs=0.5), "the wire rounds a deadline"


def test_a_prepare_that_was_given_up_before_it_began_is_dropped(plugin: Plugin, client: DraClient) -> None:
    release = threading.Event()
    plugin.preparer.before = lambda _: wait_for(release)
    request = client._messages.NodePrepareResourcesRequest(claims=[client.claim(A)])
    busy = [client.prepare_method.future(request, timeout=20) for _ in range(PREPARE_THREADS)]
    assert until(lambda: len(plugin.prepares._threads) == PREPARE_THREADS)
    with pytest.raises(grpc.RpcError):
        client.prepare(B, timeout=0.1)
    client.unprepare(A)  # arrives after the cancellation, on the same connection
    release.set()
    assert all(call.result(10).claims[A].devices for call in busy)
    plugin.preparer.before = lambda _: None
    assert client.prepare(A).claims[A].devices
    assert B not in {ref.uid for ref in plugin.preparer.prepared}


def test_health_streams_take_no_thread_from_prepare(plugin: Plugin, client: DraClient, channel: grpc.Channel) -> None:
    """Each stream would otherwise hold a worker for ever."""
    streams = [watch_health(channel, "v1alpha1") for _ in range(MAX_STREAMS)]
    assert len(streams) > max(DRA_THREADS, PREPARE_THREADS)
    assert until(lambda: plugin.streams.count == MAX_STREAMS)
    assert client.prepare(A, timeout=5).claims[A].devices
    with pytest.raises(grpc.RpcError) as refused:
        next(watch_health(channel, "v1"))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for stream in streams:
        stream.cancel()
    assert until(lambda: plugin.streams.count == 0), "a cancelled stream must make room"


def wait_for(what: threading.Event) -> None:
    what.wait(20.0)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (None, "ok"),
        (errors.InvalidParametersError("x"), "configuration"),
        (errors.DeviceInUseError("x"), "claim"),
        (errors.DriverUnavailableError("x"), "hardware"),
        (errors.StorageError("x"), "retryable"),
        (errors.ForbiddenError("x"), "kubernetes-api"),
        (errors.DraError("x"), "internal"),
    ],
)
def test_every_branch_of_the_error_tree_has_its_label(error: errors.DraError | None, result: str) -> None:
    assert result_of(error) == result
    assert result in RESULTS
    branches = [branch for branch in errors.DraError.__subclasses__() if branch.__module__ == errors.__name__]
    assert len(branches) > 4
    assert {branch for branch in branches if result_of(branch("x")) == "internal"} == {errors.InvalidSpecError}


POOL = PoolName("node-a/gpu.nvidia.com")
SICK = DeviceReport(pool=POOL, device=DeviceName("gpu-0"), state=DeviceState.UNHEALTHY, message="XID 79: it is gone")
WELL = DeviceReport(pool=POOL, device=DeviceName("gpu-1"), state=DeviceState.HEALTHY)
UNKNOWN = DeviceReport(pool=POOL, device=DeviceName("gpu-2"), state=DeviceState.UNKNOWN)
LARGE = [
    DeviceReport(pool=POOL, device=DeviceName(f"gpu-{n}"), state=SICK.state, message="x" * 1024) for n in range(900)
]


class Server:
    """The streams on a socket, with a clock that a test turns."""

    def __init__(self, folder: Path) -> None:
        self.now = 0.0
        self.streams = HealthStreams(clock=lambda: self.now)
        self.path = folder / "s"
        self._server = UnixServer(self.path, self.streams.handlers(), threads=2, name="dra")
        self._server.start()

    def stop(self) -> None:
        self.streams.stop()
        self._server.stop(1.0)


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.stop()


@pytest.fixture
def stream_channel(server: Server) -> Iterator[grpc.Channel]:
    with dial(server.path) as made:
        yield made


def shown(message: Any) -> list[tuple[str, str, int, str]]:
    return [(d.device.pool_name, d.device.device_name, d.health, d.message) for d in message.devices]


@pytest.mark.parametrize("package", ["v1", "v1alpha1"])
def test_devices_with_health_message_and_timeout(server: Server, stream_channel: grpc.Channel, package: str) -> None:
    stream = watch_health(stream_channel, package)
    assert until(lambda: server.streams.count == 1)
    server.streams.report([SICK, WELL, UNKNOWN])
    message = next(stream)
    assert shown(message) == [(POOL, "gpu-0", 2, SICK.message), (POOL, "gpu-1", 1, ""), (POOL, "gpu-2", 0, "")]
    assert {device.health_check_timeout_seconds for device in message.devices} == {TIMEOUT_S}
    assert all(abs(device.last_updated_time - time.time()) < 60 for device in message.devices)


def test_a_new_stream_gets_the_newest_report_at_once(server: Server, stream_channel: grpc.Channel) -> None:
    """After a kubelet's restart, devices would otherwise be Unknown until the next report."""
    server.streams.report([SICK])
    server.streams.report([WELL])
    stream = watch_health(stream_channel, "v1")
    for _ in range(3):
        assert shown(next(stream)) == [(POOL, "gpu-1", 1, "")]
        server.streams.report([WELL])  # the kubelet forgets devices that are not repeated


def test_a_stream_that_is_not_read_delays_no_other_and_is_ended(server: Server) -> None:
    """It keeps a thread until then, because gRPC waits for room."""
    with dial(server.path) as stuck, dial(server.path) as other:
        silent = watch_health(stuck, "v1alpha1")
        assert until(lambda: server.streams.count == 1)
        reading = watch_health(other, "v1")
        assert until(lambda: server.streams.count == 2)
        for _ in range(20):  # a megabyte each, which no buffer takes
            server.streams.report(LARGE)
            assert len(next(reading).devices) == len(LARGE)
        assert until(lambda: server.streams.sending == 1)
        server.now += SLOW_S + 1
        server.streams.report([WELL])
        assert shown(next(reading)) == [(POOL, "gpu-1", 1, "")]
        assert until(lambda: server.streams.count == 1)
        with pytest.raises(grpc.RpcError):
            list(silent)


def test_nothing_is_sent_before_there_is_something_to_say(server: Server, stream_channel: grpc.Channel) -> None:
    """The kubelet shows Unknown; and what was said last is taken back."""
    stream = watch_health(stream_channel, "v1")
    assert until(lambda: server.streams.count == 1)
    server.streams.report([])
    server.streams.report([SICK])
    server.streams.report([])
    found = [next(stream)]
    if found[-1].devices:  # the newest is sent; the one before may have been
        found.append(next(stream))
    assert len(found[-1].devices) == 0
    server.streams.stop()
    assert list(stream) == []


def test_a_stop_with_a_stream_that_is_not_read_is_quick(server: Server) -> None:
    with dial(server.path) as stuck:
        silent = watch_health(stuck, "v1")
        assert until(lambda: server.streams.count == 1)
        for _ in range(5):
            server.streams.report(LARGE)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 5.0
        silent.cancel()
