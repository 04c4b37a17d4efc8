"""`kubectl dra capacity`, `devices` and `claims` with a state file: exit statuses, tables and JSON."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.command_line.table import render, show
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.capacity import devices_of
from dra_driver.kubectl.commands.devices import COLUMNS, grouped
from dra_driver.kubectl.commands.kubectl import main
from tests.fakes.dra_objects import DRIVER, Obj, claim, resource_slice
from tests.fakes.published import h100, having, slice_name
from tests.unit.kubectl.capacity.helpers import cells, cluster, holding, whole

ROOT = Path(__file__).parents[4]


@pytest.fixture
def state(tmp_path: Path) -> str:
    claims = [*(holding(f"x{name}", name, "gpu-0", "gpu-1") for name in "abcd"), claim("waits")]
    path = tmp_path / "state.json"
    dump(cluster([whole(name, 4) for name in "abcd"], claims), path)
    return str(path)


def test_capacity_prints_one_screen(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--cluster-state", state, "--by-node"]) == 0
    shown = capsys.readouterr().out
    assert "4 GPUs of NVIDIA H100 80GB HBM3: 8 are free, but at most 2 on one node" in shown
    assert "a (+3 equal)" in shown
    assert "\x1b" not in shown


def test_capacity_as_json_has_a_schema(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--cluster-state", state, "-o", "json", "--node", "a"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "CapacityReport"
    assert [node["node"] for node in document["nodes"]] == ["a"]
    counts = {"total": 4, "free": 2, "used": 2, "fragmented": 0, "unavailable": 0, "heldUnhealthy": 0}
    assert document["items"][0]["gpuCount"] == {**counts, "unavailableReasons": {}}
    in_use = {item["request"]: item["inUseCount"] for item in document["items"][0]["requests"]}
    assert (in_use["1 GPU"], in_use["2 GPUs"]) == (2, None)


@pytest.mark.parametrize(
    ("gaps", "said", "now"),
    [(["resourceslices: forbidden"], "Unknown: the published", "?"), ([], "No devices found.", "0")],
)
def test_an_added_node_hides_no_unread_devices(
    gaps: list[str], said: str, now: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dump(ClusterState(gaps=gaps), path := tmp_path / "state.json")
    question = ["capacity", "--cluster-state", str(path), "--with-node", "2xh100-sxm5-80gb", "--by-node"]
    assert main(question) == len(gaps)
    shown, told = capsys.readouterr()
    assert said in told
    assert shown.startswith("\nEach added node")
    assert shown.count("PRODUCT") == 1
    assert re.search(rf" 1 GPU +{re.escape(now)} +2\n", shown)


def test_capacity_counts_what_fits_on_an_added_node(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = ["capacity", "--cluster-state", state, "--with-node", "2xh100-sxm5-80gb"]
    assert main(question) == 0
    shown = capsys.readouterr().out
    rows = [line.split("  ") for line in shown.partition("Each added node of 2xh100-sxm5-80gb:")[2].splitlines()]
    table = {tuple(filter(None, map(str.strip, row))) for row in rows if row[0].startswith("NVIDIA")}
    assert {("NVIDIA H100 80GB HBM3", *numbers) for numbers in (("1 GPU", "8", "2"), ("1g.10gb", "0", "14"))} <= table
    assert "not checked: labels and taints of the node; CPU and memory;" in shown
    assert main([*question, "-o", "json", "--totals", "--driver", "other.example.com"]) == 0
    added = json.loads(capsys.readouterr().out)["addedNode"]
    assert (added["gpus"], [each["driver"] for each in added["products"]]) == (
        "2xh100-sxm5-80gb",
        ["other.example.com"],
    )
    assert main(["capacity", "--cluster-state", state, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["addedNode"] is None


def test_lists_as_json_have_a_schema(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--cluster-state", state, "-o", "json", "-n", "default"]) == 0
    devices = json.loads(capsys.readouterr().out)
    assert (devices["apiVersion"], devices["kind"]) == ("cli.dra-driver.io/v1", "DeviceList")
    assert len(devices["items"]) == 8
    assert devices["items"][0]["holders"][0]["claim"] == "xa"
    assert main(["claims", "--cluster-state", state, "-o", "json", "--pending"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert (claims["kind"], [item["claim"] for item in claims["items"]]) == ("ClaimList", ["waits"])


def test_lists_are_printed_as_tables(state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--cluster-state", state]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["CLAIM", "STATE", "NODE", "DEVICES", "AGE"]
    assert main(["claims", "--cluster-state", state, "-A", "-o", "wide"]) == 0
    assert capsys.readouterr().out.splitlines()[0].split()[:2] == ["NAMESPACE", "CLAIM"]
    assert main(["claims", "--cluster-state", state, "-n", "nosuchns"]) == 0
    assert capsys.readouterr() == ("", "No claims found in nosuchns namespace.\n")
    assert main(["devices", "--cluster-state", state, "--node", "nope"]) == 0
    assert capsys.readouterr() == ("", "No devices found.\n")
    path = tmp_path / "empty.json"
    dump(cluster([]), path)
    assert main(["capacity", "--cluster-state", str(path)]) == 0
    assert capsys.readouterr() == ("", "No devices found.\n")


def test_a_closed_output_ends_the_command_without_a_message(state: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "devices", "--cluster-state", state]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_table_is_aligned_and_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    plain = ["A       LONG", "value   <none>", "?[31m   b"]
    assert render(("A", "LONG"), [("value", ""), ("\x1b[31m", "b")]).splitlines() == plain
    show(("A",), [("x\x1b[31m[bold]",), ("",)], colour=True)
    shown = capsys.readouterr().out
    assert "x?[31m[bold]" in shown
    assert "<none>" in shown


def slice_of(node: str, *names: str, generation: int = 1, driver: str = DRIVER, **device: Any) -> Obj:
    found = resource_slice(node, *({"name": name, **device} for name in names), generation=generation, name=f"{names}")
    found["spec"] |= {"driver": driver, "pool": {**found["spec"]["pool"], "name": f"{node}/{driver}"}}
    return found


def test_row_shows_device_state_and_users() -> None:
    item = slice_of(
        "n",
        "gpu-0",
        attributes={"type": {"string": "gpu"}, "productName": {"string": "NVIDIA L4"}},
        capacity={"memory": {"value": "23034Mi"}},
        taints=[{"key": "gpu.nvidia.com/lost", "effect": "NoExecute"}],
    )
    held = holding("train", "n", "gpu-0")
    held["status"]["reservedFor"] = [{"resource": "pods", "name": "train-0", "uid": "1"}]
    (found,) = devices_of(ClusterState(slices=[item], claims=[held]))
    shown = {"NODE": "n", "DRIVER": "gpu.nvidia.com", "DEVICE": "gpu-0", "TYPE": "gpu", "PRODUCT": "NVIDIA L4"}
    shown |= {"MEMORY": "22.5 GiB", "STATE": "in use, tainted", "TAINTS": "gpu.nvidia.com/lost:NoExecute"}
    assert cells(COLUMNS, found) == shown | {"CLAIMS": "default/train", "PODS": "train-0", "LEFT": ""}


def test_devices_include_other_drivers_and_unpublished_devices() -> None:
    slices = [slice_of("n", "gpu-0", generation=1), slice_of("n", "gpu-1", generation=2)]
    assert [found.device for found in devices_of(ClusterState(slices=slices))] == ["gpu-1"]
    rows = devices_of(ClusterState(slices=[slice_of("b", "x"), slice_of("a", "nic-0", driver="nic.example")]))
    assert [(item.node, item.driver, item.product) for item in rows] == [("a", "nic.example", ""), ("b", DRIVER, "")]
    (found,) = devices_of(ClusterState(claims=[holding("train", "n", "gpu-9")]))
    assert (found.device, found.published, cells(COLUMNS, found)["TYPE"]) == ("gpu-9", False, "(not published)")


def test_without_the_right_to_list_claims_holders_are_unknown() -> None:
    (found,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], gaps=["resourceclaims: forbidden"]))
    assert found.holders is None
    shown = cells(COLUMNS, found)
    assert (shown["STATE"], shown["CLAIMS"], shown["PODS"]) == ("?", "?", "?")


def test_filters_by_node_driver_and_namespace_of_the_claim() -> None:
    state = ClusterState(
        slices=[slice_of("n", "gpu-0"), slice_of("m", "gpu-0"), slice_of("n", "nic-0", driver="nic.example")],
        claims=[holding("train", "n", "gpu-0")],
    )
    assert len(devices_of(state, node="n")) == 2
    assert len(devices_of(state, node="n", driver="nic.example")) == 1
    assert [item.node for item in devices_of(state, namespace="default")] == ["n"]


def test_long_holder_lists_are_cut() -> None:
    claims = [claim("waits"), *(holding(f"c{number}", "n", "gpu-0", shareID=str(number)) for number in range(5))]
    (one,) = devices_of(ClusterState(slices=[slice_of("n", "gpu-0")], claims=claims))
    assert cells(COLUMNS, one)["CLAIMS"] == "default/c0, default/c1, default/c2 and 2 more"
    watching = having("x", "gpu-0")
    watching["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    found = devices_of(h100(claims=[watching]))
    assert {each.state for each in found} == {"free"}
    assert cells(COLUMNS, found[0])["CLAIMS"] == "default/x (admin access)"


def test_unused_placements_of_a_profile_share_a_line() -> None:
    found = devices_of(h100(claims=[having("x", slice_name(6))]))
    names = [row.device for row in grouped(found)]
    assert names[:3] == ["gpu-0", slice_name(6), "gpu-0-mig-1g10gb-19-* (6)"]
    assert names.count("gpu-0-mig-3g40gb-9-0") == names.count("gpu-0-mig-3g40gb-9-4") == 1
    assert len(found) == 26
