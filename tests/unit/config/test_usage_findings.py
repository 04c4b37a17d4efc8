"""The exporter's file: what was written is read, and what was not is refused or left out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.config.usage_findings import MAX_BYTES, decode, encode
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_findings import (
    MAX_COMMANDS,
    MAX_IDLE,
    MAX_OVER_GRANT,
    MAX_PODS,
    MAX_UNATTRIBUTED,
    IdleClaim,
    OverGrant,
    Unattributed,
    UsageFindings,
    UsingPod,
)
from dra_driver.core.model.usage_rules import OverGrantAction
from tests.unit.node.usage.claims import GIB, NOW, claim, named, pod

OVER = OverGrant(
    **named(claim()),
    device="gpu-0",
    pods=(pod(), pod("llm-1")),
    used_bytes=20 * GIB,
    grant_bytes=12 * GIB,
    processes=2,
    since=NOW,
    action=OverGrantAction.EVICT,
)
ALL = UsageFindings(
    written=NOW,
    over_grant=(OVER,),
    unattributed=(Unattributed(gpu_uuid="GPU-0", device="gpu-0", processes=1, bytes=None, since=NOW, commands=("x",)),),
    idle=(IdleClaim(**named(claim("idle")), since=NOW),),
)


def document(**changed: Any) -> bytes:
    return json.dumps(json.loads(encode(ALL)) | changed).encode()


def test_what_was_written_is_read() -> None:
    assert decode(encode(ALL)) == ALL


def test_the_largest_file_that_is_written_is_read() -> None:
    long = ClaimRef(namespace="n" * 253, name="c" * 253, uid=ClaimUid("u" * 128))
    pods = (UsingPod(namespace="n" * 253, name="p" * 253, uid="u" * 128),) * MAX_PODS
    largest = UsageFindings(
        written=NOW,
        over_grant=(replace(OVER, **named(long), pods=pods, device="d" * 253),) * MAX_OVER_GRANT,
        unattributed=(replace(ALL.unattributed[0], commands=("ü" * 64,) * MAX_COMMANDS),) * MAX_UNATTRIBUTED,
        idle=(IdleClaim(**named(long), since=NOW),) * MAX_IDLE,
    )
    assert decode(encode(largest)) == largest


def test_lists_are_cut_to_their_bounds_on_both_sides() -> None:
    many = replace(ALL, over_grant=(replace(OVER, pods=(pod(),) * 50),) * (MAX_OVER_GRANT + 9))
    found = decode(encode(many))
    assert len(found.over_grant) == MAX_OVER_GRANT
    raw = json.loads(encode(ALL))
    raw["overGrant"] = [raw["overGrant"][0] | {"pods": raw["overGrant"][0]["pods"] * 10}] * 200
    raw["unattributed"][0]["commands"] = ["x"] * 100
    found = decode(json.dumps(raw).encode())
    assert len(found.over_grant) == MAX_OVER_GRANT
    assert len(found.over_grant[0].pods) == MAX_PODS
    assert len(found.unattributed[0].commands) == MAX_COMMANDS


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "version 'None', expected 1"),
        (b'{"version": 2}', "version '2', expected 1"),
        (b'{"version": 1}', "written: missing"),
        (b" " * (MAX_BYTES + 1), f"expected at most {MAX_BYTES}"),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        decode(content)


@pytest.mark.parametrize(
    "changed",
    [
        {"pods": []}, {"pods": None}, {"pods": [{"namespace": "team", "name": "x"}]}, {"usedBytes": -1},
        {"usedBytes": True}, {"usedBytes": 2**70}, {"grantBytes": "12Gi"}, {"since": "yesterday"},
        {"since": "2026-07-01T12:00:00"}, {"since": "0001-01-01T00:00:00+23:59"}, {"claimUid": ""},
        {"claim": "x" * 254}, {"namespace": "a\nb"}, {"device": None},
    ],
)  # fmt: skip
def test_an_entry_that_makes_no_sense_is_left_out(changed: dict[str, Any]) -> None:
    entry = json.loads(encode(ALL))["overGrant"][0]
    found = decode(document(overGrant=[entry | changed, entry]))
    assert found.over_grant == (OVER,)


def test_an_unknown_action_only_reports() -> None:
    entry = json.loads(encode(ALL))["overGrant"][0]
    found = decode(document(overGrant=[entry | {"action": "Kill"}]))
    assert found.over_grant[0].action is OverGrantAction.REPORT


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(["overGrant", "unattributed", "idle"]), JSON, st.sampled_from(["pods", "commands", "since"]))
def test_no_value_anywhere_breaks_the_reader(section: str, value: Any, field: str) -> None:
    decode(document(**{section: value}))
    entry = json.loads(encode(ALL))[section][0]
    decode(document(**{section: [entry | {field: value}]}))
