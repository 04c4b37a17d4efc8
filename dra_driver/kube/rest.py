"""Requests to the API server over raw dicts: verbs, timeouts, body limits, one retry after a 401, error translation.
Raw dicts keep fields newer than this program. Source: Kubernetes API concepts ("Resource operations", "Efficient
detection of changes")."""

import builtins
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from dra_driver import __version__
from dra_driver.core.errors import (
    AnswerTooLargeError,
    ApiUnreachableError,
    ConfigurationError,
    KubernetesApiError,
    UnauthorizedError,
)
from dra_driver.kube.connection import Connection, Receive
from dra_driver.kube.http import HttpAnswer, RequestLimits, TransportError
from dra_driver.kube.reading import decoded, error_from_response
from dra_driver.kube.watch import WatchStream

Query = Mapping[str, str]

# Bounds the memory of one answer. etcd takes objects of at most 1.5 MiB, so a page of PAGE_SIZE can be larger.
MAX_BODY_BYTES = 64 * 2**20
PAGE_SIZE = 500
_CHUNK_BYTES = 256 * 1024
SIDE_BY_SIDE = 4
"""Requests of one `RestClient.get_all` that are on their way at the same time: as many as connections are kept."""


class Timeouts(Struct, frozen=True, kw_only=True):
    """Seconds. ``total_s`` bounds the whole answer, so that a server that sends single bytes cannot block a caller."""

    connect_s: float = 5.0
    read_s: float = 10.0
    total_s: float = 30.0


