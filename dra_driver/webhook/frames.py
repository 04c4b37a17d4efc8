"""What goes through the pipes between the webhook and its workers: one byte, a length, and so many bytes."""

import struct
from enum import IntEnum
from typing import Final, Protocol

HEADER: Final = struct.Struct(">BI")
MAX_FRAME: Final = 4 << 20


class ReviewOutcome(IntEnum):
    """What a review came to."""

    ALLOWED = 0
    WARNED = 1
    REFUSED = 2
    MALFORMED = 3
    """It was no review; the body says why."""


class Readable(Protocol):
    """A pipe."""

    def read(self, size: int, /) -> bytes: ...


def encode(kind: int, body: bytes) -> bytes:
    """A frame."""
    return HEADER.pack(kind, len(body)) + body


def read(stream: Readable) -> tuple[int, bytes] | None:
    """The next frame, None at the end of the stream or of what can be understood. Waits without a limit."""
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    kind, length = HEADER.unpack(header)
    if length > MAX_FRAME:
        return None
    body = stream.read(length)
    return (kind, body) if len(body) == length else None
