"""The HTTP endpoint under connections that hold it: the kubelet's liveness probe comes through the same port."""

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import pytest

from dra_driver.core.telemetry.http import CLIENT_TIMEOUT_S, FRESH, MAX_CONNECTIONS, MAX_WAITING, ObservabilityServer

PROBES = 30
PROBE_TIMEOUT_S = 5.0
"""timeoutSeconds of the probes in deploy/base/daemonset.yaml."""
ANSWER_BYTES = 2**22
"""More than the kernel keeps for a client that reads nothing."""


@pytest.fixture
def serve() -> Iterator[Callable[..., int]]:
    with ExitStack() as stack:

        def start(ready: Callable[[], list[str]] = list) -> int:
            server = ObservabilityServer("127.0.0.1:0", ready, list)
            server.start()
            stack.callback(server.stop)
            return server.port

        yield start


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PROBE_TIMEOUT_S)


def probe(port: int, path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("count", [16, 2 * MAX_CONNECTIONS])
def test_idle_connections_do_not_fail_a_liveness_probe(serve: Callable[..., int], count: int) -> None:
    """16 of them once failed 30 of 30 probes, so any pod could restart the node processes of a cluster."""
    port = serve()
    with ExitStack() as idle:
        for _ in range(count):
            idle.enter_context(connect(port))
        assert [probe(port) for _ in range(PROBES)] == [200] * PROBES


def test_reconnecting_clients_do_not_fail_a_liveness_probe(serve: Callable[..., int]) -> None:
    port = serve()
    over, opened, answers = threading.Event(), list[int](), list[int]()

    def flood() -> None:
        held: list[socket.socket] = []
        while not over.wait(0.002):  # clients without a pause would keep the server, a thread beside them, from running
            with suppress(OSError):
                held.append(connect(port))
                opened.append(1)
            while len(held) > MAX_CONNECTIONS:
                held.pop(0).close()
        for each in held:
            each.close()

    clients = [threading.Thread(target=flood) for _ in range(2)]
    for client in clients:
        client.start()
    try:
        while len(opened) < 3 * MAX_CONNECTIONS:
            answers.append(probe(port))
    finally:
        over.set()
        for client in clients:
            client.join()
    assert set(answers) == {200}


def test_a_new_connection_closes_the_oldest_without_a_request(serve: Callable[..., int]) -> None:
    port = serve()
    with ExitStack() as idle:
        oldest, *others = [idle.enter_context(connect(port)) for _ in range(MAX_CONNECTIONS)]
        assert probe(port) == 200
        assert oldest.recv(1) == b""
        assert not any(
            has_received(each, b"") for each in others[1:]
        )  # the answer of the probe may have closed the second


def has_received(connection: socket.socket, wanted: bytes) -> bool:
    """Return whether the server sent ``wanted``; empty for a connection that it closed."""
    connection.setblocking(False)
    try:
        return connection.recv(len(wanted) or 1) == wanted
    except BlockingIOError:
        return False


def test_clients_that_take_no_answer_do_not_fail_a_liveness_probe(serve: Callable[..., int]) -> None:
    port = serve(lambda: ["x" * ANSWER_BYTES])
    with ExitStack() as held:
        clients = [held.enter_context(socket.socket()) for _ in range(MAX_CONNECTIONS + 1)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PROBE_TIMEOUT_S)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
            assert client.recv(1)  # its answer has begun
        assert is_cut_off(clients[0])
        assert [probe(port) for _ in range(PROBES)] == [200] * PROBES


def is_cut_off(client: socket.socket) -> bool:
    received = 0
    try:
        while data := client.recv(2**20):
            received += len(data)
    except ConnectionResetError:
        return True
    return received < ANSWER_BYTES


def test_a_check_at_work_is_waited_for_and_holds_no_other_request(serve: Callable[..., int]) -> None:
    finish, running = threading.Event(), threading.Event()

    def slow() -> list[str]:
        running.set()
        finish.wait(PROBE_TIMEOUT_S)
        return []

    port = serve(slow)
    with ExitStack() as held:
        clients = [held.enter_context(connect(port)) for _ in range(MAX_WAITING)]
        for client in clients:
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        assert running.wait(PROBE_TIMEOUT_S)
        for _ in range(2 * MAX_CONNECTIONS):
            held.enter_context(connect(port))
        assert probe(port) == 200
        assert not finish.is_set()
        finish.set()
        assert all(client.recv(12) == b"HTTP/1.1 200" for client in clients)


def test_requests_for_a_check_that_hangs_are_refused_above_the_limit(serve: Callable[..., int]) -> None:
    finish = threading.Event()
    port = serve(lambda: [str(finish.wait(4 * PROBE_TIMEOUT_S))])
    with ExitStack() as held:
        clients = [held.enter_context(connect(port)) for _ in range(2 * MAX_WAITING)]
        for client in clients:
            client.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        since = time.monotonic()
        assert [probe(port) for _ in range(PROBES)] == [200] * PROBES
        assert sum(has_received(client, b"HTTP/1.1 503") for client in clients) == MAX_WAITING
        assert time.monotonic() - since < CLIENT_TIMEOUT_S
        finish.set()


def test_requests_for_the_same_share_answers(serve: Callable[..., int]) -> None:
    made = list[float]()

    def ready() -> list[str]:
        made.append(time.monotonic())
        return []

    port, begin = serve(ready), time.monotonic()
    assert [probe(port, "/readyz") for _ in range(100)] == [200] * 100
    seconds = time.monotonic() - begin
    assert FRESH <= len(made) <= (FRESH + 1) * (seconds + 1)


def test_few_requests_get_answers_of_their_own(serve: Callable[..., int]) -> None:
    reasons = list[str]()
    port = serve(lambda: reasons)
    for expected in (200, 503, 200, 503):
        reasons[:] = [] if expected == 200 else ["no driver"]
        assert probe(port, "/readyz") == expected


def test_a_dripping_request_line_is_cut_off(serve: Callable[..., int]) -> None:
    port = serve()
    with connect(port) as drip:
        drip.settimeout(0.05)
        answer: bytes | None = None
        for _ in range(int(3 * CLIENT_TIMEOUT_S / 0.05)):
            try:
                drip.sendall(b"G")
                answer = drip.recv(1)
            except TimeoutError:
                continue
            except OSError:
                answer = b""
            break
        assert answer == b"", "the server hung up"


def test_stop_does_not_wait_for_a_check_that_hangs() -> None:
    begun, finish = threading.Event(), threading.Event()

    def ready() -> list[str]:
        begun.set()
        finish.wait(4 * PROBE_TIMEOUT_S)
        return []

    server = ObservabilityServer("127.0.0.1:0", ready, list)
    server.start()
    with connect(server.port) as client:
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.wait(PROBE_TIMEOUT_S)
        since = time.monotonic()
        server.stop()
        assert time.monotonic() - since < PROBE_TIMEOUT_S
        finish.set()
