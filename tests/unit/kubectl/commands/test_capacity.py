"""`kubectl dra capacity`, `devices` and `claims` with a state file: exit statuses, tables and JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_driver.core.command_line.table import show
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands.claims import age
from dra_driver.kubectl.commands.kubectl import main
from tests.fakes.dra_objects import claim
from tests.unit.kubectl.capacity.helpers import cluster, holding, whole

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
    assert (document["schemaVersion"], document["kind"]) == (1, "CapacityReport")
    assert [node["node"] for node in document["nodes"]] == ["a"]
    assert document["models"][0]["gpus"] == {
        "total": 4,
        "free": 2,
        "used": 2,
        "fragmented": 0,
        "unavailable": 0,
        "reasons": {},
    }
    assert set(document["models"][0]["requests"][0]) == {
        "request", "profile", "share", "count", "inUse", "fits", "bySum", "stranded", "atLeast",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--node", "nope"], "--node 'nope': none of the 4 nodes has this name"),
        (["--share", "lots"], "--share: 'lots' is not a quantity"),
        (["--share=-1Gi"], "expected an amount greater than zero"),
        (["--feature-gates", "X"], "expected NAME=true"),
    ],
)
def test_wrong_flags_are_refused_with_a_sentence(
    state: str, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capacity", "--cluster-state", state, *flags]) == 2
    assert said in capsys.readouterr().err


def test_lists_as_json_have_a_schema(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--cluster-state", state, "-o", "json", "-n", "default"]) == 0
    devices = json.loads(capsys.readouterr().out)
    assert (devices["schemaVersion"], devices["kind"], len(devices["items"])) == (1, "DeviceList", 8)
    assert devices["items"][0]["holders"][0]["claim"] == "xa"
    assert main(["claims", "--cluster-state", state, "-o", "json", "--pending"]) == 0
    claims = json.loads(capsys.readouterr().out)
    assert (claims["kind"], [item["name"] for item in claims["items"]]) == ("ClaimList", ["waits"])


def test_lists_are_printed_as_tables(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "--cluster-state", state]) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == [
        "NAMESPACE", "CLAIM", "STATE", "NODE", "REQUESTS", "DEVICES", "PODS", "AGE",
    ]  # fmt: skip
    assert main(["devices", "--cluster-state", state, "--node", "nope"]) == 0
    assert capsys.readouterr().out == "No matching devices are published.\n"


def test_capacity_of_an_empty_cluster_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.json"
    dump(cluster([]), path)
    assert main(["capacity", "--cluster-state", str(path)]) == 0
    assert capsys.readouterr().out == "No devices are published.\n"


def test_a_closed_output_ends_the_command_without_a_message(state: str) -> None:
    """`kubectl dra devices | head -1` prints no error."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "devices", "--cluster-state", state]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False, cwd=ROOT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_tables_have_colours_only_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters in cells are replaced with rich, too."""
    show(("A",), [("x\x1b[31m[bold]",), ("",)], colour=True)
    shown = capsys.readouterr().out
    assert "x?[31m[bold]" in shown
    assert "<none>" in shown


def test_ages_are_printed_in_the_largest_unit() -> None:
    assert [age(seconds) for seconds in (0, 59, 60, 7200, 200_000, None)] == ["0s", "59s", "1m", "2h", "2d", "?"]
