"""`dra_driver.kube.reading`: no object makes a list or a watch unreadable."""

import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core import errors
from dra_driver.kube.reading import (
    MAX_DEPTH,
    OUT_OF_RANGE,
    TOO_DEEP,
    decoded,
    error_from_response,
    error_from_status,
    may_be_deep,
    shallow,
)

DEEP = b"[" * 5_000 + b"]" * 5_000
CLAIM = (
    b'{"metadata":{"namespace":"team","name":"deep","resourceVersion":"7"},'
    b'"spec":{"x":' + DEEP + b'},"status":{"text":"]]}\\"[["}}'
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


def test_deep_object_keeps_its_other_fields(caplog: pytest.LogCaptureFixture) -> None:
    page = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},' + CLAIM + b"]}"
    with caplog.at_level(logging.WARNING):
        answer = decoded(page, "GET /claims")
    first, second = answer["items"]
    assert (answer["metadata"], first) == ({"resourceVersion": "9"}, {"metadata": {"name": "a"}})
    assert second["status"] == {"text": ']]}"[['}
    assert TOO_DEEP in json.dumps(second["spec"])
    assert [record.object for record in caplog.records] == ["team/deep at version 7"]  # type: ignore[attr-defined]


def test_deep_watch_event_keeps_its_version(caplog: pytest.LogCaptureFixture) -> None:
    event = decoded(b'{"type":"ADDED","object":' + CLAIM + b"}", "watch /claims")
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("ADDED", "7")
    assert "team/deep" in str(caplog.records[0].__dict__["object"])


@given(JSON)
def test_json_within_the_limit_is_not_changed(value: object) -> None:
    data = json.dumps(value).encode()
    assert shallow(data) == data


@pytest.mark.parametrize("closing", [b"]", b"}"])
def test_values_beside_a_deep_one_stay(closing: bytes) -> None:
    opening = b"[" if closing == b"]" else b'{"":'
    inner = opening * (MAX_DEPTH + 5) + b"1" + closing * (MAX_DEPTH + 5)
    assert decoded(shallow(b"[" + inner + b',"b",' + inner + b"]"), "")[1] == "b"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 900])
@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        (b"[", b"]"),
        (b'{"":', b"}"),
        (b"[1,", b",1]"),
        (b'["]",', b"]"),
        (b'["]",', b',"["]'),
        (b'["\\\\",{"}\\"":', b'},"{"]'),
    ],
)
def test_values_that_decoders_accept_are_cut_too(levels: int, opening: bytes, closing: bytes) -> None:
    value = decoded(opening * levels + b"1" + closing * levels, "")
    depth = 0
    while isinstance(value, list | dict):
        depth, inner = depth + 1, value.values() if isinstance(value, dict) else value
        value = next((item for item in inner if isinstance(item, list | dict)), TOO_DEEP)
    assert depth == MAX_DEPTH


@given(st.lists(st.text(alphabet="[]{}x", max_size=40), max_size=40))
def test_brackets_in_strings_are_not_levels(texts: list[str]) -> None:
    data = json.dumps({"items": texts}).encode()
    assert decoded(data, "") == {"items": texts}
    assert may_be_deep(b"[" * (MAX_DEPTH + 1) + data + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("text", [b"", b"<html>", b"[" * 5_000, b"]" * 5_000, b'{"a":' + DEEP, b"\xff"])
def test_text_that_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decoded(text, "GET /")


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b'"\xff\xfe x"', "\ufffd\ufffd x"),
        (b'"\xed\xa0\x80"', "\ufffd" * 3),
        (b"1e400", OUT_OF_RANGE),
        (b"-1e999999999999", OUT_OF_RANGE),
        (b"9" * 5_000, OUT_OF_RANGE),
        (b'["\\ud800", -1.5, 7, 1e400]', ["?", -1.5, 7, OUT_OF_RANGE]),
    ],
)
def test_a_value_that_no_decoder_reads_spoils_only_itself(
    raw: bytes, read: object, caplog: pytest.LogCaptureFixture
) -> None:
    """The API server stores bytes that are not UTF-8 in opaque parameters and returns them in lists (1.36.2)."""
    page = b'{"items":[{"metadata":{"name":"odd"},"spec":{"x":%s}},{"metadata":{"name":"next"}}]}' % raw
    for _ in range(3):
        odd, after = decoded(page, f"GET /{raw!r}")["items"]
    assert (odd["spec"]["x"], after) == (read, {"metadata": {"name": "next"}})
    assert [record.__dict__["object"] for record in caplog.records] == (
        ["odd at version None"] if OUT_OF_RANGE in str(read) else []
    )


def test_half_a_surrogate_pair_spoils_only_its_text() -> None:
    """Go and the API server keep it in opaque parameters and in names of their fields."""
    page = rb'{"items":[{"spec":{"x":"\ud800","\udfff":1}},{"metadata":{"name":"next"}}]}'
    assert decoded(page, "")["items"] == [{"spec": {"x": "?", "?": 1}}, {"metadata": {"name": "next"}}]


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
    error = error_from_response("GET /x", code, failure(code, reason), {})
    assert type(error) is expected
    assert (error.status, error.reason) == (code, reason)
    assert "GET /x failed" in str(error)
    hint = {401: "check the service account's token", 403: "check the ClusterRole"}.get(code, "")
    assert hint in str(error)
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
    error = error_from_response("GET /x", 429, body, headers)
    assert isinstance(error, errors.ServerBusyError)
    assert error.retry_after_s == seconds


def test_the_details_are_in_the_message() -> None:
    causes = {"causes": [{"field": "spec.devices[0].name", "message": "bad"}]}
    assert error_from_response("PUT /x", 422, failure(422, "Invalid", details=causes), {}).details == causes
    assert error_from_response("PUT /x", 422, failure(422, "Invalid", details=[1]), {}).details is None


def test_an_unknown_path_hints_at_the_version_or_this_drivers_definitions() -> None:
    """Kubernetes before 1.34 has no resource.k8s.io/v1; the plain 404 says nothing about that."""
    error = error_from_response("GET /apis/resource.k8s.io/v1/x", 404, b"404 page not found\n", {})
    assert isinstance(error, errors.NotFoundError)
    assert error.reason == ""
    assert "1.34 or later" in str(error)
    path = "GET /apis/gpu.dra-driver.io/v1alpha1/gpupolicies"
    error = error_from_response(path, 404, b"404 page not found\n", {})
    assert str(error).endswith("the CustomResourceDefinitions of this driver are not installed")
    assert "not installed" not in str(error_from_response("GET /apis/other/v1/x", 404, b"", {}))


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[" * 5000, b'{"kind":"Status","message":3}', b'{"kind":"Pod"}'])
def test_any_body_makes_a_readable_error(body: bytes) -> None:
    text = str(error_from_response("GET /x", 502, body, {}))
    assert text.startswith("GET /x failed: 502")
    assert len(text) < 400
    assert len(str(error_from_response("PUT /x", 422, failure(422, message="x" * 100_000), {}))) < 700


def test_a_watchs_error_event_is_translated_alike() -> None:
    error = error_from_status("watch /x", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})
    assert isinstance(error, errors.GoneError)
    assert isinstance(error_from_status("watch /x", {}), errors.ServerBusyError)