class RestClient:
    """Talks to one API server. Thread-safe. Every failure is one of ``errors.KubernetesApiError``'s subclasses."""

    def __init__(self, connection: Connection, *, timeouts: Timeouts | None = None) -> None:
        self._connection = connection
        self._timeouts = timeouts or Timeouts()
        # The API server uses the part before the slash as the field manager of writes.
        self._headers = {"Accept": "application/json", "User-Agent": f"dra-driver/{__version__}"}

    def get(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> dict[str, Any]:
        """One object; repeated once on a broken connection. ``within_s`` bounds the whole request, repeats included:
        ApiUnreachableError."""
        deadline = None if within_s is None else time.monotonic() + within_s
        return self._exchange(_Request("GET", path, query, deadline=deadline))

    def get_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> builtins.list[dict[str, object] | KubernetesApiError]:
        """Several objects in the order of ``paths``, or in place of each the error of `get`. Sends a few requests
        before it waits for the first answer."""
        return self.send_all(paths, within_s=within_s)()

    def send_all(
        self, paths: Sequence[str], *, within_s: float | None = None
    ) -> Callable[[], builtins.list[dict[str, object] | KubernetesApiError]]:
        """Send the first requests of `get_all`. The caller must call the result, which waits for the answers."""
        deadline = None if within_s is None else time.monotonic() + within_s
        requests = [_Request("GET", path, deadline=deadline) for path in paths]
        first = [self._sent(request) for request in requests[:SIDE_BY_SIDE]]

        def receive() -> builtins.list[dict[str, object] | KubernetesApiError]:
            found: builtins.list[dict[str, object] | KubernetesApiError] = []
            for at in range(0, len(requests), SIDE_BY_SIDE):
                group = requests[at : at + SIDE_BY_SIDE]
                sent = [self._sent(request) for request in group] if at else first
                found += map(self._outcome, group, sent)
            return found

        return receive

    def get_text(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> str:
        """An answer that is text and not an object, such as a container's log. Repeated and limited like `get`."""
        deadline = None if within_s is None else time.monotonic() + within_s
        return self._fetch(_Request("GET", path, query, deadline=deadline)).decode("utf-8", "replace")

    def list(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> dict[str, Any]:
        """A whole list, in pages (`pages`), all within ``within_s``. ``metadata`` is that of the last page: watch from
        its resourceVersion. Raises GoneError when the version was compacted during the list: list again."""
        deadline = None if within_s is None else time.monotonic() + within_s
        items: list[object] = []
        page: dict[str, Any] = {}

        def get(path: str, query: Query) -> dict[str, object]:
            return self._exchange(_Request("GET", path, query, deadline=deadline))

        for page in pages(get, path, query):
            items.extend(page["items"])
        return {**page, "items": items}

    def create(self, path: str, body: Mapping[str, object], *, dry_run: bool = False) -> dict[str, Any]:
        """The object as the API server stored it (with ``dry_run``, would store it). Not repeated when the answer is
        lost: the request may have succeeded."""
        return self._exchange(_Request("POST", path, _dry_run(dry_run), body))

    def update(self, path: str, body: Mapping[str, object], *, dry_run: bool = False) -> dict[str, Any]:
        """Replaces an object; ConflictError when ``metadata.resourceVersion`` is not the current one."""
        return self._exchange(_Request("PUT", path, _dry_run(dry_run), body))

    def merge_patch(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        return self._exchange(_Request("PATCH", path, None, body, content_type="application/merge-patch+json"))

    def apply(self, path: str, body: Mapping[str, object], manager: str) -> dict[str, Any]:
        """Server-side apply: ``manager`` owns the fields of ``body`` and loses, with their values, its other fields.
        Fields of other managers are taken over. ``metadata.uid`` is a precondition (ConflictError)."""
        query = {"fieldManager": manager, "force": "true"}
        return self._exchange(_Request("PATCH", path, query, body, content_type="application/apply-patch+yaml"))

    def delete(
        self, path: str, uid: str | None = None, resource_version: str | None = None, *, propagation: str | None = None
    ) -> None:
        """Delete the object with that UID and version; else ConflictError. Raises NotFoundError. ``propagation`` is
        Background, Foreground or Orphan, else the kind's default (Orphan for jobs)."""
        wanted = {"uid": uid, "resourceVersion": resource_version}
        preconditions = {key: value for key, value in wanted.items() if value is not None}
        body: dict[str, object] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions:
            body["preconditions"] = preconditions
        if propagation is not None:
            body["propagationPolicy"] = propagation
        self._exchange(_Request("DELETE", path, None, body))

    def watch(self, path: str, query: Query, read_timeout_s: float) -> WatchStream:
        """Open a watch; iterate over its events, ``close()`` it from any thread. The iterator raises
        ApiUnreachableError after ``read_timeout_s`` of silence."""
        request = _Request("GET", path, {**query, "watch": "true"}, read_timeout_s=read_timeout_s)
        return WatchStream(self._send(request), f"watch {path}")

    def _exchange(self, request: "_Request", sent: Receive | None = None) -> dict[str, object]:
        return _decoded(request, self._fetch(request, sent))

    def _fetch(self, request: "_Request", sent: Receive | None = None) -> bytes:
        deadline = time.monotonic() + self._timeouts.total_s
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        request = replace(request, deadline=deadline)  # the head of an answer can drip like its body
        try:
            answer = self._send(request) if sent is None else self._send_once(request, sent)
            return self._read(request, answer, deadline)
        except (ApiUnreachableError, UnauthorizedError) as error:
            if isinstance(error, ApiUnreachableError):
                self._connection.close()  # idle connections most likely failed in the same way
            # The server may close a kept-alive connection in the moment of its use, and a NAT may drop it. Requests
            # sent together fail together; the first repeat renews the credentials for all. Only GET is repeated.
            if request.verb != "GET" or not (sent or _broke(error)) or time.monotonic() >= deadline:
                raise
            return self._read(request, self._send(request), deadline)

    def _sent(self, request: "_Request") -> Receive:
        """Send without waiting for the answer. It must arrive within one wait, counted from here, so that several
        requests wait at the same time."""
        try:
            limits = self._limits(request)
            return self._ask(request, replace(limits, deadline=time.monotonic() + limits.left_s(limits.read_s)))
        except (TransportError, KubernetesApiError) as error:
            failure = error

        def fail() -> HttpAnswer:
            raise failure

        return fail

    def _outcome(self, request: "_Request", sent: Receive) -> dict[str, object] | KubernetesApiError:
        try:
            return self._exchange(request, sent)
        except KubernetesApiError as error:
            return error

    def _send(self, request: "_Request") -> HttpAnswer:
        """An answer with a good status and an unread body. After a 401 or an unaccepted certificate, credentials and CA
        are read again, once: both are rotated while this process runs."""
        try:
            return self._send_once(request)
        except UnauthorizedError as refused:
            try:
                self._connection.renew()
            except ConfigurationError as unreadable:
                raise UnauthorizedError(
                    f"{refused}; and {unreadable}", status=401, reason=refused.reason
                ) from unreadable
            return self._send_once(request)
        except ApiUnreachableError as error:
            if not (isinstance(error.__cause__, TransportError) and error.__cause__.untrusted):
                raise
            with suppress(ConfigurationError):  # the former CA stays in use, and the second try says so
                self._connection.renew()
            return self._send_once(request)

    def _ask(self, request: "_Request", limits: RequestLimits) -> Receive:
        headers = {**self._headers, **self._credentials()}
        if request.body is not None:
            headers["Content-Type"] = request.content_type
        return self._connection.send(request.verb, request.path_and_query, headers, request.encoded_body(), limits)

    def _send_once(self, request: "_Request", sent: Receive | None = None) -> HttpAnswer:
        try:
            answer = sent() if sent is not None else self._ask(request, self._limits(request))()
        except TransportError as error:
            raise _unreachable(request, self._connection, error) from error
        if answer.status >= 300:
            deadline = time.monotonic() + self._timeouts.total_s
            text = self._read(request, answer, min(deadline, request.deadline or deadline))
            after = {"Retry-After": answer.headers.get("retry-after", "")}
            raise error_from_response(str(request), answer.status, text, after)
        return answer

    def _limits(self, request: "_Request") -> RequestLimits:
        if request.deadline is not None and request.deadline <= time.monotonic():
            raise ApiUnreachableError(f"{request}: not sent, as no time was left for it; the API server was too slow")
        deadline = request.deadline
        if deadline is None and request.read_timeout_s is None:  # a watch lasts
            deadline = time.monotonic() + self._timeouts.total_s
        return RequestLimits(
            connect_s=self._timeouts.connect_s,
            read_s=request.read_timeout_s or self._timeouts.read_s,
            deadline=deadline,
        )

    def _credentials(self) -> dict[str, str]:
        try:
            return self._connection.auth_headers()
        except ConfigurationError as error:
            raise UnauthorizedError(str(error)) from error

    def _read(self, request: "_Request", answer: HttpAnswer, deadline: float) -> bytes:
        body = bytearray()
        try:
            while chunk := answer.read_some(_CHUNK_BYTES):
                body += chunk
                _check_bounds(request, len(body), deadline)
        except TransportError as error:
            raise _unreachable(request, self._connection, error) from error
        finally:
            answer.close()
        return bytes(body)


class _Request(Struct, frozen=True):
    verb: str
    path: str
    query: Query | None = None
    body: Mapping[str, object] | None = None
    content_type: str = "application/json"
    read_timeout_s: float | None = None
    deadline: float | None = None

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"

    @property
    def path_and_query(self) -> str:
        return f"{self.path}?{urlencode(self.query)}" if self.query else self.path

    def encoded_body(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body, separators=(",", ":")).encode()


def _broke(error: KubernetesApiError) -> bool:
    return isinstance(error.__cause__, TransportError) and error.__cause__.broke


def _check_bounds(request: _Request, size: int, deadline: float) -> None:
    if size > MAX_BODY_BYTES:
        raise AnswerTooLargeError(f"{request}: the answer is larger than {MAX_BODY_BYTES >> 20} MiB; refused")
    if time.monotonic() > deadline:
        raise ApiUnreachableError(f"{request}: the answer did not end in time; the API server or the network is slow")


def _unreachable(request: _Request, connection: Connection, error: TransportError) -> ApiUnreachableError:
    hint = f"; {error.hint}" if error.hint else ""
    return ApiUnreachableError(
        f"{request}: no answer from the API server {connection.base_url} (from {connection.source}): {error}{hint}"
    )


def _decoded(request: _Request, data: bytes) -> dict[str, object]:
    try:
        document = decoded(data, str(request))
    except ValueError as error:
        start = data[:80].decode("utf-8", "replace")
        raise ApiUnreachableError(f"{request}: the answer is not JSON that can be read ({error}): {start!r}") from error
    if not isinstance(document, dict):
        raise ApiUnreachableError(f"{request}: the answer is {type(document).__name__}, expected a JSON object")
    return document


def pages(
    get: Callable[[str, Query], dict[str, object]], path: str, query: Query | None = None, limit: int = PAGE_SIZE
) -> Iterator[dict[str, Any]]:
    """The pages of a list, read with ``get`` (`RestClient.get`); ``items`` of each is a list. A page that is too large
    is requested again with half of its objects, down to one. A resourceVersion in ``query`` is only for the first page.
    """
    asked = {**(query or {}), "limit": str(limit)}
    while True:
        try:
            page = get(path, asked)
        except AnswerTooLargeError:
            if asked["limit"] == "1":
                raise
            asked["limit"] = str(int(asked["limit"]) // 2)
            continue
        items, metadata = page.get("items") or [], page.get("metadata")  # `items: null` is how Go writes an empty list
        if not isinstance(items, list):
            raise ApiUnreachableError(f"GET {path}: the answer's items are {type(items).__name__}, expected a list")
        yield {**page, "items": items}
        token = metadata.get("continue") if isinstance(metadata, dict) else None
        if not isinstance(token, str) or not token:
            return
        asked = {key: value for key, value in asked.items() if not key.startswith("resourceVersion")}
        asked["continue"] = token


def _dry_run(asked: bool) -> Query | None:
    return {"dryRun": "All"} if asked else None
