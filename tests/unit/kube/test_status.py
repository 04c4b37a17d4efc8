"""From HTTP status and Status object to the project's errors."""

import json
from typing import Any

import pytest

from dra_driver.core import errors
from dra_driver.kube.reading import error_from_response, error_from_status


def failure(code: int, reason: str = "", **more: Any) -> bytes:
    return json.dumps({"kind": "Status", "code": code, "reason": reason, "message": "the words", **more}).encode()


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (400, "BadRequest", errors.InvalidObjectError),
        (401, "Unauthorized", errors.UnauthorizedError),
        (403, "Forbidden", errors.ForbiddenError),
        (404, "NotFound", errors.NotFoundError),
        (409, "AlreadyExists", errors.AlreadyExistsError),
        (409, "Conflict", errors.ConflictError),
        (410, "Gone", errors.GoneError),
        (410, "Expired", errors.GoneError),
        (422, "Invalid", errors.InvalidObjectError),
        (429, "TooManyRequests", errors.ServerBusyError),
        (500, "InternalError", errors.ServerBusyError),
        (503, "ServiceUnavailable", errors.ServerBusyError),
        (504, "Timeout", errors.ServerBusyError),
        (418, "", errors.KubernetesApiError),
    ],
)
def test_each_status_has_its_error(code: int, reason: str, expected: type[errors.KubernetesApiError]) -> None:
    """Callers decide by class what to do; the server's reason and words are kept for people."""
    error = error_from_response("GET /x", code, failure(code, reason), {})
    assert type(error) is expected
    assert (error.status, error.reason) == (code, reason)
    assert "GET /x failed" in str(error)
    assert "the words" in str(error)


@pytest.mark.parametrize(
    ("body", "headers", "seconds"),
    [
        (failure(429, "TooManyRequests", details={"retryAfterSeconds": 7}), {}, 7.0),
        pytest.param(failure(429, "", details={"retryAfterSeconds": 10**400}), {}, 300.0, id="larger than a float"),
        (b"slow down", {"Retry-After": "3"}, 3.0),
        (b"", {"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT"}, 0.0),
        (b"", {"Retry-After": "9999999"}, 300.0),
        (b"", {"Retry-After": "-5"}, 0.0),
    ],
)
def test_the_pause_that_the_server_asks_for_is_read_and_bounded(
    body: bytes, headers: dict[str, str], seconds: float
) -> None:
    """Body first, then header; nonsense is none, and five minutes are the most."""
    error = error_from_response("GET /x", 429, body, headers)
    assert isinstance(error, errors.ServerBusyError)
    assert error.retry_after_s == seconds


def test_the_details_are_in_the_message() -> None:
    """Their causes name each field that the API server objects to."""
    causes = {"causes": [{"field": "spec.devices[0].name", "message": "bad"}]}
    assert error_from_response("PUT /x", 422, failure(422, "Invalid", details=causes), {}).details == causes
    assert error_from_response("PUT /x", 422, failure(422, "Invalid", details=[1]), {}).details is None


def test_an_unknown_path_hints_at_the_version() -> None:
    """Kubernetes before 1.34 has no resource.k8s.io/v1; the plain 404 says nothing about that."""
    error = error_from_response("GET /apis/resource.k8s.io/v1/x", 404, b"404 page not found\n", {})
    assert isinstance(error, errors.NotFoundError)
    assert error.reason == ""
    assert "1.34 or later" in str(error)


def test_an_unknown_path_of_this_driver_hints_at_its_definitions() -> None:
    """They are installed apart from the API server, whose version is not at fault."""
    path = "GET /apis/gpu.dra-driver.io/v1alpha1/gpupolicies"
    error = error_from_response(path, 404, b"404 page not found\n", {})
    assert str(error).endswith("the CustomResourceDefinitions of this driver are not installed")
    assert "not installed" not in str(error_from_response("GET /apis/other/v1/x", 404, b"", {}))


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 5000, b'{"kind":"Status","message":3}', b'{"kind":"Pod"}'])
def test_any_body_makes_a_readable_error(body: bytes) -> None:
    """Proxies answer in HTML, attackers in anything."""
    text = str(error_from_response("GET /x", 502, body, {}))
    assert text.startswith("GET /x failed: 502")
    assert len(text) < 400


def test_a_long_message_is_cut() -> None:
    """It ends in an event of at most 1024 characters."""
    body = json.dumps({"kind": "Status", "code": 422, "message": "x" * 100_000}).encode()
    assert len(str(error_from_response("PUT /x", 422, body, {}))) < 700


def test_a_watchs_error_event_is_translated_alike() -> None:
    """The object of an ERROR event is a Status, too."""
    error = error_from_status("watch /x", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    assert isinstance(error, errors.GoneError)
    assert isinstance(error_from_status("watch /x", {}), errors.ServerBusyError)
