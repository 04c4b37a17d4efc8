"""``kubectl dra migrate``: output, files, and objects read from a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.errors import ApiUnreachableError, ForbiddenError, NotFoundError
from dra_driver.kubectl.commands.kubectl import main
from dra_driver.kubectl.commands.migrate import KINDS, cluster_documents
from dra_driver.kubectl.migrate.ledger import at

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: team-a}
spec:
  containers:
  - {name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}
"""
CONFIG = "version: v1\nsharing: {mps: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "pod.yaml"
    path.write_text(f"{POD}---\n{CONFIG}")
    return str(path)


def test_objects_are_on_stdout_and_the_report_on_stderr(manifest: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", manifest]) == 0
    out, err = capsys.readouterr()
    kinds = [each["kind"] for each in yaml.safe_load_all(out) if each]
    assert kinds == ["GpuPolicy", "ResourceClaimTemplate", "Pod"]
    assert "#   mpsHost:\n#     enabled: true\n" in out
    assert "CARRIED OVER" in err
    assert main(["migrate", manifest, "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (len(document["items"]), document["report"]["kind"]) == (3, "MigrationReport")


def test_a_folder_has_a_file_for_each_kind(manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    assert main(["migrate", manifest, "--output-dir", str(folder)]) == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["1-policies.yaml", "3-templates.yaml", "4-pod.yaml", "report.txt", "values.yaml"]
    assert yaml.safe_load((folder / "values.yaml").read_text()) == {
        "mpsHost": {"enabled": True},
        "deviceClasses": {"shared": {"extendedResourceName": "nvidia.com/gpu.shared", "oneEach": True}},
    }
    assert "2 documents: 1 policy" in capsys.readouterr().out
    assert main(["migrate", manifest, "--output-dir", str(folder)]) == 2
    assert "expected a new or empty directory" in capsys.readouterr().err


def test_written_files_are_private(manifest: str, tmp_path: Path) -> None:
    folder, report = tmp_path / "out", tmp_path / "report.txt"
    folder.mkdir(mode=0o755)
    report.touch(mode=0o644)
    assert main(["migrate", manifest, "--output-dir", str(folder), "--report", str(report)]) == 0
    assert {path.stat().st_mode & 0o777 for path in (*folder.iterdir(), report)} == {0o600}


def test_the_report_as_json(manifest: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.json"
    assert main(["migrate", manifest, "--report", str(report)]) == 0
    notes = json.loads(report.read_text())["items"]
    note = next(each for each in notes if each["field"].endswith('["nvidia.com/gpu"]'))
    assert (note["line"], note["outcome"], note["object"]) == (6, "carried over", "Pod team-a/p")
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_an_input_that_cannot_be_read_is_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(f"{POD}---\na: [\n")
    assert main(["migrate", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "kind: Pod" in out
    assert "cannot read: " in err


class Lists:
    """An API server: items by the end of a path, or an error."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[str]()

    def list(self, path: str, /) -> Any:
        self.asked.append(path)
        answer = self.answers.get(path.rpartition("/")[2], [])
        if isinstance(answer, Exception):
            raise answer
        return {"items": answer}


def test_cluster_documents_omit_owned_objects_and_tokens() -> None:
    owned = {"metadata": {"name": "a", "ownerReferences": [{}]}, "spec": {"containers": []}}
    ended = {"metadata": {"name": "b"}, "spec": {"containers": []}, "status": {"phase": "Succeeded"}}
    mount = {"name": "kube-api-access-x2k4f", "mountPath": "/var/run/secrets"}
    spec = {"volumes": [{"name": mount["name"]}], "containers": [{"name": "c", "volumeMounts": [mount]}]}
    free = {"metadata": {"name": "c"}, "spec": {**spec, "nodeName": "n"}}
    found = list(cluster_documents(Lists(pods=[owned, ended, free], replicasets=[owned]), None, []))
    assert [each.label for each in found] == ["Pod c"]
    assert at(found[0].value, "spec") == {"containers": [{"name": "c"}]}
    assert found[0].api_version == "v1"
    # ConfigMaps without configuration are skipped.
    maps = [{"metadata": {"name": "a"}, "data": {"x": "y"}}, {"metadata": {"name": "b"}, "data": {"c": CONFIG}}]
    assert [each.name for each in cluster_documents(Lists(configmaps=maps), "team-a", [])] == ["b"]


def test_missing_permission_is_named_and_other_kinds_are_read() -> None:
    lists, problems = Lists(nodes=ForbiddenError("no"), pods=[{"metadata": {"name": "p"}, "spec": {}}]), list[str]()
    assert [each.name for each in cluster_documents(lists, "team-a", problems)] == ["p"]
    assert problems == ["cluster: skipped nodes: no permission to list them"]
    assert "/api/v1/namespaces/team-a/pods" in lists.asked
    problems.clear()  # a cluster without the operator has no ClusterPolicies
    lists = Lists(clusterpolicies=NotFoundError("not served"))
    assert list(cluster_documents(lists, None, problems)) == []
    assert (problems, len(lists.asked)) == ([], len(KINDS))
    with pytest.raises(ApiUnreachableError):
        list(cluster_documents(Lists(nodes=ApiUnreachableError("refused")), None, []))
