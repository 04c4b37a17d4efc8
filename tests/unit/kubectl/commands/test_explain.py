"""``kubectl dra explain`` and ``snapshot`` with a state file."""

import io
import json
from pathlib import Path

import pytest
import yaml

from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands.kubectl import main
from tests.unit.kubectl.explain.clusters import allocated_claim, cluster, pod, template


@pytest.fixture
def state(tmp_path: Path) -> str:
    """Pod train waits because all devices are in use."""
    file = tmp_path / "state.json"
    claims = [
        allocated_claim("one", "gpu-0", "gpu-1", "gpu-2", "gpu-3", on="a"),
        allocated_claim("two", "gpu-0", "gpu-1", on="b"),
    ]
    dump(cluster(claims=claims, templates=[template("t")], pods=[pod(template="t")]), file)
    return str(file)


def test_verdict_comes_first_and_decides_the_exit_status(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pod/train", "--cluster-state", state]) == 1
    first = capsys.readouterr().out.splitlines()[0]
    assert first == "pod default/train cannot fit: 6 devices match request gpu: 6 in use"
    assert main(["explain", "claim/one", "--cluster-state", state]) == 0


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_schema_of_the_output_is_stable(
    state: str, capsys: pytest.CaptureFixture[str], form: str, parse: object
) -> None:
    """Removing a name would break scripts that read it."""
    main(["explain", "train", "--cluster-state", state, "-o", form, "--node", "a"])
    found = parse(capsys.readouterr().out)  # type: ignore[operator]
    assert list(found) == [
        "schemaVersion", "kind", "subject", "subjectKind", "namespace", "name", "verdict", "causes", "requests",
        "nearestMiss", "nodes", "fittingNodes", "node", "scheduler", "notes",
    ]  # fmt: skip
    assert found["schemaVersion"] == 1
    assert list(found["verdict"]) == ["answer", "sentence", "nodesFit", "nodesTotal"]
    assert list(found["requests"][0]) == [
        "claim", "request", "className", "count", "devices", "fitting", "nodesShort", "reasons",
    ]  # fmt: skip
    assert list(found["requests"][0]["reasons"][0]) == ["code", "message", "devices", "nodes", "seen", "examples"]
    assert list(found["nearestMiss"]) == ["device", "node", "request", "faults", "fix"]
    assert list(found["nodes"][0]) == ["message", "nodes", "byDevices", "examples"]
    assert list(found["node"]) == ["name", "fits", "message", "devices", "allocation"]


def test_manifests_are_explained_without_being_applied(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "what-if.yaml"
    more = {"kind": "Pod", **pod("more", template="t")}
    missing = {"kind": "Pod", **pod("lost", template="missing")}
    file.write_text(yaml.safe_dump_all([{"kind": "List", "items": [more]}, missing]))
    assert main(["explain", "-f", str(file), "--cluster-state", state, "-o", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in found["items"]] == ["more", "lost"]
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(more)))
    assert main(["explain", "-f", "-", "--cluster-state", state]) == 1


def test_a_folder_of_manifests_replaces_what_the_cluster_has(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Objects without a namespace get the one of -n; a class has none."""
    folder = tmp_path / "manifests"
    folder.mkdir()
    parts = cluster()
    for name, item in (("class", {"kind": "DeviceClass", **parts.classes[0]}), ("pod", {"kind": "Pod", **pod("new")})):
        item["metadata"].pop("namespace", None)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(item))
    assert main(["explain", "-f", str(folder), "-n", "team", "--cluster-state", state]) == 0
    assert capsys.readouterr().out.startswith("pod team/new fits on 2 of 2 nodes")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["explain"], "expected either pod/NAME or claim/NAME, or manifests with -f"),
        (["explain", "deployment/x"], "expected pod/NAME or claim/NAME"),
        (["explain", "pod/missing"], "no pod missing in namespace default"),
        (["explain", "claim/missing", "-n", "team"], "no ResourceClaim missing in namespace team"),
        (["explain", "train", "--node", "nowhere"], "no node nowhere; known nodes: a, b"),
        (["explain", "train", "--feature-gates", "X"], "expected NAME=true or NAME=false"),
        (["explain", "-f", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
    ],
)
def test_wrong_arguments_get_a_sentence_and_status_2(
    state: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main([*arguments, "--cluster-state", state]) == 2
    assert said in capsys.readouterr().err


def test_output_to_a_pipe_has_no_colours(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "train", "--cluster-state", state])
    assert "\x1b" not in capsys.readouterr().out
