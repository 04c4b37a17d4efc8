"""One open watch request as an iterator of events (Kubernetes API concepts, "Efficient detection of changes": one JSON
object per line)."""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, ValidationError

from dra_driver.core.convert import convert
from dra_driver.core.errors import ApiUnreachableError
from dra_driver.kube.http import HttpAnswer, TransportError
from dra_driver.kube.reading import decoded, error_from_status

# An event carries one object, of at most 1.5 MiB in etcd; JSON on the wire can be larger than the stored form.
MAX_LINE_BYTES = 16 * 2**20
_CHUNK_BYTES = 64 * 1024


class WatchEvent(Struct, frozen=True):
    """A change of one object. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK; a stream never yields an ERROR."""

    type: str
    object: dict[str, Any]


class WatchStream:
    """Iterate once, in one thread; ``close()`` from any thread ends the iteration."""

    def __init__(self, answer: HttpAnswer, request: str) -> None:
        self._answer = answer
        self._request = request
        self._closed = False

    def __iter__(self) -> Iterator[WatchEvent]:
        """Events until the server ends the request or ``close()`` is called. Raises ApiUnreachableError on a broken or
        silent connection and on garbage, and the matching error (GoneError for an expired version) for an ERROR event.
        """
        try:
            for line in self._lines():
                if self._closed:
                    return
                yield self._event(line)
        finally:
            self._answer.close()

    def close(self) -> None:
        """Wakes the reading thread by shutting the socket down for reading. Idempotent."""
        self._closed = True
        self._answer.interrupt()

    def _lines(self) -> Iterator[bytes]:
        pending = b""
        while chunk := self._chunk():
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (line for line in lines if line.strip())
            if len(pending) > MAX_LINE_BYTES:
                raise ApiUnreachableError(
                    f"{self._request}: one event is larger than {MAX_LINE_BYTES >> 20} MiB; refused"
                )
        # A last line without its end is a truncated event: the next watch sends it whole.

    def _chunk(self) -> bytes:
        try:
            return self._answer.read_some(_CHUNK_BYTES)
        except TransportError as error:
            if self._closed:
                return b""
            raise ApiUnreachableError(f"{self._request} broke off: {error}") from error

    def _event(self, line: bytes) -> WatchEvent:
        try:
            event = convert(decoded(line, self._request), WatchEvent)
        except ValidationError as error:
            raise ApiUnreachableError(f"{self._request}: not a watch event: {line[:80]!r}") from error
        except ValueError as error:
            raise ApiUnreachableError(f"{self._request}: not JSON that can be read ({error}): {line[:80]!r}") from error
        if event.type == "ERROR":
            raise error_from_status(self._request, event.object)
        return event
