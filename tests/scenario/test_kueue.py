"""The configuration and the quotas for Kueue, from the slices that nodes publish."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kube.state import ClusterState, with_objects
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.capacity import quotas_of, stocks_of
from dra_driver.kubectl.capacity.kueue import ModelStock
from dra_driver.kubectl.commands.kubectl import main
from tests.scenario.conftest import ROOT

DRIVER = "gpu.nvidia.com"
SHARES = """\
apiVersion: gpu.dra-driver.io/v1alpha1
kind: GpuPolicy
metadata: {name: shares}
spec: {sharing: {strategy: MPS}}
"""


def published(spec: str, node: str, folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> list[Any]:
    assert main(["node-template", spec, "--node", node, "-o", "json", *options]) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["items"]
    return found


@pytest.mark.parametrize(
    ("spec", "amounts"),
    [
        ("2xh100-sxm5-80gb", {"memory": "163118Mi", "decoders": "14"}),
        ("1xl4-24gb", {"gpus": "1"}),
        ("2xa100-sxm4-80gb", {"gpus": "2"}),  # MIG mode is off
    ],
)
def test_quotas_are_the_sums_of_a_model(
    spec: str, amounts: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (stock,) = stocks_of(published(spec, "a", tmp_path, capsys), DRIVER)
    quotas = quotas_of(stock, DRIVER)
    assert {quota.name.rpartition("-")[2]: quota.amount for quota in quotas} == amounts
    assert bool(quotas[0].counter) == (len(quotas) == 2)


def test_the_slot_counter_admits_the_seven_that_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By memory alone, Kueue would admit eight."""
    (stock,) = stocks_of(published("1xh100-sxm5-80gb", "a", tmp_path, capsys), DRIVER)
    cost = stock.costs["1g.10gb"]
    admits = {name: stock.counters[name] // cost[name] for name in ("memory", stock.slot_counter)}
    assert admits == {"memory": 8, "decoders": 7}


def test_shares_have_a_quota_of_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shares.yaml").write_text(SHARES)
    policy = ("--policy", str(tmp_path / "shares.yaml"))
    (stock,) = stocks_of(published("2xl4-24gb", "a", tmp_path, capsys, *policy), DRIVER)
    (quota,) = quotas_of(stock, DRIVER)
    assert (quota.capacity, quota.counter, stock.whole) == ("memory", "", 0)
    assert "sharingStrategy" in quota.selector
    assert "allowMultipleAllocations" not in quota.selector, "Kueue's CEL has it, always false"


def test_a_tainted_gpu_and_an_incomplete_pool_add_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slices = published("2xh100-sxm5-80gb", "a", tmp_path, capsys)
    for device in (device for item in slices for device in item["spec"].get("devices") or ()):
        if device["name"] == "gpu-0" or device["name"].startswith("gpu-0-"):
            device["taints"] = [{"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule"}]
    (stock,) = stocks_of(slices, DRIVER)
    assert (stock.whole, stock.tainted, [quota.amount for quota in quotas_of(stock, DRIVER)]) == (
        1,
        1,
        ["81559Mi", "7"],
    )
    assert stocks_of(slices[1:], DRIVER) == []


@pytest.mark.parametrize("spec", ["2xh100-sxm5-80gb", "1xl4-24gb", "2xa100-sxm4-80gb", "2xl4-24gb shared"])
def test_a_drain_of_all_gpus_changes_amounts_and_no_mapping(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shares.yaml").write_text(SHARES)
    spec, _, shared = spec.partition(" ")
    slices = published(spec, "a", tmp_path, capsys, *(["--policy", str(tmp_path / "shares.yaml")] if shared else []))
    (before,) = (quotas_of(stock, DRIVER) for stock in stocks_of(slices, DRIVER))
    for device in (device for item in slices for device in item["spec"].get("devices") or ()):
        device["taints"] = [{"key": "gpu.dra-driver.io/drained", "effect": "NoSchedule"}]
    (after,) = (quotas_of(stock, DRIVER) for stock in stocks_of(slices, DRIVER))
    assert [quota.mapping(DRIVER) for quota in after] == [quota.mapping(DRIVER) for quota in before]
    assert {quota.amount for quota in after} == {"0"}


def test_each_model_has_own_classes_and_one_queue(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = mixed(tmp_path, capsys)
    assert main(["kueue", "queues", "-n", "team-a", "--cluster-state", str(file)]) == 0
    objects = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [(item["kind"], item["metadata"]["name"]) for item in objects] == [
        ("DeviceClass", "nvidia-h100-80gb-hbm3.gpu.nvidia.com"),
        ("DeviceClass", "nvidia-h100-80gb-hbm3.mig.nvidia.com"),
        ("DeviceClass", "nvidia-l4.gpu.nvidia.com"),
        *[(kind, "gpus") for kind in ("ResourceFlavor", "ClusterQueue", "LocalQueue")],
    ]
    (group,) = objects[4]["spec"]["resourceGroups"]
    assert {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]} == {
        "cpu": "32",
        "memory": "256Gi",
        "gpu.nvidia.com/nvidia-h100-80gb-hbm3-memory": "81559Mi",
        "gpu.nvidia.com/nvidia-h100-80gb-hbm3-decoders": "7",
        "gpu.nvidia.com/nvidia-l4-gpus": "2",
    }
    assert [each["name"] for each in group["flavors"][0]["resources"]] == group["coveredResources"]


def test_the_extended_resource_of_the_default_class_has_a_quota(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Kueue charges pods with `nvidia.com/gpu` under that name, because no mapping has the class."""
    classes = list(yaml.safe_load_all((ROOT / "deploy/base/deviceclasses.yaml").read_text()))
    state = with_objects(ClusterState(), [*published("2xh100-sxm5-80gb", "a", tmp_path, capsys), *classes])
    dump(state, tmp_path / "state.json")
    assert main(["kueue", "queues", "--cluster-state", str(tmp_path / "state.json")]) == 0
    (queue,) = (each for each in yaml.safe_load_all(capsys.readouterr().out) if each["kind"] == "ClusterQueue")
    (group,) = queue["spec"]["resourceGroups"]
    assert {"name": "nvidia.com/gpu", "nominalQuota": "2"} in group["flavors"][0]["resources"]


def test_a_shared_fleet_has_no_quota_for_the_extended_resource(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the quota "0" Kueue could never admit a pod, and would not say which quota is missing."""
    (tmp_path / "shares.yaml").write_text(SHARES)
    classes = list(yaml.safe_load_all((ROOT / "deploy/base/deviceclasses.yaml").read_text()))
    slices = published("2xl4-24gb", "a", tmp_path, capsys, "--policy", str(tmp_path / "shares.yaml"))
    dump(with_objects(ClusterState(), [*slices, *classes]), tmp_path / "state.json")
    assert main(["kueue", "queues", "--cluster-state", str(tmp_path / "state.json")]) == 0
    printed = capsys.readouterr()
    assert "nvidia.com/gpu\n" not in printed.out
    assert "no whole GPU is published: the ClusterQueue has no quota for nvidia.com/gpu\n" in printed.err


def test_long_names_of_models_stay_apart() -> None:
    stem = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation"
    names = [quotas_of(ModelStock(product=f"{stem} {edition}", all_whole=1), DRIVER)[0].name for edition in ("A", "B")]
    assert len(set(names)) == 2
    assert max(len(name.partition("/")[2]) for name in names) <= 63 - len("-multiprocessors") + len("-gpus")


def test_without_devices_the_cause_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump(ClusterState(), tmp_path / "empty.json")
    assert main(["kueue", "config", "--cluster-state", str(tmp_path / "empty.json")]) == 2
    assert "no node publishes a device" in capsys.readouterr().err


@pytest.mark.skipif("E2E_KUEUE" not in os.environ, reason="$E2E_KUEUE is not set; it names Kueue's binary")
def test_kueue_accepts_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kueue validates its file before it needs a cluster."""
    file = mixed(tmp_path, capsys)
    assert main(["kueue", "config", "--cluster-state", str(file)]) == 0
    text = capsys.readouterr().out
    assert kueue(tmp_path, text) == ""
    assert "Unable to validate" in kueue(tmp_path, text.replace("name: memory", "name: MEMORY"))


def kueue(folder: Path, text: str) -> str:
    """Return the line of Kueue that refuses the configuration, "" if it only lacks a cluster."""
    (folder / "kueue.yaml").write_text(text)
    command = [os.environ["E2E_KUEUE"], "--config", str(folder / "kueue.yaml")]
    ended = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"HOME": str(folder), "KUBECONFIG": "/none"},
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    return next((line for line in said.splitlines() if "Unable to" in line), "")


def mixed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    slices = [
        item
        for spec, node in (("1xh100-sxm5-80gb", "a"), ("2xl4-24gb", "b"))
        for item in published(spec, node, folder, capsys)
    ]
    for item in slices:
        item["metadata"]["name"] += f"-{item['spec']['nodeName']}"
    allocatable = {"cpu": "16", "memory": "128Gi"}
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"allocatable": allocatable}}
        for name in ("a", "b", "other")
    ]
    dump(with_objects(ClusterState(), [*slices, *nodes]), folder / "state.json")
    return folder / "state.json"
