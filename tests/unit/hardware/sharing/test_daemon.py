"""What an MPS daemon can be, and that its file says exactly that."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.sharing.mps_files import MAX_DEVICES, MpsDaemon

UUIDS = st.uuids().map(lambda uuid: f"GPU-{uuid}") | st.uuids().map(lambda uuid: f"MIG-{uuid}")
G1, G2 = "GPU-00000000-0000-0000-0000-000000000001", "GPU-00000000-0000-0000-0000-000000000002"


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


@given(daemons())
def test_json_brings_back_the_same_daemon_and_generation(daemon: MpsDaemon) -> None:
    again = MpsDaemon.from_wire(json.loads(json.dumps(daemon.to_wire())))
    assert again == daemon
    assert again.generation == daemon.generation


@given(daemons(), daemons())
def test_another_daemon_has_another_generation(one: MpsDaemon, other: MpsDaemon) -> None:
    assert (one == other) == (one.generation == other.generation)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a\n", "a b", "-a", ".a", "é", "a" * 129, "a\0b", None, 7]
)
def test_an_id_can_always_be_the_name_of_a_folder(name: Any) -> None:
    with pytest.raises(ValueError, match="cannot name an MPS daemon"):
        MpsDaemon(id=name, devices=(G1,))


@pytest.mark.parametrize(
    "change",
    [
        {"devices": ()},
        {"devices": (G1, G1)},
        {"devices": tuple(f"GPU-{number}" for number in range(MAX_DEVICES + 1))},
        {"devices": ("GPU-1\nquit",)},
        {"devices": ("0",)},
        {"devices": ("GPU-1,GPU-2",)},
        {"gpus": (G2,)},
        {"devices": ("MIG-1",), "gpus": ("MIG-1",)},
        {"default_percentage": 101},
        {"default_percentage": -1},
        {"default_percentage": True},
        {"default_percentage": 50.0},
        {"memory_limits": {G2: 1}},
        {"memory_limits": {G1: 0}},
        {"memory_limits": {G1: 2**24 + 1}},
        {"memory_limits": {G1: "1"}},
    ],
)
def test_what_would_end_up_in_a_command_is_bounded(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        MpsDaemon(**({"id": "one", "devices": (G1,)} | change))


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        {},
        {"id": "one"},
        {"id": "one", "devices": "GPU-1", "gpus": [], "memoryLimitsMiB": {}},
        {"id": 1, "devices": [G1], "gpus": [], "memoryLimitsMiB": {}},
        {"id": "one", "devices": [1], "gpus": [], "memoryLimitsMiB": {}},
        {"id": "one", "devices": [G1], "gpus": [[]], "memoryLimitsMiB": {}},
        {"id": "one", "devices": [G1], "gpus": [], "memoryLimitsMiB": {G1: None}},
        {"id": "one", "devices": [G1], "gpus": [], "memoryLimitsMiB": {}, "defaultPercentage": "1"},
    ],
)
def test_a_file_with_anything_else_is_refused(wire: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        MpsDaemon.from_wire(wire)


def test_fields_of_a_newer_version_are_ignored() -> None:
    """During an update host and node process may be of different versions."""
    daemon = MpsDaemon(id="one", devices=(G1,))
    assert MpsDaemon.from_wire(daemon.to_wire() | {"new": 1}) == daemon
