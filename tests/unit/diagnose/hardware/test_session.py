"""One run with scripted readings: order, limits, interruption, restoring; and the processes of checks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml
import pytest
from msgspec.structs import replace

from dra_driver.core.finding import Status
from dra_driver.diagnose.hardware import child, session
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.cuda import client_environment
from dra_driver.diagnose.hardware.first_gpu import PROBES
from dra_driver.diagnose.hardware.runner import InterruptedReading
from dra_driver.diagnose.hardware.session import CHECKS, RESTORE, SURVEY
from dra_driver.diagnose.hardware.survey import Consent
from dra_driver.diagnose.hardware.values import CheckRecord, HardwareReport, Reading
from dra_driver.hardware.sharing.mps_files import DaemonFolder
from tests.unit.diagnose.hardware import facts

NUMBERS = {check.reader: check.number for check in CHECKS}


class Machine:
    """Answers tasks as a machine on which all is right; remembers them with their limits."""

    def __init__(self, survey: dict[str, Any] | None = None) -> None:
        self.survey = facts.survey() if survey is None else survey
        self.tasks: list[tuple[Task, float]] = []
        self.answers: dict[str, Callable[[], Reading]] = {}
        self.now = 0.0
        self.takes_s = 1.0

    def run(self, task: Task, limit_s: float) -> Reading:
        self.tasks.append((task, limit_s))
        self.now += self.takes_s
        if task.reader == SURVEY:
            return Reading(facts=self.survey)
        if task.reader in self.answers:
            return self.answers[task.reader]()
        return Reading(facts=facts.ALL[NUMBERS[task.reader]])

    @property
    def readers(self) -> list[str]:
        return [task.reader for task, _ in self.tasks]

    def report(self, *, only: tuple[int, ...] = (), owner: bool = False) -> HardwareReport:
        self.said: list[CheckRecord] = []
        plan = session.Plan(task=Task(reader="", folder=""), consent=Consent(owner=owner), only=only)
        return session.run_all(plan, self.run, self.said.append, clock=lambda: self.now)


def verdicts(report: HardwareReport) -> dict[int, str]:
    return {record.number: record.verdict for record in report.records}


def test_a_machine_on_which_all_is_right_ends_with_status_0() -> None:
    machine = Machine()
    report = machine.report()
    assert list(report.records) == machine.said
    assert verdicts(report) == {n: "ok" if n < 12 else "skipped" for n in range(1, 15)}
    assert report.exit_status == 0
    assert {number for reader, number in NUMBERS.items() if reader in machine.readers} == set(range(1, 12))


def test_a_difference_ends_with_status_1_and_an_unanswered_check_with_3() -> None:
    machine = Machine()
    machine.answers["nvml:read_described"] = lambda: Reading(problem="no end within 45 s")
    assert machine.report().exit_status == 3
    machine.answers["nvml_session:read_held"] = lambda: Reading(
        facts=facts.held() | {"closed": {"files": ["/dev/nvidia0"], "mappings": [], "references": 3}}
    )
    assert machine.report().exit_status == 1


@pytest.mark.parametrize("survey", [{}, {"machine": {"uid": 0}}])
def test_without_a_gpu_nothing_is_read_and_the_status_is_2(survey: dict[str, Any]) -> None:
    machine = Machine(survey)
    report = machine.report()
    assert machine.readers == [SURVEY]
    assert set(verdicts(report).values()) == {"skipped"}
    assert report.exit_status == 2


def test_no_check_begins_when_the_time_is_over() -> None:
    """Ten minutes for all; the last one gets what is left."""
    machine = Machine()
    machine.takes_s = 130.0
    report = machine.report(owner=True)
    assert [limit_s for task, limit_s in machine.tasks if task.reader != SURVEY] == [60.0, 30.0, 30.0, 20.0]
    assert {record.finding.seen for record in report.records[4:]} == {"no time was left within 540 s"}


def test_with_a_time_the_probes_follow_in_order_and_the_report_is_kept_after_each_check() -> None:
    machine = Machine()
    machine.answers = {probe.reader: lambda: Reading(facts={"skipped": "x"}) for probe in PROBES}
    kept: list[HardwareReport] = []
    plan = session.Plan(task=Task(reader="", folder=""), consent=Consent(xid=True), total_s=20.0)
    report = session.run_all(plan, machine.run, lambda _: None, kept=kept.append, clock=lambda: machine.now)
    assert machine.readers[-4:] == [probe.reader for probe in PROBES[:4]]
    assert [record.number for record in report.records] == list(range(1, 25))
    assert report.records[-1].reading.skipped == "no time was left within 20 s"
    assert [len(one.records) for one in kept] == list(range(25))
    assert ({one.about["complete"] for one in kept}, report.about["complete"]) == ({False}, True)


def test_an_interrupted_run_keeps_what_it_has() -> None:
    machine = Machine()

    def interrupted() -> Reading:
        raise InterruptedReading(Reading(facts={"0": {}}, problem="the command was interrupted"))

    machine.answers["nvml:read_without_mode"] = interrupted
    report = machine.report()
    assert list(verdicts(report).values()) == ["ok", "ok", "cannot tell"] + ["skipped"] * 11
    assert report.about["interrupted"] is True
    assert machine.readers[-1] == "nvml:read_without_mode"


BEFORE = {"mode": False, "instances": []}


@pytest.mark.parametrize("interrupted", [False, True])
def test_a_gpu_that_a_check_left_changed_is_restored_by_another_process(interrupted: bool) -> None:
    """The check's process was killed, at its limit or with the command."""
    machine = Machine()
    half = Reading(facts={"before": BEFORE}, problem="no end within 60 s")

    def killed() -> Reading:
        if interrupted:
            raise InterruptedReading(half)
        return half

    machine.answers["mig:read_first_create"] = killed
    machine.answers[RESTORE] = lambda: Reading(facts={"after": BEFORE})
    report = machine.report(only=(12, 13), owner=True)
    restoring = [task for task, _ in machine.tasks if task.reader == RESTORE]
    assert [task.facts for task in restoring] == [{"before": BEFORE}]
    assert report.records[0].reading.facts == {"before": BEFORE, "after": BEFORE}
    assert verdicts(report)[12] == "cannot tell"
    assert report.about["interrupted"] is interrupted


