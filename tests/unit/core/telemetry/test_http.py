"""The HTTP endpoint, over a real connection on loopback."""

import http.client
import socket
from collections.abc import Iterator

import pytest

from dra_driver.core.telemetry.http import ObservabilityServer

READY: list[str] = []
LIVE: list[str] = []


@pytest.fixture
def server() -> Iterator[ObservabilityServer]:
    READY.clear()
    LIVE.clear()
    made = ObservabilityServer("127.0.0.1:0", lambda: READY, lambda: LIVE)
    made.start()
    yield made
    made.stop()


def ask(server: ObservabilityServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def test_readyz_and_healthz_answer_ok_or_the_reasons(server: ObservabilityServer) -> None:
    assert ask(server, "/readyz") == (200, "ok\n")
    READY.extend(["no driver", "not published"])
    assert ask(server, "/readyz") == (503, "no driver\nnot published\n")
    assert ask(server, "/healthz") == (200, "ok\n")
    LIVE.append("hangs")
    assert ask(server, "/healthz?verbose") == (503, "hangs\n")


def test_remarks_follow_and_do_not_change_the_status() -> None:
    reasons: list[str] = []
    server = ObservabilityServer("127.0.0.1:0", lambda: reasons, list, lambda: ["partitions are withheld"])
    server.start()
    assert ask(server, "/readyz") == (200, "ok\nremark: partitions are withheld\n")
    assert ask(server, "/healthz") == (200, "ok\n")
    reasons.append("no driver")
    assert ask(server, "/readyz") == (503, "no driver\nremark: partitions are withheld\n")
    server.stop()


def test_metrics_are_served(server: ObservabilityServer) -> None:
    assert "dra_driver_published" in ask(server, "/metrics")[1]


def test_other_paths_and_methods_are_refused(server: ObservabilityServer) -> None:
    status, text = ask(server, "/etc/passwd")
    assert (status, "/metrics" in text) == (404, True)
    assert ask(server, "/readyz", "POST")[0] == 501
    assert ask(server, "/readyz", "HEAD") == (200, "")


def test_a_failing_check_is_answered(caplog: pytest.LogCaptureFixture) -> None:

    def broken() -> list[str]:
        raise ZeroDivisionError

    server = ObservabilityServer("127.0.0.1:0", broken, broken)
    server.start()
    assert ask(server, "/readyz") == (503, "internal error, see the log\n")
    assert any(record.exc_info for record in caplog.records)
    server.stop()


def test_port_alone_listens_on_all_addresses() -> None:
    """The kubelet probes the pod's address, which may be an IPv6 one."""
    server = ObservabilityServer(":0", lambda: [], lambda: [])
    server.start()
    assert ask(server, "/readyz")[0] == 200
    server.stop()


def test_port_in_use_is_an_os_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            ObservabilityServer(f"127.0.0.1:{taken.getsockname()[1]}", lambda: [], lambda: [])


def test_stop_is_immediate_and_repeatable(server: ObservabilityServer) -> None:
    """The accept loop sleeps for an hour at a time and has to be woken."""
    server.stop()
    server.stop()
    with pytest.raises(OSError, match="refused"):
        ask(server, "/readyz")
