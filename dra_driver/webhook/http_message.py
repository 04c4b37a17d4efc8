"""The little of HTTP/1.1 that the API server needs. Pure.

Source: RFC 9112. Bodies have a Content-Length, as Go's client sends them; connections are kept.
"""

from http import HTTPStatus
from typing import Final

from msgspec import Struct

MAX_HEAD: Final = 16 * 1024
MAX_BODY: Final = 3 << 20
"""An object and its former state, in JSON; etcd takes objects of at most 1.5 MiB."""
REVIEWS: Final = "/validate"
HEALTH: Final = "/healthz"


class Head(Struct, frozen=True, kw_only=True):
    """Of a request. ``refused``: the status with which it is answered, and the connection closed; else None."""

    method: str = ""
    path: str = ""
    length: int = 0
    keeps: bool = True
    refused: HTTPStatus | None = None


def parse(data: bytes) -> Head:
    """A head up to its empty line."""
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or words[2] not in {"HTTP/1.1", "HTTP/1.0"}:
        return Head(refused=HTTPStatus.BAD_REQUEST)
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if line and (not colon or name != name.strip() or name.lower() in headers.keys() & _SINGLE):
            return Head(refused=HTTPStatus.BAD_REQUEST)
        headers[name.lower()] = value.strip()
    return _judged(words[0], words[1].partition("?")[0], headers, keeps=words[2] == "HTTP/1.1")


_SINGLE: Final = frozenset({"content-length", "transfer-encoding"})


def _judged(method: str, path: str, headers: dict[str, str], *, keeps: bool) -> Head:
    if path not in {REVIEWS, HEALTH}:
        return Head(refused=HTTPStatus.NOT_FOUND)
    if method != ("POST" if path == REVIEWS else "GET"):
        return Head(refused=HTTPStatus.METHOD_NOT_ALLOWED)
    length = headers.get("content-length", "0" if method == "GET" else "")
    if "transfer-encoding" in headers or not length:
        return Head(refused=HTTPStatus.LENGTH_REQUIRED)
    if not (length.isascii() and length.isdigit()):
        return Head(refused=HTTPStatus.BAD_REQUEST)
    if len(length) > 9 or int(length) > MAX_BODY:
        return Head(refused=HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    keeps = keeps and headers.get("connection", "").lower() != "close"
    return Head(method=method, path=path, length=int(length), keeps=keeps)


def render(status: HTTPStatus, body: bytes, *, keeps: bool, json: bool = False) -> bytes:
    """A whole answer."""
    kind = "application/json" if json else "text/plain; charset=utf-8"
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keeps else 'close'}\r\n\r\n"
    )
    return head.encode("ascii") + body
