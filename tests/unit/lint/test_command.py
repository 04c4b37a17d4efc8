"""The command: what it reads, prints and returns; and the project's own manifests."""

import json
import re
from pathlib import Path

import pytest

from dra_driver.cli import kubectl
from dra_driver.kube import state_file
from dra_driver.kube.state import ClusterState
from dra_driver.lint.output import as_text
from dra_driver.lint.rules import RULES
from tests.unit.lint.helpers import D, device_class, pod, report, selecting

ROOT = Path(__file__).parents[3]
BAD = device_class(f"{D}.type == 'gpu'") + "---\n" + pod("[{name: gpu, resourceClaimName: x}]")


def lint(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = kubectl.main(["lint", *arguments])
    return status, capsys.readouterr().out


@pytest.fixture
def bad(tmp_path: Path) -> str:
    path = tmp_path / "a,b.yaml"
    path.write_text(BAD)
    return str(path)


def test_examples_and_deployment_are_clean(capsys: pytest.CaptureFixture[str]) -> None:
    status, out = lint(capsys, "--strict", str(ROOT / "examples"), str(ROOT / "deploy"))
    assert status == 0
    assert re.fullmatch(r"\d\d objects in \d\d files: nothing to complain about\n", out)


def test_text_for_people(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    status, out = lint(capsys, bad)
    assert status == 1
    lines = out.splitlines()
    assert lines[0] == bad
    assert lines[1].startswith("  8:9     error   DRA013  the expression fails on a device of another driver")
    assert lines[3].index("^") == lines[2].index("device.attributes")
    assert lines[-1] == "2 objects in 1 file: 1 error, 1 warning"


def test_json_has_a_stable_schema(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    _, out = lint(capsys, bad, "-o", "json")
    document = json.loads(out)
    assert document["schemaVersion"] == 1
    assert document["summary"] == {"files": 1, "objects": 2, "leftOut": 0, "error": 1, "warning": 1, "info": 0}
    first = document["findings"][0]
    assert list(first) == [
        "rule", "name", "severity", "message", "hint", "file", "line", "column", "object", "path"
    ]  # fmt: skip
    assert (first["rule"], first["object"]) == ("DRA013", "DeviceClass mine")
    assert first["path"] == "spec.selectors[0].cel.expression"


def test_annotations_are_one_line_each_and_escaped(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    _, out = lint(capsys, bad, "-o", "github")
    lines = out.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["::error", "::warning"]
    assert lines[0].startswith("::error file=" + bad.replace(",", "%2C") + ",line=8,col=9,title=DRA013 ")


def test_sarif_names_every_rule(capsys: pytest.CaptureFixture[str], bad: str) -> None:
    _, out = lint(capsys, bad, "-o", "sarif")
    run = json.loads(out)["runs"][0]
    assert {rule["id"] for rule in run["tool"]["driver"]["rules"]} == set(RULES)
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 8, "startColumn": 9}


def test_exit_status(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Warnings are no failure unless they are made one; a missing file is wrong usage."""
    (tmp_path / "p.yaml").write_text(pod("[{name: gpu, resourceClaimName: x}]"))
    assert lint(capsys, str(tmp_path))[0] == 0
    assert lint(capsys, "--strict", str(tmp_path))[0] == 1
    assert lint(capsys, str(tmp_path / "missing.yaml"))[0] == 2
    assert lint(capsys, str(tmp_path), "--cluster", "--cluster-state", "x")[0] == 2


def test_a_cluster_state_is_checked_itself_without_paths(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What controllers made of other objects is not repeated."""
    owner = [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "1", "controller": True}]
    requests = [{"name": "g", "exactly": {"deviceClassName": "nothere"}}]
    claims = [
        {"metadata": {"name": name, "namespace": "a", **extra}, "spec": {"devices": {"requests": requests}}}
        for name, extra in (("mine", {}), ("generated", {"ownerReferences": owner}))
    ]
    file = tmp_path / "state.json"
    state_file.dump(ClusterState(claims=claims), file)
    status, out = lint(capsys, "--cluster-state", str(file))
    assert status == 1
    assert "cluster: ResourceClaim a/mine" in out
    assert "generated" not in out
    assert lint(capsys, "--cluster-state", str(file), "-n", "b")[0] == 0


def test_nothing_from_a_manifest_reaches_the_terminal_as_control_sequence() -> None:
    text = as_text(report(selecting("device.driver == '\\u001b[31m' && x")))
    assert "\x1b" not in text
    evil = (
        'apiVersion: v1\nkind: Pod\nmetadata: {name: "\\e[31m"}\nspec: {containers: [], resourceClaims: [{name: a}]}\n'
    )
    assert "\x1b" not in as_text(report(evil))
    assert "\x1b[31m" in as_text(report(evil), colour=True)


def test_every_rule_is_documented_and_tested() -> None:
    documented = re.findall(r"^### (DRA\d+) ([a-z0-9-]+)$", (ROOT / "docs/lint.md").read_text(), re.MULTILINE)
    assert documented == [(rule.id, rule.name) for rule in RULES.values()]
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    assert {rule for rule in RULES if rule not in tests} == set()
