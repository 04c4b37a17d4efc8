"""`dra_driver.kube.reading`: no object makes a list or a watch unreadable."""

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.kube.reading import MAX_DEPTH, TOO_DEEP, decoded, may_be_deep, shallow

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
    """Its devices still count as used, and its neighbours in the list are whole."""
    page = b'{"metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":"a"}},' + CLAIM + b"]}"
    with caplog.at_level(logging.WARNING):
        answer = decoded(page, "GET /claims")
    first, second = answer["items"]
    assert (answer["metadata"], first) == ({"resourceVersion": "9"}, {"metadata": {"name": "a"}})
    assert second["status"] == {"text": ']]}"[['}
    assert TOO_DEEP in json.dumps(second["spec"])
    assert [record.object for record in caplog.records] == ["team/deep at version 7"]  # type: ignore[attr-defined]


def test_deep_watch_event_keeps_its_version(caplog: pytest.LogCaptureFixture) -> None:
    """The watch resumes after it."""
    event = decoded(b'{"type":"ADDED","object":' + CLAIM + b"}", "watch /claims")
    assert (event["type"], event["object"]["metadata"]["resourceVersion"]) == ("ADDED", "7")
    assert "team/deep" in str(caplog.records[0].__dict__["object"])


@given(JSON)
def test_json_within_the_limit_is_not_changed(value: object) -> None:
    """Brackets in strings are no levels."""
    data = json.dumps(value).encode()
    assert shallow(data) == data


@pytest.mark.parametrize("closing", [b"]", b"}"])
def test_values_beside_a_deep_one_stay(closing: bytes) -> None:
    """Two deep values in one array, and one between them."""
    opening = b"[" if closing == b"]" else b'{"":'
    inner = opening * (MAX_DEPTH + 5) + b"1" + closing * (MAX_DEPTH + 5)
    assert decoded(shallow(b"[" + inner + b',"b",' + inner + b"]"), "")[1] == "b"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 500, 900])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"":', b"}"), (b"[1,", b",1]"), (b'["]",', b"]")])
def test_values_that_decoders_accept_are_cut_too(levels: int, opening: bytes, closing: bytes) -> None:
    """Code that walks an object needs several frames for each level."""
    value = decoded(opening * levels + b"1" + closing * levels, "")
    depth = 0
    while isinstance(value, list | dict):
        depth, inner = depth + 1, value.values() if isinstance(value, dict) else value
        value = next((item for item in inner if isinstance(item, list | dict)), TOO_DEEP)
    assert depth == MAX_DEPTH


@given(st.lists(st.text(alphabet="[]{}x", max_size=40), max_size=40))
def test_brackets_in_strings_are_not_levels(texts: list[str]) -> None:
    """They may cost a scan, and change nothing."""
    data = json.dumps({"items": texts}).encode()
    assert decoded(data, "") == {"items": texts}
    assert may_be_deep(b"[" * (MAX_DEPTH + 1) + data + b"]" * (MAX_DEPTH + 1))


@pytest.mark.parametrize("text", [b"", b"<html>", b"[" * 5_000, b"]" * 5_000, b'{"a":' + DEEP, b"\xff"])
def test_text_that_is_not_json_is_refused(text: bytes) -> None:
    """A proxy's page, or an answer that was cut."""
    with pytest.raises(ValueError, match=r"\w"):
        decoded(text, "GET /")


def test_half_a_surrogate_pair_spoils_only_its_text() -> None:
    """Go and the API server keep it in opaque parameters and in names of their fields."""
    page = rb'{"items":[{"spec":{"x":"\ud800","\udfff":1}},{"metadata":{"name":"next"}}]}'
    assert decoded(page, "")["items"] == [{"spec": {"x": "?", "?": 1}}, {"metadata": {"name": "next"}}]


@pytest.mark.parametrize("text", [b"{", b'{"a":', b"\xff", b""])
def test_text_that_is_no_json_is_a_value_error(text: bytes) -> None:
    """Callers translate it."""
    with pytest.raises(ValueError, match=r"JSON|Expect|utf-8|char"):
        decoded(text, "")
