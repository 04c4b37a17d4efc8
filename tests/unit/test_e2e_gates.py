"""Tests of tests/e2e are skipped exactly where a feature gate that they need is off."""

import re
import tomllib
from pathlib import Path

import pytest

from dra_driver.sim.loop import load
from tests.e2e import gates
from tests.e2e.gates import EXTENDED, NAMED, PARTITIONS, SHARES, TAINTS

ROOT = Path(__file__).parents[2]
# The gates of dynamic resource allocation that are off by default, in pkg/features/kube_features.go of 1.34.9, 1.35.6
# and 1.36.2; a version does not have what is younger.
YOUNG = ("DRAResourceClaimGranularStatusAuthorization",)
ALPHA_BEFORE_1_36 = (
    "DRAConsumableCapacity",
    "DRADeviceBindingConditions",
    "DRADeviceTaints",
    "DRAExtendedResource",
    "DRAPartitionableDevices",
    "ResourceHealthStatus",
)
METRICS = """\
# HELP kubernetes_feature_enabled [BETA] This metric records the data about the stage and enablement of a k8s feature.
# TYPE kubernetes_feature_enabled gauge
kubernetes_feature_enabled{name="DRAPartitionableDevices",stage="BETA"} 1
kubernetes_feature_enabled{name="DRADeviceTaintRules",stage="BETA"} 0
kubernetes_feature_enabled{name="DynamicResourceAllocation",stage=""} 1
"""


def defaults(version: str) -> dict[str, bool]:
    is_old = version != "1.36"
    found = dict.fromkeys(ALPHA_BEFORE_1_36, not is_old) | {"DRAAdminAccess": True, "DRAPrioritizedList": True}
    return found if is_old else {**found, **dict.fromkeys(YOUNG, True)}


def test_the_metrics_are_read() -> None:
    found = {"DRAPartitionableDevices": True, "DRADeviceTaintRules": False, "DynamicResourceAllocation": True}
    assert gates.read_gates(METRICS) == found


def test_nothing_is_skipped_for_its_gates_on_1_36() -> None:
    assert gates.why_skipped(NAMED, defaults("1.36")) == ""


@pytest.mark.parametrize("version", ["1.34", "1.35"])
@pytest.mark.parametrize("gate", sorted(NAMED))
def test_each_named_gate_is_off_by_default_before_1_36(version: str, gate: str) -> None:
    assert gates.why_skipped([gate], defaults(version)) == f"feature gate {gate} is off in this cluster"


def test_with_the_gate_on_the_older_version_runs_the_test() -> None:
    on = {**defaults("1.34"), PARTITIONS: True}
    assert gates.why_skipped([PARTITIONS], on) == ""
    assert gates.why_skipped([TAINTS, PARTITIONS, SHARES], on).startswith(f"feature gate {SHARES}, {TAINTS} is off")


def test_a_misspelt_gate_is_an_error_and_no_skip() -> None:
    with pytest.raises(ValueError, match="DRAPartitionableDevice'"):
        gates.why_skipped(["DRAPartitionableDevice"], defaults("1.36"))


def test_the_reason_is_listed() -> None:
    listed = [entry["reason"] for entry in tomllib.loads((ROOT / "tests" / "skips.toml").read_text())["e2e"]]
    reason = gates.why_skipped([PARTITIONS, SHARES], defaults("1.34"))
    assert [pattern for pattern in listed if re.fullmatch(pattern, reason)] != []


@pytest.mark.parametrize(
    ("example", "needed"),
    [
        ("one-gpu", set()),
        ("no-match-stays-pending", set()),
        ("mig-slice-by-profile", {PARTITIONS}),
        ("big-or-small", {PARTITIONS}),
        ("shared-mps-three-pods", {SHARES}),
        ("shared-time-sliced-pair", {SHARES}),
        ("shared-mig-device", {PARTITIONS, SHARES}),
        ("extended-resources", {EXTENDED, PARTITIONS}),
        ("shares-for-unmodified-pods", {EXTENDED, SHARES}),
        ("monitor-used-gpu", {TAINTS}),
    ],
)
def test_the_gates_of_objects_are_found_in_them(example: str, needed: set[str]) -> None:
    assert gates.gates_of(load(ROOT / "examples" / f"{example}.yaml")) == needed
