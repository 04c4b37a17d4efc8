"""`kubectl dra doctor` and the commands that read a support bundle."""

import json
import time
from pathlib import Path

import pytest

from dra_driver.diagnose.doctor import bundle
from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
from dra_driver.diagnose.doctor.reading import read_facts
from dra_driver.diagnose.doctor.report import to_wire
from dra_driver.kubectl.commands import kubectl
from tests.doctor_faults.cluster import SERVER, Cluster, by_template, template, workload


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A bundle of a healthy cluster with a pod whose template is in another namespace."""
    cluster = Cluster()
    cluster.templates.append(template("gpus", namespace="default"))
    cluster.pods.append(workload(**by_template("gpus")))
    facts = read_facts(cluster, server=SERVER)
    report = diagnose(facts, DoctorScope(), clock=time.monotonic)
    path = tmp_path / "b.tar.gz"
    bundle.write(
        bundle.SupportBundle(
            facts=facts, created_at="now", program_version="0.1.0", report=to_wire(report), report_text="text"
        ),
        path,
    )
    return str(path)


def test_a_pod_of_a_bundle_with_the_answer_of_explain(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The first lines have the layer; what explain says follows."""
    assert kubectl.main(["doctor", "pod/train", "-n", "team-a", "--snapshot", file]) == 1
    printed = capsys.readouterr().out
    first = " ".join(printed.splitlines()[:2])
    assert first.startswith("pod/team-a/train: the first broken layer is workload: pod/team-a/train: names Resource")
    assert "pod team-a/train cannot fit" in printed


def test_json_has_report_and_explanation(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs read both."""
    assert kubectl.main(["doctor", "pod/train", "-n", "team-a", "--snapshot", file, "-o", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["exitStatus"]) == ("DoctorReport", 1)
    assert document["firstBroken"]["check"] == "claims-and-templates-exist"
    assert document["explanation"]["kind"] == "Explanation"


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "pod/train", "-n", "team-a"],
        ["capacity"],
        ["devices"],
        ["claims"],
        ["lint"],
    ],
)
def test_other_commands_read_a_bundle(command: list[str], file: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those who help need no cluster."""
    status = kubectl.main([*command, "--cluster-state", file])
    printed = capsys.readouterr()
    assert status in (0, 1), printed.err
    assert printed.out
    assert not printed.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "expected node/NAME, pod/NAME or claim/NAME"),
        (["service/x"], "expected node/NAME, pod/NAME or claim/NAME"),
        (["node/a/b"], "expected node/NAME"),
        (["--timeout", "0"], "expected 1 to 600 seconds"),
        (["--timeout", "nan"], "expected 1 to 600 seconds"),
        (["node/none"], "there is no node none"),
    ],
)
def test_wrong_usage_is_a_sentence_and_status_2(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing was looked at."""
    assert kubectl.main(["doctor", *arguments, "--snapshot", file]) == 2
    assert message in capsys.readouterr().err
