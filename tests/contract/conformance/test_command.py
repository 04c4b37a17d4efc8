"""``dra-driver conformance``: usage, restarts, reports, and each fault of a broken driver found by the check for it."""

import json
import socket
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from msgspec.structs import replace

from dra_driver.conformance import control as control_module
from dra_driver.conformance import suite
from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.control import ChildControl, CommandControl, CommandFaults
from dra_driver.conformance.suite import check_folder
from dra_driver.conformance.values import CheckOutcome, TimeLimits, UnableError
from dra_driver.core.command_line.main import main
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.finding import exit_status
from dra_driver.kube.rest import RestClient
from tests.contract.conformance.conftest import GENEROUS, NODE, MakeBench
from tests.fakes.subject.driver import SubjectDriver
from tests.fakes.subject.faults import FAULTS
from tests.harness.raising import fails

TEMPLATE = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: template.example.com}
spec: {selectors: [{cel: {expression: device.driver == "template.example.com"}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: two}
spec:
  spec:
    devices:
      requests:
        - name: a
          exactly:
            deviceClassName: template.example.com
            allocationMode: ExactCount
            count: 2
            selectors: [{cel: {expression: '"unit-7" != "absent"'}}]
"""


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--registrar-dir is missing"),
        (["--registrar-dir", "/no/such/folder"], "is not a directory"),
        (["--simulate", "1xh100-sxm5-80gb", "--registrar-dir", "/tmp"], "--simulate starts the driver"),
        (["--registrar-dir", "/tmp", "--restart-command", "x", "--", "y"], "omit --restart-command"),
        (["--registrar-dir", "/tmp", "--embedded-api-server", "a", "--kubeconfig", "b"], "exclude each other"),
        (["--registrar-dir", "/tmp", "--only", "absent"], "no check has this id"),
        (["--registrar-dir", "/tmp", "--output-file", "x"], "needs --output json or junit"),
        (["--registrar-dir", "/tmp", "--timeout", "-1"], "--timeout -1"),
        (["--registrar-dir", "/tmp", "--break-command", "x"], "need each other"),
    ],
)
def test_wrong_usage_is_one_sentence(arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", *arguments]) == 2
    assert problem in capsys.readouterr().err


def test_the_checks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conformance", "--list", "--profile", "full"]) == 0
    assert "prepare-cdi-resolves" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["pod-resources", "device-plugins"])
def test_a_folder_in_which_a_kubelet_works_is_refused(tmp_path: Path, name: str) -> None:
    registry = tmp_path / "plugins_registry"
    registry.mkdir()
    (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(tmp_path / name / "kubelet.sock"))
        check_folder(registry, owned=False)  # a socket that a dead kubelet left
        kubelet.listen()
        with fails(ConfigurationError, "KubeletRuns"):
            check_folder(registry, owned=False)
        check_folder(registry, owned=True)


def test_a_run_writes_its_report_and_says_what_it_does(
    api_rest: RestClient, api_kubeconfig: str, short_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = SubjectDriver(short_folder, api_rest, driver="run.example.com", node=NODE, faults=["unprepare-once"])
    driver.start()
    report = short_folder / "report.xml"
    where = ["--registrar-dir", str(driver.registrar_dir), "--cdi-dir", str(driver.cdi_dir)]
    chosen = ["--only", "prepare-cdi-*,unprepare-repeated,restart-registers"]
    output = ["--kubeconfig", api_kubeconfig, "--output", "junit", "--output-file", str(report)]
    try:
        assert main(["conformance", *where, *chosen, *output]) == 1
        root = ElementTree.fromstring(report.read_text())  # noqa: S314 - our own text
    finally:
        driver.end()
    text = capsys.readouterr().out
    assert f"driver run.example.com on node {NODE}" in text
    assert "9 checks: 7 passed, 1 failed, 0 advice, 1 not applicable, 0 unable" in text
    assert [case.get("name") for case in root if case.find("failure") is not None] == ["unprepare-repeated"]


def test_json_alone_is_all_of_the_output_and_strict_fails_for_advice(
    api_rest: RestClient, api_kubeconfig: str, short_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = SubjectDriver(short_folder, api_rest, driver="json.example.com", node=NODE, faults=["no-owner"]).start()
    where = ["--registrar-dir", str(driver.registrar_dir), "--cdi-dir", str(driver.cdi_dir), "--output", "json"]
    command = ["conformance", *where, "--kubeconfig", api_kubeconfig, "--only", "prepare-answers,slices-owner"]
    try:
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out)["summary"]["advice"] == 1
        assert main([*command, "--strict"]) == 1
    finally:
        driver.end()


ALLOWED = {"no-cdi-ids": {"uses_cdi": False}, "disk-node": {"has_disks": True}}


@pytest.mark.parametrize(("fault", "allowed"), ALLOWED.items())
def test_what_a_driver_is_for_can_be_allowed(bench_for: MakeBench, fault: str, allowed: dict[str, bool]) -> None:
    bench = bench_for(fault)
    bench.subject = replace(bench.subject, **allowed)
    [outcome] = suite.run(bench, [BY_ID[FAULTS[fault][0]]])
    assert outcome.verdict in {"passed", "not applicable"}, found(outcome)


def test_a_device_is_broken_by_the_users_command(tmp_path: Path) -> None:
    """Each word may name the device, and the command's option is named when it fails."""
    faults = CommandFaults(f"cp /dev/null {tmp_path}/{{pool}}-{{device}}", "sh -c 'exit 4'")
    faults.inject("p", "d")
    assert (tmp_path / "p-d").exists()
    with fails(UnableError, "CommandFailed", status=4):
        faults.recover("p", "d")


def test_the_claims_are_those_of_the_template(
    api_rest: RestClient, api_kubeconfig: str, short_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    driver = SubjectDriver(short_folder, api_rest, driver="template.example.com", node=NODE).start()
    template = short_folder / "claim.yaml"
    template.write_text(TEMPLATE)
    where = ["--registrar-dir", str(driver.registrar_dir), "--cdi-dir", str(driver.cdi_dir)]
    chosen = ["--kubeconfig", api_kubeconfig, "--claim-template", str(template), "--only", "prepare-devices"]
    try:
        assert main(["conformance", *where, *chosen]) == 0
        template.write_text(TEMPLATE.replace("unit-7", "absent"))
        assert main(["conformance", *where, *chosen]) == 3
    finally:
        driver.end()
    assert "free devices matches" in capsys.readouterr().out


def test_a_restart_command_that_fails_or_hangs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    CommandControl("true").restart()
    with fails(UnableError, "CommandFailed", status=3):
        CommandControl("sh -c 'echo went wrong >&2; exit 3'").restart()
    with fails(UnableError, "NotStarted"):
        CommandControl("/no/such/program").restart()
    with fails(ConfigurationError, "InvalidCommand"):
        CommandControl("a 'b")
    monkeypatch.setattr(control_module, "COMMAND_S", 0.05)
    with fails(UnableError, "TimedOut"):
        CommandControl("sleep 60").restart()


def test_a_child_is_killed_and_started_again(tmp_path: Path) -> None:
    said = tmp_path / "log"
    script = "import os, sys, time; print(os.environ['MARK'], flush=True); time.sleep(60)"
    child = ChildControl([sys.executable, "-c", script], {"MARK": "started"}, said)
    child.start()
    child.restart()
    child.stop()
    child.stop()
    assert set(said.read_text().split()) <= {"started"}
    with fails(ConfigurationError, "NotStarted"):
        ChildControl(["/no/such/program"], {}, said).start()


BY_ID = {check.id: check for check in CHECKS}


def found(outcome: CheckOutcome) -> str:
    return f"{outcome.check.id}: {outcome.verdict}: {outcome.detail}"


@pytest.mark.slow
def test_a_driver_without_faults_passes_every_check(bench_for: MakeBench) -> None:
    outcomes = suite.run(bench_for(), CHECKS)
    assert [found(outcome) for outcome in outcomes if outcome.verdict != "passed"] == []


@pytest.mark.slow
def test_a_driver_with_one_device_is_not_failed_for_it(bench_for: MakeBench) -> None:
    outcomes = suite.run(bench_for("one-device", limits=GENEROUS), CHECKS)
    assert [found(outcome) for outcome in outcomes if outcome.verdict not in {"passed", "not applicable"}] == []
    assert sum(outcome.verdict == "not applicable" for outcome in outcomes) == 13


@pytest.mark.parametrize("fault", FAULTS)
def test_the_fault_is_found_by_its_check(bench_for: MakeBench, fault: str) -> None:
    check = BY_ID[FAULTS[fault][0]]
    [outcome] = suite.run(bench_for(fault), [check])
    assert outcome.verdict == ("failed" if check.level == "must" else "advice"), found(outcome)
    assert outcome.detail
    assert "unexpectedly" not in outcome.detail


def test_every_check_has_a_fault() -> None:
    """A check that was never seen to fail proves nothing."""
    assert {check.id for check in CHECKS} - {check for check, _ in FAULTS.values()} == set()


IMPATIENT = TimeLimits(
    dial_s=0.1, get_info_s=0.1, notify_s=0.1, call_s=0.05, publish_s=0.1, restart_s=0.1, health_s=0.05, quiet_s=0.05,
    in_use_s=0.05, check_s=2.0, pause_s=0.01,
)  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("get-info-hangs", "prepare-hangs", "no-known-version")
        ),
        "publishes-nothing",
    ],
)
def test_a_driver_that_hangs_or_lies_never_ends_a_run(bench_for: MakeBench, fault: str) -> None:
    outcomes = suite.run(bench_for(fault, limits=IMPATIENT), CHECKS)
    assert [outcome.check for outcome in outcomes] == list(CHECKS)
    assert [found(outcome) for outcome in outcomes if "unexpectedly" in outcome.detail] == []
    assert exit_status((each.finding.status for each in outcomes), unanswered=3) == 1


def test_a_check_ends_when_its_time_is_over(bench_for: MakeBench) -> None:
    [outcome] = suite.run(bench_for(limits=TimeLimits(check_s=0.0)), [BY_ID["prepare-answers"]])
    assert "the check did not end within 0 s" in outcome.detail