def test_a_gpu_that_a_check_restored_is_left_alone() -> None:
    machine = Machine()
    assert verdicts(machine.report(only=(12, 13, 14), owner=True)) == {12: "ok", 13: "ok", 14: "ok"}
    assert RESTORE not in machine.readers


def test_facts_of_a_report_are_judged_again() -> None:
    """A later version may know better; a check that it does not know cannot update the CDI file."""
    report = Machine().report(only=(3,))
    record = report.records[0]
    wrong = replace(record, finding=replace(record.finding, status=Status.FAIL))
    unknown = replace(wrong, number=99)
    again = session.judged_again(replace(report, records=(wrong, unknown)))
    assert [one.verdict for one in again.records] == ["ok", "differs"]


def test_each_check_is_one_printable_line() -> None:
    machine = Machine()
    machine.answers["files:read_files"] = lambda: Reading(problem="it said\n\x1b[31mred\nand more")
    (record,) = machine.report(only=(8,)).records
    (line,) = session.lines([record])
    assert line.startswith(" 8  files of the driver")
    assert "cannot tell" in line
    forged = replace(record, finding=replace(record.finding, check="\x1b]0;title\x07\n 1  forged"))
    assert all(each.isprintable() for each in (line, *session.lines([forged])))


def test_a_reading_fills_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file ends one byte after the limit, by which the command knows that something is omitted."""
    traced = "_nvmlGetFunctionPointer"  # which the emitter replaces
    monkeypatch.setattr(pynvml, traced, vars(pynvml)[traced])
    with (tmp_path / "lines").open("w+b") as lines, (tmp_path / "calls").open("w+b") as calls:
        emitter = child.Emitter(lines.fileno(), calls.fileno())
        emitter.write(topic="small", value=1)
        for _ in range(5):
            emitter.write(topic="large", value="x" * (4 << 20))
    first, *_ = (tmp_path / "lines").read_bytes().split(b"\n", 1)
    assert json.loads(first) == {"topic": "small", "value": 1}
    assert (tmp_path / "lines").stat().st_size == (16 << 20) + 1


def test_a_whole_systems_libraries_are_not_searched(tmp_path: Path) -> None:
    """A program with two versions of the C library in turn does not even start."""
    folder, library = DaemonFolder(tmp_path / "daemon"), str(tmp_path / "root/lib/libcuda.so.1")
    root = tmp_path / "root"
    (root / "bin").mkdir(parents=True)
    assert client_environment(folder, str(root), library)["LD_LIBRARY_PATH"] == str(root / "lib")
    (root / "bin/sh").touch(mode=0o755)
    assert client_environment(folder, str(root), library).get("LD_LIBRARY_PATH") != str(root / "lib")
