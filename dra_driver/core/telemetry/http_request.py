"""The little of HTTP/1 that the endpoint needs, as pure functions: the head of a request, and a whole answer.

Source: RFC 9112. A request's body is not read, and every connection is closed after its answer.
"""

from http import HTTPStatus

from msgspec import Struct

MAX_HEAD = 16 * 1024
"""Bytes of a request line with its headers. Probes and Prometheus send less than 1 KiB."""


class Request(Struct, frozen=True, kw_only=True):
    """Method and path, without the query; both are empty when the first line is none of HTTP."""

    method: str
    path: str


def has_line(data: bytes | bytearray) -> bool:
    """Whether the first line is complete."""
    return b"\n" in data


def parse(data: bytes | bytearray) -> Request | None:
    """The request, once its head is complete; None before. A head that is too long is a malformed request."""
    if b"\r\n\r\n" not in data and b"\n\n" not in data:
        return None if len(data) <= MAX_HEAD else Request(method="", path="")
    words = bytes(data).partition(b"\n")[0].decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return Request(method="", path="")
    return Request(method=words[0], path=words[1].partition("?")[0])


def render(status: HTTPStatus, content_type: str, body: bytes, *, with_body: bool = True) -> bytes:
    """The bytes of an answer; ``with_body`` is False for HEAD."""
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nServer: dra-driver\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode("ascii") + (body if with_body else b"")
