"""Decode answers of the API server so that one object cannot make a whole list or watch unreadable, and translate
statuses (API conventions, "Response Status Kind") into this project's errors.

Go accepts JSON of 10,000 levels; Python stops at the recursion limit of 1,000, also for values that decoders skip
(``msgspec.Raw``). A claim with opaque parameters of 5,000 levels could end all lists and watches of claims, so
`decoded` replaces every value below `MAX_DEPTH` by `TOO_DEEP`. Go also keeps bytes that are not UTF-8 and halves of
surrogate pairs in texts of opaque parameters, and returns them in every list.
"""

import json
import logging
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from math import isinf
from typing import Any, Final

from msgspec.json import decode, encode  # noqa: TID251 - no struct

from dra_driver.core import errors

log = logging.getLogger(__name__)

MAX_DEPTH: Final = 100  # levels of an answer that are kept. Kubernetes' own fields of a list need 25.
TOO_DEEP: Final = "(not read: nested too deep)"
"""Stands in place of a value. No field that the driver reads accepts it."""
OUT_OF_RANGE: Final = "(not read: number out of range)"
"""As `TOO_DEEP`, for a number that a double cannot hold."""
_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[\[{]|[\]}]', re.DOTALL)
_OTHER_BYTES: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_OPENING: Final = (0x5B, 0x7B)
_QUOTE: Final = 0x22


def decoded(data: bytes, what: str) -> Any:
    """The JSON value. ``what`` (``watch /api/v1/pods``) is for the log. Raises ValueError for text that is not JSON."""
    kept = shallow(data) if may_be_deep(data) else data
    try:
        value = decode(kept)
    except (ValueError, RecursionError):  # msgspec: DecodeError, UnicodeDecodeError
        kept = _plain(kept)
        value = decode(kept)
    for item in _objects(value) if kept is not data else ():
        _report(what.partition("?")[0], _name(item))
    return value


@lru_cache(maxsize=1000)  # a page that is polled reports each version of an object once
def _report(request: str, name: str) -> None:
    facts = {"request": request, "object": name}
    log.warning("an object is nested too deep or has a number out of range; part of it is not read", extra=facts)


def _plain(data: bytes) -> bytes:
    """JSON that all decoders read: ``?`` for each half of a surrogate pair, U+FFFD for bytes that are not UTF-8,
    `OUT_OF_RANGE` for numbers. Raises ValueError for text that is not JSON."""
    try:
        value = json.loads(data.decode("utf-8", "replace"), parse_float=_number, parse_int=_number)
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _number(text: str) -> object:
    value = float(text)
    if isinf(value):
        return OUT_OF_RANGE
    return int(text) if text.lstrip("-").isdigit() else value


