"""Kept connections over real sockets: TLS, servers that close, answers that break HTTP."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from dra_driver.kube.http import HttpPool, HttpServer, RequestLimits, TransportError
from tests.fakes.scripted_http import Exchange, ScriptedServer

LIMITS = RequestLimits(connect_s=2.0, read_s=2.0)


def pool(server: ScriptedServer) -> HttpPool:
    port = int(server.url.rpartition(":")[2])
    return HttpPool(HttpServer(host="127.0.0.1", port=port, path="", make_tls=None))


def body(found: HttpPool, verb: str = "GET", limit: int = 1000, limits: RequestLimits = LIMITS) -> bytes:
    answer = found.send(verb, "/x", {}, None, limits)()
    data = b""
    try:
        while more := answer.read_some(limit):
            assert len(more) <= limit
            data += more
    finally:
        answer.close()
        answer.close()
    return data


@contextmanager
def raw(*answers: bytes) -> Iterator[HttpPool]:
    """A server that answers the requests of its first connection with these bytes, then closes it.

    The requests of the second get ``again``.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for each in (answers, (OK + b"Content-Length: 5\r\n\r\nagain",)):
                with suppress(OSError):  # the client hangs up, or the test is over
                    connected, _ = listening.accept()
                    with connected:
                        for answer in each:
                            if connected.recv(4096):
                                connected.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        port = int(listening.getsockname()[1])
        found = HttpPool(HttpServer(host="127.0.0.1", port=port, path="", make_tls=None))
        yield found
        found.clear()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
SECOND = OK + b"Content-Length: 6\r\n\r\nsecond"


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(
    ("wire", "expected", "then"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", b"second"),
        (OK + b"content-length:0\r\n\r\n", b"", b"second"),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: x\r\n\r\n", b"abcde", b"second"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x", b"second"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", b"second"),
        # The bytes left in the connection would be the answer to the next request.
        (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", b"again"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", b"again"),
        (OK + b"Content-Length: 1\r\n\r\nx and more", b"x", b"again"),
        (OK + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello, ", b"hello", b"again"),
        (CHUNKED + b"0\r\n\r\n" + SECOND, b"", b"again"),
        (b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", b"", b"again"),
    ],
)
def test_connection_is_reused_only_after_a_complete_answer(
    wire: bytes, expected: bytes, then: bytes, limit: int
) -> None:
    with raw(wire, SECOND) as found:
        assert body(found, limit=limit) == expected
        assert body(found) == then


def test_body_without_length_lasts_until_the_connection_ends() -> None:
    with raw(OK + b"\r\nuntil the end") as found:
        assert body(found) == b"until the end"


@pytest.mark.parametrize(
    ("wire", "seen"),
    [
        (b"HTTP/2 200 OK\r\n\r\n", "not HTTP/1.1"),
        (b"<html>\r\n\r\n", "<html>"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "2x0"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "status 101"),
        (OK + b"A: " + b"b" * 70_000, "header line"),
        (OK + b"A: b\r\n" * 200, "more than 100 headers"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n\r\nhello", "gzip, chunked"),
        (CHUNKED + b"1" * 70_000, "chunk size"),
    ],
)
def test_answer_that_breaks_http_is_an_error(wire: bytes, seen: str) -> None:
    """A proxy's garbage becomes a message, not an endless read or a wrong body."""
    with raw(wire) as found, pytest.raises(TransportError, match=seen) as caught:
        body(found)
    assert not caught.value.broke


@pytest.mark.parametrize(
    "wire",
    [
        b"",
        b"HTTP/1.1 200",
        OK + b"Content-Type: text/plain\r\nContent-Le",
        OK + b"Content-Length: 5\r\n\r\nhel",
        CHUNKED + b"5\r\nhel",
        CHUNKED + b"3\r\nabc\r\n",
        CHUNKED + b"zz\r\nabc\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    ],
)
def test_answer_that_breaks_off_is_an_error_of_its_own(wire: bytes) -> None:
    """A read may be repeated then; a cut body is never taken for a whole one."""
    with raw(wire) as found:
        with pytest.raises(TransportError) as caught:
            body(found)
        assert body(found) == b"again"
    assert caught.value.broke


def test_unfinished_answer_ends_its_connection() -> None:
    with raw(OK + b"Content-Length: 5\r\n\r\nhel", SECOND) as found:
        answer = found.send("GET", "/x", {}, None, LIMITS)()
        assert answer.read_some(3) == b"hel"
        answer.close()
        assert body(found) == b"again"


def test_interrupt_of_a_closed_answer_does_not_reach_the_next() -> None:
    with raw(OK + b"Content-Length: 0\r\n\r\n", SECOND) as found:
        answer = found.send("GET", "/x", {}, None, LIMITS)()
        assert answer.read_some(3) == b""
        answer.close()
        answer.interrupt()
        assert body(found) == b"second"


def test_header_names_are_in_lower_case_and_values_trimmed() -> None:
    with raw(OK + b"RETRY-After:  5 \r\nContent-Length: 0\r\n\r\n") as found:
        answer = found.send("GET", "/x", {}, None, LIMITS)()
        assert answer.headers["retry-after"] == "5"
        answer.close()


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


@pytest.mark.parametrize("target", ["/x y", "/x\r\nA: b", "/\xe9"])
def test_a_target_cannot_add_a_line_to_the_request(target: str) -> None:
    """Names come from claims; what reaches this point unchecked is refused, not sent."""
    with ScriptedServer(lambda x: x.json({})) as server:
        found = pool(server)
        with pytest.raises(TransportError, match="character"):
            found.send("GET", target, {}, None, LIMITS)()
        with pytest.raises(TransportError, match="character"):
            found.send("GET", "/", {"authorization": "Bearer a\r\nX: y"}, None, LIMITS)()
        assert server.requests == []


@pytest.fixture
def plain_listener() -> Iterator[int]:
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
    found = HttpPool(HttpServer(host="127.0.0.1", port=plain_listener, path="", make_tls=ssl.create_default_context))
    with pytest.raises(TransportError, match="cannot begin TLS") as caught:
        found.send("GET", "/", {}, None, LIMITS)()
    assert caught.value.hint == "check the CA certificate"


def test_no_more_connections_are_kept_than_asked_for() -> None:
    ports = set()

    def script(x: Exchange) -> None:
        ports.add(x._handler.client_address[1])
        x.json({})

    with ScriptedServer(script) as server:
        found = pool(server)
        answers = [found.send("GET", "/", {}, None, LIMITS)() for _ in range(6)]
        for answer in answers:
            answer.read_some(100)
            assert answer.read_some(100) == b""
            answer.close()
        for answer in [found.send("GET", "/", {}, None, LIMITS)() for _ in range(6)]:
            answer.close()
        found.clear(for_good=True)
    assert len(ports) == 8


@pytest.mark.parametrize("where", ["head", "body"])
def test_bytes_that_never_stop_do_not_outlast_the_deadline(where: str) -> None:
    started = CHUNKED if where == "body" else b""
    part = b"1\r\nx\r\n" if where == "body" else b"HTTP/1.1 100 Continue\r\n\r\n"
    limits = RequestLimits(connect_s=1.0, read_s=1.0, deadline=time.monotonic() + 0.1)
    with raw(started + part * 2**19) as found, pytest.raises(TransportError, match="did not end in time"):
        body(found, limit=1, limits=limits)
