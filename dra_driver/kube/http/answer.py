"""Reads one HTTP/1.1 answer from a stream: status, headers, and the body in pieces as they arrive.

Source: RFC 9112, sections 4 (status line), 5 (fields), 6 (bodies) and 7.1 (chunks).
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

MAX_HEAD_BYTES = 64 * 1024
_MAX_CHUNK_LINE = 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9]{2})(?: [^\r\n]*)?")
_CHUNK_LINE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;[^\r\n]*)?")
_LENGTH = re.compile(r"[0-9]{1,15}")


class TransportError(Exception):
    """The request or its answer did not get through; the text says what was seen.

    ``broke``: the connection ended, so the server may not have seen the request. ``untrusted``: the server's
    certificate is not accepted, so the request was not sent. ``hint`` is what to check.
    """

    def __init__(self, text: str, *, broke: bool = False, untrusted: bool = False, hint: str = "") -> None:
        super().__init__(text)
        self.broke = broke
        self.untrusted = untrusted
        self.hint = hint


class HttpAnswer(Protocol):
    """One answer. ``headers`` have names in lower case. For one thread, except `interrupt`."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def read_some(self, limit: int) -> bytes:
        """The next bytes of the body, at most ``limit``; b"" at its end. Raises `TransportError`."""

    def close(self) -> None:
        """Keep the connection for the next request if the body was read to its end, else close it. Idempotent."""

    def interrupt(self) -> None:
        """End a read in another thread."""


class Source(Protocol):
    """The bytes of a connection, see `stream.HttpStream`."""

    buffer: bytearray

    def fill(self) -> bool:
        """Wait for more bytes and append them to ``buffer``; False at the end of the connection."""

    def interrupt(self) -> None: ...


class StreamAnswer:
    """An answer that is read from a kept connection. ``done`` gets whether the connection can be used again."""

    def __init__(self, source: Source, done: Callable[[bool], None]) -> None:
        self._source = source
        self._done: Callable[[bool], None] | None = done
        self.status, self.headers, newer = _read_head(source)
        self._keep = newer and "close" not in self.headers.get("connection", "").lower()
        self._chunked = _is_chunked(self.headers)
        self._ended = self.status in {204, 304}
        self._left = 0 if self._ended or self._chunked else _length(self.headers)
        if self._left == 0 and not self._chunked:
            self._ended = True

    def read_some(self, limit: int) -> bytes:
        """As `HttpAnswer.read_some`."""
        if self._chunked and not self._left and not self._ended:
            self._next_chunk()
        if self._ended:
            return b""
        if not self._source.buffer and not self._source.fill():
            if self._left is None:  # a body without a length lasts as long as the connection
                self._ended, self._keep = True, False
                return b""
            raise TransportError("the answer ended before its end", broke=True)
        return self._taken(limit)

    def close(self) -> None:
        """As `HttpAnswer.close`."""
        done, self._done = self._done, None
        if done is not None:
            done(self._ended and self._keep and not self._source.buffer)

    def interrupt(self) -> None:
        """As `HttpAnswer.interrupt`. Not after `close`: the connection may serve another request then."""
        if self._done is not None:
            self._source.interrupt()

    def _taken(self, limit: int) -> bytes:
        buffer = self._source.buffer
        size = min(limit, len(buffer)) if self._left is None else min(limit, len(buffer), self._left)
        data = bytes(buffer[:size])
        del buffer[:size]
        if self._left is not None:
            self._left -= size
            if not self._left and self._chunked:
                if _read_line(self._source):  # the end of the line after a chunk
                    raise TransportError("a chunk of the answer is longer than it says")
            elif not self._left:
                self._ended = True
        return data

    def _next_chunk(self) -> None:
        line = _read_line(self._source)
        match = _CHUNK_LINE.fullmatch(line)
        if match is None:
            raise TransportError(f"the answer has no chunk where one begins: {line[:40]!r}")
        self._left = int(match[1], 16)
        if not self._left:
            while _read_line(self._source):  # trailer fields
                pass
            self._ended = True


def _read_head(source: Source) -> tuple[int, Mapping[str, str], bool]:
    """Status, headers, and whether the connection outlives the answer by default; answers 1xx are skipped."""
    while True:
        status_line, *fields = _read_block(source).split(b"\r\n")
        match = _STATUS_LINE.fullmatch(status_line)
        if match is None:
            raise TransportError(f"the answer is not HTTP/1.1: {status_line[:40]!r}")
        if int(match[2]) >= 200:
            return int(match[2]), _headers(fields), match[1] == b"1"


def _read_block(source: Source) -> bytes:
    """The bytes up to the first empty line, which are taken off the buffer."""
    while (end := source.buffer.find(b"\r\n\r\n")) < 0:
        if len(source.buffer) > MAX_HEAD_BYTES:
            raise TransportError(f"the head of the answer is larger than {MAX_HEAD_BYTES >> 10} KiB")
        if not source.fill():
            raise TransportError("the connection was closed without an answer", broke=True)
    block = bytes(source.buffer[:end])
    del source.buffer[: end + 4]
    return block


def _headers(lines: Iterable[bytes]) -> Mapping[str, str]:
    """A field that is repeated counts as one with all values (RFC 9110, 5.2): two lengths are then no length."""
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.decode("latin-1").partition(":")
        key, value = name.lower(), value.strip()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found


def _is_chunked(headers: Mapping[str, str]) -> bool:
    """Whether the body comes in chunks. A coding that was not asked for would hide where the body ends."""
    coding = headers.get("transfer-encoding")
    if coding is not None and coding.lower() != "chunked":
        raise TransportError(f"the answer's transfer coding is {coding[:40]!r}, expected chunked")
    return coding is not None


def _length(headers: Mapping[str, str]) -> int | None:
    """Bytes of the body; None when it lasts until the connection ends."""
    text = headers.get("content-length")
    if text is None:
        return None
    if not _LENGTH.fullmatch(text):
        raise TransportError(f"the answer's length is {text[:40]!r}")
    return int(text)


def _read_line(source: Source) -> bytes:
    while (end := source.buffer.find(b"\r\n")) < 0:
        if len(source.buffer) > _MAX_CHUNK_LINE:
            raise TransportError("a line between two chunks of the answer does not end")
        if not source.fill():
            raise TransportError("the answer ended before its end", broke=True)
    line = bytes(source.buffer[:end])
    del source.buffer[: end + 2]
    return line