def may_be_deep(data: bytes) -> bool:
    """Return whether a value may have more than `MAX_DEPTH` levels; 3 ms for each MiB. Brackets in strings do not
    count: they could hide other brackets. Each iteration removes the innermost brackets; outer ones stay."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    brackets, turns = data.translate(None, _OTHER_BYTES).replace(b'""', b""), MAX_DEPTH // 2
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])
    for _ in range(turns):
        fewer = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(fewer) == len(brackets):
            break
        brackets = fewer
    return len(brackets) > MAX_DEPTH - turns


def shallow(data: bytes) -> bytes:
    """JSON without the values below `MAX_DEPTH` levels, the same object where there are none. Iterative; 0.2 us for
    each bracket and string."""
    kept, depth, at = bytearray(), 0, 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first == _QUOTE:
            continue
        if first in _OPENING:
            depth += 1
            if depth == MAX_DEPTH + 1:
                kept += data[at : token.start()]
                kept += encode(TOO_DEEP)
        else:
            depth -= 1
            if depth == MAX_DEPTH:
                at = token.end()
    return bytes(kept + data[at:]) if kept else data


def _objects(value: object) -> Iterator[object]:
    marks = encode(TOO_DEEP), encode(OUT_OF_RANGE)
    found = value.get("items") if isinstance(value, dict) else None
    items = found if isinstance(found, list) else [value.get("object", value) if isinstance(value, dict) else value]
    return (item for item in items if any(mark in encode(item) for mark in marks))


def _name(item: object) -> str:
    metadata = item.get("metadata") if isinstance(item, dict) else None
    known = metadata if isinstance(metadata, dict) else {}
    return f"{known.get('namespace', '')}/{known.get('name')} at version {known.get('resourceVersion')}".lstrip("/")


# A Status message may quote a whole object; messages are cut to this many characters.
_MESSAGE_LIMIT = 600
_RETRY_AFTER_LIMIT_S = 300.0

_CLASSES: dict[int, type[errors.KubernetesApiError]] = {
    400: errors.InvalidObjectError,
    401: errors.UnauthorizedError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    410: errors.GoneError,
    422: errors.InvalidObjectError,
}

_HINTS: dict[type[errors.KubernetesApiError], str] = {
    errors.UnauthorizedError: "check the service account's token or the credentials in the kubeconfig",
    errors.ForbiddenError: "check the ClusterRole of this service account and admission policies",
}

_UNKNOWN = {
    "resource.k8s.io": "; resource.k8s.io/v1 needs Kubernetes 1.34 or later",
    "gpu.dra-driver.io": "; the CustomResourceDefinitions of this driver are not installed",
}


def error_from_response(
    request: str, status: int, body: bytes, headers: Mapping[str, str]
) -> errors.KubernetesApiError:
    """The error for an HTTP status of 400 or more. ``request`` is ``GET /api/v1/nodes/a``."""
    document = _status_object(body)
    if document is None:
        return _error(request, status, _without_status_object(request, status, body), "", _retry_after(headers))
    return error_from_status(request, document, default_code=status, headers=headers)


def error_from_status(
    request: str, document: Mapping[str, object], *, default_code: int = 500, headers: Mapping[str, str] | None = None
) -> errors.KubernetesApiError:
    """The error for a Status object: the body of a failed request, or the object of a watch's ERROR event."""
    code = document.get("code")
    status = code if isinstance(code, int) and code >= 400 else default_code
    reason, message = document.get("reason"), document.get("message")
    details = document.get("details")
    asked = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    retry_after_s = (
        min(asked, _RETRY_AFTER_LIMIT_S) if isinstance(asked, int) and asked > 0 else _retry_after(headers or {})
    )
    text = message if isinstance(message, str) and message else "the API server gave no message"
    error = _error(request, status, text, reason if isinstance(reason, str) else "", retry_after_s)
    error.details = dict(details) if isinstance(details, Mapping) else None
    return error


def _error(request: str, status: int, text: str, reason: str, retry_after_s: float) -> errors.KubernetesApiError:
    text = text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"
    said = f"{status} {reason}".strip()
    message = f"{request} failed: {said}: {text}"
    if status in {429, 503, 504} or status >= 500:
        bounded = min(retry_after_s, _RETRY_AFTER_LIMIT_S)
        return errors.ServerBusyError(message, status=status, reason=reason, retry_after_s=bounded)
    kind = _CLASSES.get(status, errors.KubernetesApiError)
    if status == 409 and reason == "AlreadyExists":
        kind = errors.AlreadyExistsError
    if reason == "Expired":  # a list's continue token or a watch's version that has been compacted away
        kind = errors.GoneError
    hint = _HINTS.get(kind)
    return kind(f"{message}; {hint}" if hint else message, status=status, reason=reason)


def _status_object(body: bytes) -> Mapping[str, object] | None:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and document.get("kind") == "Status":
        return document
    return None


def _without_status_object(request: str, status: int, body: bytes) -> str:
    """Proxies, load balancers and unknown API groups answer in plain text or HTML."""
    text = " ".join(body[:200].decode("utf-8", "replace").split())
    if status == 404:
        seen = text or "empty answer"
        needed = next((hint for group, hint in _UNKNOWN.items() if f"/apis/{group}/" in request), "")
        return f"the server does not know this path ({seen}){needed}"
    return text or "empty answer"


def _retry_after(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header. The API server does not send the form with a date."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0.0
