"""``kubectl dra explain`` with a state file, ``doctor`` and other commands with a support bundle."""

import io
import json
import time
from pathlib import Path

import pytest
import yaml

from dra_driver.core.document import to_wire
from dra_driver.diagnose.doctor import bundle
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import document_of
from dra_driver.kube.state_file import dump
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.commands.kubectl import main
from tests.doctor_faults.cluster import SERVER, Cluster, by_template, workload
from tests.fakes.dra_objects import resource_slice
from tests.unit.kubectl.explain.clusters import allocated_claim, cluster, pod, template


@pytest.fixture
def state(tmp_path: Path) -> str:
    file = tmp_path / "state.json"
    four = [f"gpu-{index}" for index in range(4)]
    claims = [allocated_claim("one", *four, on="a"), allocated_claim("two", *four[:2], on="b")]
    dump(cluster(claims=claims, templates=[template("t")], pods=[pod(template="t")]), file)
    return str(file)


def test_verdict_comes_first_and_decides_the_exit_status(state: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "pod/train", "--cluster-state", state]) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.splitlines()[0] == "pod default/train cannot fit: 6 devices match request gpu: 6 in use"
    assert main(["explain", "claim/one", "--cluster-state", state]) == 0


def test_a_pod_and_a_claim_of_one_name_are_on_different_rails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gpus = [{"name": f"gpu-{at}", "attributes": {"gpu.nvidia.com/rail": {"int": at}}} for at in range(2)]
    claims = [allocated_claim("x", "gpu-0", on="a", users=("x",)), allocated_claim("y", "gpu-1", on="a", users=("x",))]
    held = pod("x", claim="y", nodeName="a", status={"phase": "Running"})
    dump(cluster(slices=[resource_slice("a", *gpus)], claims=claims, pods=[held]), state := tmp_path / "state.json")
    main(["explain", "pod/x", "claim/x", "--cluster-state", str(state)])
    assert "claim x on rail 0; x on rail 1" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_the_schema_of_the_output_is_stable(
    state: str, capsys: pytest.CaptureFixture[str], form: str, parse: object
) -> None:
    main(["explain", "train", "--cluster-state", state, "-o", form, "--node", "a"])
    found = parse(capsys.readouterr().out)  # type: ignore[operator]
    assert (found["apiVersion"], found["kind"], found["name"]) == ("cli.dra-driver.io/v1", "Explanation", "train")
    assert found["requests"][0]["count"] == 1


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
    folder = tmp_path / "manifests"
    folder.mkdir()
    parts = cluster()
    for name, item in (("class", {"kind": "DeviceClass", **parts.classes[0]}), ("pod", {"kind": "Pod", **pod("new")})):
        item["metadata"].pop("namespace", None)
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(item))
    assert main(["explain", "-f", str(folder), "-n", "team", "--cluster-state", state]) == 0
    assert capsys.readouterr().out.startswith("pod team/new fits on 2 of 2 nodes")


ODD = ("1:59:59", "1:" * 3000 + "1", '!!bool "abc"', '!!int ""', '!!timestamp "abc"', ".inf", "!!python/object:x {}")


@pytest.mark.parametrize("value", ODD, ids=lambda value: value[:20])
def test_odd_scalars_are_text_or_an_error_that_names_the_file(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    file = tmp_path / "odd.yaml"
    file.write_text(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec:\n  hostname: {value}\n  containers: []\n")
    for arguments in (
        ["explain", "--cluster-state", state, "-f"],
        ["lint"],
        ["migrate"],
        ["devices", "--cluster-state"],
    ):
        status, printed = main([*arguments, str(file)]), capsys.readouterr()
        assert status in {0, 1, 2}
        assert status == 0 or "odd.yaml" in printed.out + printed.err, arguments


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A bundle of a healthy cluster with a pod whose template is in another namespace."""
    cluster = Cluster()
    cluster.templates.append(template("gpus"))
    cluster.pods.append(workload(**by_template("gpus")))
    facts = read_facts(cluster, server=SERVER)
    report = diagnose(facts, DoctorScope(), clock=time.monotonic)
    path = tmp_path / "b.tar.gz"
    found = bundle.SupportBundle(
        facts=facts, created_at="now", program_version="0.1.0", report=to_wire(document_of(report)), report_text="text"
    )
    bundle.write(found, path)
    return str(path)


def test_a_pod_of_a_bundle_with_the_answer_of_explain(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kubectl.main(["doctor", "pod/train", "-n", "team-a", "--snapshot", file]) == 1
    printed = capsys.readouterr().out
    first = " ".join(printed.splitlines()[:2])
    assert first.startswith("pod/team-a/train: the first broken layer is workload: pod/team-a/train: names Resource")
    assert "pod team-a/train cannot fit" in printed
    assert kubectl.main(["doctor", "pod/train", "-n", "team-a", "--snapshot", file, "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["exitStatus"]) == ("DoctorReport", 1)
    assert document["firstBroken"]["check"] == "claims-and-templates-exist"
    assert document["explanation"]["kind"] == "Explanation"


@pytest.mark.parametrize(
    "command", [["explain", "pod/train", "-n", "team-a"], ["capacity"], ["devices"], ["claims", "-A"], ["lint"]]
)
def test_other_commands_read_a_bundle(command: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = kubectl.main([*command, "--cluster-state", file])
    printed = capsys.readouterr()
    assert status in (0, 1), printed.err
    assert printed.out or "No claims found." in printed.err
