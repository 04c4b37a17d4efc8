"""Kept connections over real sockets: TLS, servers that close, characters that would add a line."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from dra_driver.kube.http.answer import TransportError
from dra_driver.kube.http.pool import HttpPool, HttpServer
from dra_driver.kube.http.stream import HttpStream, RequestLimits
from tests.fakes.scripted_http import Exchange, ScriptedServer

LIMITS = RequestLimits(connect_s=2.0, read_s=2.0)


def pool(server: ScriptedServer) -> HttpPool:
    port = int(server.url.rpartition(":")[2])
    return HttpPool(HttpServer(host="127.0.0.1", port=port, path="", make_tls=None))


def body(found: HttpPool, verb: str = "GET", target: str = "/x") -> bytes:
    answer = found.request(verb, target, {}, None, LIMITS)
    data = answer.read_some(1000)
    while more := answer.read_some(1000):
        data += more
    answer.close()
    return data


def test_a_connection_that_the_server_closed_while_it_was_idle_is_not_used_for_a_write() -> None:
    """API servers close idle connections after a minute or two; a write on one could not be repeated."""
    closed = threading.Event()

    def script(x: Exchange) -> None:
        x.raw(b"ok", headers={"Keep-Alive": "x"})
        x._handler.close_connection = x.number == 1
        closed.set()

    with ScriptedServer(script) as server:
        found = pool(server)
        assert body(found) == b"ok"
        closed.wait(5)
        time.sleep(0.05)  # until the end of the connection has arrived here
        assert body(found, "POST") == b"ok"
        found.clear()


@pytest.mark.parametrize("target", ["/x y", "/x\r\nA: b", "x", "/\xe9"])
def test_a_target_cannot_add_a_line_to_the_request(target: str) -> None:
    """Names come from claims; what reaches this point unchecked is refused, not sent."""
    with ScriptedServer(lambda x: x.json({})) as server:
        found = pool(server)
        with pytest.raises(TransportError, match="character"):
            found.request("GET", target, {}, None, LIMITS)
        with pytest.raises(TransportError, match="character"):
            found.request("GET", "/", {"authorization": "Bearer a\r\nX: y"}, None, LIMITS)
        assert server.requests == []


@pytest.fixture
def plain_listener() -> Iterator[int]:
    """A port on which something else than TLS answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            connected, _ = listening.accept()
            with connected:
                connected.recv(100)
                connected.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        thread.join(5)


def test_a_server_without_tls_is_named_as_such(plain_listener: int) -> None:
    """A wrong port of a load balancer."""
    found = HttpPool(HttpServer(host="127.0.0.1", port=plain_listener, path="", make_tls=ssl.create_default_context))
    with pytest.raises(TransportError, match="cannot begin TLS") as caught:
        found.request("GET", "/", {}, None, LIMITS)
    assert caught.value.hint == "check the CA certificate"


def test_no_more_connections_are_kept_than_asked_for() -> None:
    """A burst of calls must not leave its connections open for ever."""
    ports = set()

    def script(x: Exchange) -> None:
        ports.add(x._handler.client_address[1])
        x.json({})

    with ScriptedServer(script) as server:
        found = pool(server)
        answers = [found.request("GET", "/", {}, None, LIMITS) for _ in range(6)]
        for answer in answers:
            answer.read_some(100)
            assert answer.read_some(100) == b""
            answer.close()
        for answer in [found.request("GET", "/", {}, None, LIMITS) for _ in range(6)]:
            answer.close()
        found.clear(for_good=True)
    assert len(ports) == 8


def test_bytes_that_never_stop_do_not_outlast_the_deadline() -> None:
    """Each read finds some at once, so none of them times out."""
    here, there = socket.socketpair()
    with here, there:
        stream = HttpStream(here)
        stream.send(b"GET", RequestLimits(connect_s=1.0, read_s=1.0, deadline=time.monotonic()))
        there.sendall(b"HTTP/1.1 102 Processing")
        with pytest.raises(TransportError, match="did not end in time"):
            stream.fill()
