"""``status.usage``: what is written fits the schema, however large, and is read back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert
from msgspec.structs import replace

from dra_driver.config.status import node_status_of, usage_in_words
from dra_driver.core.model.gpu_node import MAX_TOLD, NO_USAGE, ToldForeign, ToldPod, ToldUsage
from dra_driver.core.wire import to_wire
from tests.unit.node.process.test_usage_report import TOLD, TOLD_FOREIGN, TOLD_NOTEBOOK

ALL = ToldUsage(
    over_grant=(TOLD,), idle=(TOLD_NOTEBOOK,), unattributed=(TOLD_FOREIGN,), checked_at="2026-07-01T12:00:00Z"
)


def valid(told: ToldUsage) -> Any:
    written = json.loads(json.dumps(to_wire(told)))
    convert(written, ToldUsage)
    return written


def read(written: object) -> ToldUsage:
    status = node_status_of({"status": {"driverName": "d", "usage": written}})
    assert status is not None
    return status.usage


def test_what_is_written_fits_and_is_read_back() -> None:
    assert read(valid(ALL)) == ALL
    assert to_wire(NO_USAGE) == {}
    assert read(None) == NO_USAGE


def test_the_largest_fits_the_schema() -> None:
    """Far below what an object may have."""
    long = replace(TOLD, namespace="n" * 253, claim="c" * 253, claim_uid="u" * 128, processes=10**9)
    pods = (ToldPod(name="p" * 253, uid="u" * 128),) * 50
    foreign = ToldForeign(gpu="gpu-0", processes=10**9, memory=None, since="x", commands=("\n" * 900, "ü" * 900) * 9)
    told = ToldUsage(
        over_grant=(replace(long, pods=pods),) * 99, unattributed=(foreign,) * 99, idle=(TOLD_NOTEBOOK,) * 99
    )
    written = valid(told)
    assert [len(written[name]) for name in ("overGrant", "unattributed", "idle")] == [MAX_TOLD] * 3
    assert len(json.dumps(written)) < 200_000


def test_words_for_a_column() -> None:
    assert usage_in_words(ALL) == ("1 over grant: team/llm; 1 idle: team/notebook; 1 with processes of no claim: gpu-0")
    assert usage_in_words(NO_USAGE) is None


@pytest.mark.parametrize(
    ("section", "changed"),
    [
        ("overGrant", {"claimUid": None}),
        ("overGrant", {"graceSeconds": None}),
        ("overGrant", {"graceSeconds": -1}),
        ("overGrant", {"graceSeconds": 86401}),
        ("idle", {"afterMinutes": 0}),
        ("idle", {"afterMinutes": 10081}),
        ("unattributed", {"gpu": 7}),
    ],
)
def test_an_entry_that_makes_no_sense_is_left_out(section: str, changed: dict[str, Any]) -> None:
    """A grace time that cannot be read is not one of 0 seconds."""
    written = valid(ALL)
    written[section][0] |= changed
    found = read(written)
    assert {"overGrant": found.over_grant, "idle": found.idle, "unattributed": found.unattributed}[section] == ()


def test_an_unknown_action_asks_for_nothing() -> None:
    written = valid(ALL)
    written["overGrant"][0]["action"] = written["idle"][0]["action"] = "Delete"
    assert not read(written).asks


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "uid", "pods"]), inner),
    max_leaves=8,
)


@given(st.sampled_from(["overGrant", "unattributed", "idle", "checkedAt"]), st.sampled_from(["pods", "since"]), JSON)
def test_no_value_anywhere_breaks_the_reader(section: str, field: str, value: Any) -> None:
    """The controller reads what any node has written."""
    read(valid(ALL) | {section: value})
    written = valid(ALL)
    if section != "checkedAt":
        written[section][0][field] = value
        read(written)
