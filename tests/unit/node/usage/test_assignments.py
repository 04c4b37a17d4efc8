"""``assignments.json`` is read with bounds; what makes no sense in it is left out, and a damaged file is an error."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, IdleAction, OverGrantAction, UsageRules
from dra_driver.node.usage.assignments import MAX_BYTES, decode

DEVICE: dict[str, Any] = {
    "request": "gpu", "pool": "n/gpu.nvidia.com", "device": "gpu-0", "form": "share", "gpu": "GPU-a", "giId": None,
    "uuid": "GPU-a", "profile": None, "shareId": "s1", "memoryBytes": 2**30, "percent": 20, "adminAccess": False,
}  # fmt: skip
CLAIM: dict[str, Any] = {
    "uid": "u1", "namespace": "team", "name": "llm", "prepared": "2026-07-01T12:00:00Z", "labels": {"team": "a"},
    "devices": [DEVICE],
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "version": 1, "node": "n", "driver": "gpu.nvidia.com", "processStarted": "2026-07-01T11:00:00Z", "detached": None,
    "gpus": [{"device": "gpu-0", "gpu": "GPU-a", "changing": False}], "claims": [CLAIM],
}  # fmt: skip


def read(**changes: Any) -> Any:
    return decode(json.dumps(DOCUMENT | changes).encode())


def test_rules_of_a_gpu() -> None:
    usage = {"onOverGrant": "Evict", "graceSeconds": 5, "overheadBytesPerProcess": 7, "idleAfterMinutes": 3}
    (gpu,) = read(gpus=[DOCUMENT["gpus"][0] | {"changing": True, "usage": usage | {"onIdle": "Reclaim"}}]).gpus
    assert gpu.changing
    assert gpu.rules == UsageRules(
        over_grant=OverGrantAction.EVICT, grace_s=5, overhead_bytes=7, idle_after_min=3, idle=IdleAction.RECLAIM
    )
    (gpu,) = read(gpus=[DOCUMENT["gpus"][0] | {"usage": {"graceSeconds": -1, "onOverGrant": 5}}]).gpus
    assert gpu.rules == DEFAULT_USAGE


def test_a_detached_driver_is_left_alone_whatever_the_reason() -> None:
    assert read(detached="upgrade").detached == "upgrade"
    assert read(detached=7).detached


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{", b'{"version": 2}', b"[" * 100_000, b" " * (MAX_BYTES + 1), b'{"version": 1, "node": "n"}'],
)
def test_a_damaged_file_is_an_error(content: bytes) -> None:
    with pytest.raises(ConfigurationError):
        decode(content)


@pytest.mark.parametrize("wrong", [{"uid": 5}, {"namespace": ""}, {"name": "a\nb"}, {"name": "x" * 300}, {"uid": None}])
def test_a_claim_without_a_name_is_left_out(wrong: dict[str, Any]) -> None:
    assert [claim.ref.uid for claim in read(claims=[CLAIM | wrong, CLAIM, "x", None]).claims] == ["u1"]


def test_values_that_make_no_sense_are_not_known() -> None:
    wrong = {"giId": -1, "memoryBytes": 2**70, "percent": 101, "adminAccess": "yes"}
    (claim,) = read(claims=[CLAIM | {"devices": [DEVICE | wrong, DEVICE | {"form": "slice"}], "prepared": 5}]).claims
    (device,) = claim.devices
    assert (device.gi_id, device.memory_bytes, device.percent, device.admin_access) == (None, None, None, False)
