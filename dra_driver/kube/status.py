"""Translates failed requests into this project's errors: from HTTP status and Status object to class and hint.

Pure. The errors' docstrings say what a caller should do. Source: API conventions, "Response Status Kind"
(kubernetes/community contributors/devel/sig-architecture/api-conventions.md).
"""

import json
from collections.abc import Mapping

from dra_driver.core.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
    UnauthorizedError,
)

# A Status message may quote a whole object; messages are cut to this many characters.
_MESSAGE_LIMIT = 600
_RETRY_AFTER_LIMIT_S = 300.0

_CLASSES: dict[int, type[KubernetesApiError]] = {
    400: InvalidObjectError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidObjectError,
}

_HINTS: dict[type[KubernetesApiError], str] = {
    UnauthorizedError: "check the service account's token or the credentials in the kubeconfig",
    ForbiddenError: "check the ClusterRole of this service account and admission policies",
}

_UNKNOWN = {
    "resource.k8s.io": "; resource.k8s.io/v1 needs Kubernetes 1.34 or later",
    "gpu.dra-driver.io": "; the CustomResourceDefinitions of this driver are not installed",
}


def error_from_response(request: str, status: int, body: bytes, headers: Mapping[str, str]) -> KubernetesApiError:
    """The error for an HTTP status of 400 or more. ``request`` is ``GET /api/v1/nodes/a``."""
    document = _status_object(body)
    if document is None:
        return _error(request, status, _without_status_object(request, status, body), "", _retry_after(headers))
    return error_from_status(request, document, default_code=status, headers=headers)


def error_from_status(
    request: str, document: Mapping[str, object], *, default_code: int = 500, headers: Mapping[str, str] | None = None
) -> KubernetesApiError:
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


def _error(request: str, status: int, text: str, reason: str, retry_after_s: float) -> KubernetesApiError:
    text = text if len(text) <= _MESSAGE_LIMIT else text[: _MESSAGE_LIMIT - 1] + "…"
    said = f"{status} {reason}".strip()
    message = f"{request} failed: {said}: {text}"
    if status in {429, 503, 504} or status >= 500:
        bounded = min(retry_after_s, _RETRY_AFTER_LIMIT_S)
        return ServerBusyError(message, status=status, reason=reason, retry_after_s=bounded)
    kind = _CLASSES.get(status, KubernetesApiError)
    if status == 409 and reason == "AlreadyExists":
        kind = AlreadyExistsError
    if reason == "Expired":  # a list's continue token or a watch's version that has been compacted away
        kind = GoneError
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
    """Seconds from a Retry-After header; the other form (a date) is not used by the API server."""
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0.0
