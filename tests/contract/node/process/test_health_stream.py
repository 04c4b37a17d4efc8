"""The device health streams over a real socket."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from dra_driver.core.model.ids import DeviceName, PoolName
from dra_driver.node.process.health_report import SLOW_S, TIMEOUT_S, DeviceReport, DeviceState, HealthStreams
from dra_driver.node.process.server import UnixServer
from tests.contract.node.process.processes import until
from tests.fakes.kubelet import dial, watch_health

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
def channel(server: Server) -> Iterator[grpc.Channel]:
    with dial(server.path) as made:
        yield made


def shown(message: Any) -> list[tuple[str, str, int, str]]:
    return [(d.device.pool_name, d.device.device_name, d.health, d.message) for d in message.devices]


@pytest.mark.parametrize("package", ["v1", "v1alpha1"])
def test_devices_with_health_message_and_timeout(server: Server, channel: grpc.Channel, package: str) -> None:
    stream = watch_health(channel, package)
    assert until(lambda: server.streams.count == 1)
    server.streams.report([SICK, WELL, UNKNOWN])
    message = next(stream)
    assert shown(message) == [(POOL, "gpu-0", 2, SICK.message), (POOL, "gpu-1", 1, ""), (POOL, "gpu-2", 0, "")]
    assert {device.health_check_timeout_seconds for device in message.devices} == {TIMEOUT_S}
    assert all(abs(device.last_updated_time - time.time()) < 60 for device in message.devices)


def test_a_new_stream_gets_the_newest_report_at_once(server: Server, channel: grpc.Channel) -> None:
    """After a kubelet's restart, devices would otherwise be Unknown until the next report."""
    server.streams.report([SICK])
    server.streams.report([WELL])
    stream = watch_health(channel, "v1")
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


def test_nothing_is_sent_before_there_is_something_to_say(server: Server, channel: grpc.Channel) -> None:
    """The kubelet shows Unknown; and what was said last is taken back."""
    stream = watch_health(channel, "v1")
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
