"""Every command in each form: exit status, JSON that docs/json.md describes, tables that fit 80 columns."""

import argparse
import json
import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from dra_driver.core.command_line.table import display_width, render, shortened
from dra_driver.core.document import API_VERSION
from dra_driver.core.time import parse_time
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.kubectl.commands.listing import Listed, print_csv, print_list
from dra_driver.kubectl.commands.usage import listed_devices
from dra_driver.kubectl.usage.device_use import ClaimDeviceUse, UsageList, UsageSumList, UseReport, summed
from scripts.json_docs import documents
from tests.fakes.dra_objects import claim, node, resource_slice
from tests.unit.kubectl.explain.clusters import a100, allocated_claim, cluster, pod

LOST = {"key": "gpu.nvidia.com/gpu-lost", "effect": "NoSchedule"}
LONG = "n" * 253
# Arguments -> exit status.
COMMANDS = {
    "claims": 0,
    "devices": 0,
    "topology": 0,
    "capacity": 0,
    "explain": 1,
    "explain pod waits": 1,
    "doctor": 1,
}


@pytest.fixture
def state(tmp_path: Path) -> str:
    """A cluster of mixed health: a pod on a lost GPU, a waiting pod, an unused GPU, a claim with a long name."""
    found = cluster(
        slices=[resource_slice("a", {**a100(0), "taints": [LOST]}, a100(1))],
        claims=[allocated_claim("c", "gpu-0", on="a", users=("train",)), claim(LONG)],
        pods=[pod(claim="c", nodeName="a", status={"phase": "Running"}), pod("waits", claim="absent")],
        nodes=[node("a")],
    )
    dump(found, tmp_path / "state.json")
    return str(tmp_path / "state.json")


@pytest.mark.parametrize("arguments", COMMANDS)
def test_json_is_the_documented_document(arguments: str, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = "--snapshot" if arguments == "doctor" else "--cluster-state"
    status = main([*arguments.split(), source, state, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    kinds = {str(kind.__struct_config__.tag): kind for kind in documents()}
    assert document["apiVersion"] == API_VERSION
    kind = kinds[document["kind"]]
    assert set(document) - {"kind"} == {each.encode_name for each in fields(kind)}
    for key, value in pairs(document):
        assert not key.endswith("At") or not value or parse_time(value), key
    assert status in (0, 1, 2)


def test_names_of_two_namespaces_are_two_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twins = [claim("c"), {**claim("c"), "metadata": {"name": "c", "namespace": "team-b", "uid": "b"}}]
    dump(cluster(claims=twins), tmp_path / "state.json")
    assert main(["claims", "-A", "-o", "name", "--cluster-state", str(tmp_path / "state.json")]) == 0
    assert capsys.readouterr().out == "resourceclaim.resource.k8s.io/c\n" * 2


def test_a_claim_is_not_called_missing_where_claims_are_unread(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unread = json.loads(Path(state).read_text())
    unread["draState"]["gaps"] = ["resourceclaims: forbidden"]
    unread["items"] = [item for item in unread["items"] if item["kind"] != "ResourceClaim"]
    (tmp_path / "unread.json").write_text(json.dumps(unread))
    assert main(["claims", "c", "--cluster-state", str(tmp_path / "unread.json")]) == 1
    assert "Unknown: the claims cannot be read." in capsys.readouterr().err


@pytest.mark.parametrize("filter_by", ["-l team=x", "--node b"])
def test_a_hidden_claim_is_not_called_missing(filter_by: str, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "c", *filter_by.split(), "--cluster-state", state]) == 2
    assert "cannot be combined" in capsys.readouterr().err


def test_a_plain_name_is_no_type(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "gpu-a", "--snapshot", state]) == 2
    assert "'gpu-a': expected node NAME" in capsys.readouterr().err


def test_csv_of_no_items_has_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    print_csv(UsageList(source="x", window_s=0, items=[]))
    assert capsys.readouterr().out.startswith("namespace,claim,")


def test_csv_keeps_a_label_with_the_name_of_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    uses = [ClaimDeviceUse(namespace="n", claim="c")]
    sums = summed(uses, lambda _: (("key", "a"), ("claimCount", "b")))
    print_csv(UsageSumList(source="x", window_s=0, by="label:key", items=sums))
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.startswith("key,claimCount,claimCount,deviceCount,")
    assert row.startswith("a,b,1,1,")


def test_a_watch_reports_later_gaps_and_deleted_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    each = ClaimDeviceUse(namespace="n", claim="c")
    states = iter([([each], ()), ([], ()), ([], ("node a: lost",)), ([], ("node a: lost",))])

    def read() -> Listed[ClaimDeviceUse]:
        uses, gaps = next(states)
        return listed_devices(args, "n", UseReport(source="x", window_s=0, uses=uses, gaps=gaps))

    args = argparse.Namespace(output="table", watch=True, all_namespaces=False)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(StopIteration):
        print_list(args, read)
    said = capsys.readouterr().err
    assert said.splitlines() == ["resourceclaim.resource.k8s.io/c deleted from n namespace", "not read: node a: lost"]


def test_selected_nodes_show_no_devices_of_other_nodes(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["devices", "-l", "pool=other", "--cluster-state", state, "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["items"] == []
    unread = json.loads(Path(state).read_text())
    unread["draState"]["gaps"] = ["nodes: forbidden"]
    (tmp_path / "unread.json").write_text(json.dumps(unread))
    assert main(["capacity", "-l", "pool=other", "--cluster-state", str(tmp_path / "unread.json")]) != 0
    assert "cannot select nodes" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", COMMANDS)
def test_tables_fit_80_columns_with_and_without_colour(arguments: str, state: str) -> None:
    source = "--snapshot" if arguments == "doctor" else "--cluster-state"
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *arguments.split(), source, state]
    shown = {name: terminal(command, NO_COLOR=name) for name in ("", "1")}
    status, coloured = shown[""]
    assert status == COMMANDS[arguments]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert plain == shown["1"][1]
    assert max(map(display_width, plain.splitlines())) <= 80


def test_a_locale_without_a_character_shows_a_question_mark(tmp_path: Path) -> None:
    dump(cluster(claims=[claim("漢")]), tmp_path / "state.json")
    command = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "claims", "--cluster-state"]
    status, shown = terminal([*command, str(tmp_path / "state.json")], PYTHONIOENCODING="ascii", NO_COLOR="1")
    assert (status, shown.splitlines()[1].split()[0]) == (0, "?")


def terminal(command: list[str], **environment: str) -> tuple[int, str]:
    ours, its = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40", **environment}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.DEVNULL, env=env) as child:
        os.close(its)
        chunks = []
        try:
            while chunk := os.read(ours, 65536):
                chunks.append(chunk)
        except OSError:  # EIO: the command has ended (pty(7))
            pass
        os.close(ours)
        return child.wait(30), b"".join(chunks).decode().replace("\r\n", "\n")


def pairs(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield key, each
            yield from pairs(each)
    elif isinstance(value, list):
        for each in value:
            yield from pairs(each)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_a_table_is_cut_and_never_wrapped(width: int) -> None:
    rows = [("a" * 253, "בדיקה", "e\u0301" * 50), ("漢字" * 40, "", "x")]
    lines = render(("NAME", "OTHER", "MORE"), rows, width).split("\n")
    assert len(lines) == 3
    assert max(map(display_width, lines)) <= width
    assert shortened("serving-ldzr8-gpu-sxhf8", 12) == "serving-…hf8"
    assert shortened("e\u0301" * 50, 12) == "e\u0301" * 8 + "…" + "e\u0301" * 3
