"""Reading HTTP/1.1 answers that arrive in any pieces, and refusing what is none."""

import pytest

from dra_driver.kube.http.answer import StreamAnswer, TransportError


class Pieces:
    """A connection that delivers ``pieces`` one by one and then ends."""

    def __init__(self, *pieces: bytes) -> None:
        self.buffer = bytearray()
        self._pieces = list(pieces)
        self.interrupted = False

    def fill(self) -> bool:
        if not self._pieces:
            return False
        self.buffer += self._pieces.pop(0)
        return True

    def interrupt(self) -> None:
        self.interrupted = True


def read(*pieces: bytes, limit: int = 100) -> tuple[StreamAnswer, bytes, list[bool]]:
    """The answer, its whole body, and whether its connection was given back for reuse."""
    done: list[bool] = []
    answer = StreamAnswer(Pieces(*pieces), done.append)
    body = b""
    while data := answer.read_some(limit):
        assert len(data) <= limit
        body += data
    answer.close()
    answer.close()
    return answer, body, done


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("limit", [1, 100])
@pytest.mark.parametrize(
    ("wire", "body", "reusable"),
    [
        (OK + b"Content-Length: 5\r\n\r\nhello", b"hello", True),
        (OK + b"content-length:0\r\n\r\n", b"", True),
        (OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi", b"hi", False),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n", b"abcde", True),
        (CHUNKED + b"a\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n", b"0123456789", True),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\nx", b"x", True),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b"", True),
        (OK + b"\r\nuntil the end", b"until the end", False),
        (OK + b"Content-Length: 1\r\n\r\nx and more", b"x", False),
    ],
)
def test_bodies_of_every_form_are_read_however_they_arrive(
    wire: bytes, body: bytes, reusable: bool, limit: int
) -> None:
    """Bytes left in a connection would give the next request another's answer."""
    pieces = [wire] if limit > 1 else [wire[at : at + 1] for at in range(len(wire))]
    if b"and more" in wire:
        pieces = [wire]
    answer, found, done = read(*pieces, limit=limit)
    assert (answer.status // 100, found, done) == (2, body, [reusable])


@pytest.mark.parametrize(
    "wire",
    [
        b"HTTP/2 200 OK\r\n\r\n",
        b"<html>\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\n\r\n",
        OK + b"Content-Length: -5\r\n\r\n",
        OK + b"Content-Length: 1e3\r\n\r\n",
        CHUNKED + b"-1\r\nabc\r\n",
        CHUNKED + b"zz\r\nabc\r\n",
        CHUNKED + b"fffffffff\r\n",
        CHUNKED + b"x" * 5000,
        OK + b"A: " + b"b" * 70_000,
        OK + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip, chunked\r\nContent-Length: 5\r\n\r\nhello",
        OK + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    ],
)
def test_what_is_no_answer_is_refused(wire: bytes) -> None:
    """A proxy's garbage becomes a sentence, never an endless read or a wrong body."""
    with pytest.raises(TransportError) as caught:
        read(wire + b"x" * 10)
    assert not caught.value.broke


@pytest.mark.parametrize(
    "wire",
    [b"", b"HTTP/1.1 200", OK + b"Content-Length: 5\r\n\r\nhel", CHUNKED + b"5\r\nhel", CHUNKED + b"3\r\nabc\r\n"],
)
def test_an_answer_that_breaks_off_says_so(wire: bytes) -> None:
    """A read may be repeated then; a cut body is never taken for a whole one."""
    with pytest.raises(TransportError) as caught:
        read(wire)
    assert caught.value.broke


def test_header_names_are_in_lower_case_and_values_trimmed() -> None:
    """Servers write them in any case."""
    answer, _, _ = read(OK + b"RETRY-After:  5 \r\nContent-Length: 0\r\n\r\n")
    assert answer.headers["retry-after"] == "5"


def test_an_unfinished_answer_gives_no_connection_back_and_a_closed_one_interrupts_nothing() -> None:
    """The rest of its body would be the head of the next answer; and the connection may serve another request."""
    done: list[bool] = []
    source = Pieces(OK + b"Content-Length: 5\r\n\r\nhel")
    answer = StreamAnswer(source, done.append)
    answer.interrupt()
    assert source.interrupted
    source.interrupted = False
    answer.close()
    answer.interrupt()
    assert done == [False]
    assert not source.interrupted
