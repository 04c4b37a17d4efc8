"""Bounds of the description of an MPS daemon, and its file."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.sharing.mps_files import MAX_DEVICES, MpsDaemon

UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}") | st.uuids().map(lambda uuid: f"MIG-{uuid}")
G1, G2 = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"
WIRE = {"id": "one", "devices": [G1], "gpus": [G1], "defaultPercentage": 50, "memoryLimitsMiB": {G1: 7}}


@st.composite
def daemons(draw: st.DrawFn) -> MpsDaemon:
    devices = tuple(sorted(draw(st.sets(UUIDS, min_size=1, max_size=8))))
    limited = draw(st.sets(st.sampled_from(devices)))
    return MpsDaemon(
        id=draw(st.from_regex(r"[0-9A-Za-z][0-9A-Za-z._-]{0,127}", fullmatch=True)),
        devices=devices,
        gpus=tuple(GpuUuid(device) for device in devices if device.startswith("GPU-")),
        default_percentage=draw(st.none() | st.integers(0, 100)),
        memory_limits={device: draw(st.integers(1, 2**24)) for device in sorted(limited)},
    )


@given(daemons(), daemons())
def test_json_returns_the_same_daemon_and_only_that_has_its_generation(one: MpsDaemon, other: MpsDaemon) -> None:
    again = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(one))), MpsDaemon)
    assert again == one
    assert again.generation == one.generation
    assert (one == other) == (one.generation == other.generation)


def test_generation_is_that_of_earlier_versions() -> None:
    """During an update, the host of one version compares it with the file of the other."""
    assert msgspec.convert(WIRE, MpsDaemon).generation == "48e7afc6d9"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a\n", "a b", "-a", ".a", "é", "a" * 129, "a\0b"])
def test_an_id_can_always_be_the_name_of_a_folder(name: str) -> None:
    with pytest.raises(ValueError, match="cannot name an MPS daemon"):
        MpsDaemon(id=name, devices=(G1,))


@pytest.mark.parametrize(
    "change",
    [
        {"devices": []},
        {"devices": [G1, G1]},
        {"devices": [f"GPU-{number}" for number in range(MAX_DEVICES + 1)]},
        {"devices": ["GPU-1\nquit"]},
        {"devices": ["0"]},
        {"devices": ["GPU-1,GPU-2"]},
        {"devices": "GPU-1"},
        {"devices": [1]},
        {"id": 1},
        {"gpus": [G2]},
        {"gpus": [[]]},
        {"devices": ["MIG-1"], "gpus": ["MIG-1"]},
        {"defaultPercentage": 101},
        {"defaultPercentage": -1},
        {"defaultPercentage": True},
        {"defaultPercentage": "1"},
        {"memoryLimitsMiB": {G2: 1}},
        {"memoryLimitsMiB": {G1: 0}},
        {"memoryLimitsMiB": {G1: 2**24 + 1}},
        {"memoryLimitsMiB": {G1: None}},
    ],
)
def test_words_of_commands_and_folders_are_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(WIRE | change, MpsDaemon)


def test_fields_of_a_newer_version_are_ignored() -> None:
    """During an update host and node process may be of different versions."""
    assert msgspec.convert(WIRE | {"new": 1}, MpsDaemon) == msgspec.convert(WIRE, MpsDaemon)
