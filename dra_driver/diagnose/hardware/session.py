"""One run of all checks: survey, choice of a GPU, each check in its process, judgement, report.

Checks 1 to 11 run on any machine, 12 to 14 only with the consent of the GPU's owner."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver import __version__
from dra_driver.core.finding import Status, one_line
from dra_driver.diagnose.hardware import cuda, files, mig, nvml, nvml_session
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.runner import InterruptedReading, Run
from dra_driver.diagnose.hardware.survey import Consent, GpuChoice, choose, skip_reason
from dra_driver.diagnose.hardware.values import CheckRecord, HardwareCheck, HardwareReport, Need, Reading, judge

SURVEY: Final = "survey:survey"
SURVEY_S: Final = 60.0
READ_ONLY: Final = (5, 7, 8)
"""Checks for the doctor: they only read, need neither root nor a free GPU, and end within seconds."""
RESTORE: Final = "mig:restore"
RESTORE_S: Final = 40.0
_ON_FREE_GPU: Final[frozenset[Need]] = frozenset({"root", "free GPU"})
_BY_OWNER: Final[frozenset[Need]] = frozenset({"root", "owner"})

CHECKS: Final = (
    HardwareCheck(
        number=1,
        name="CUDA in a container's view",
        expected="CUDA works with the device nodes and libraries of a claim, and not without UVM",
        reader="cuda:read_contexts",
        judge=cuda.contexts,
        limit_s=60.0,
        needs=_ON_FREE_GPU,
    ),
    HardwareCheck(
        number=2,
        name="what a session holds",
        expected="closing NVML releases all device files and the kernel module",
        reader="nvml_session:read_held",
        judge=nvml_session.held,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=3,
        name="codes while MIG mode is off",
        expected="functions for MIG answer Not Supported, Not Found or nothing",
        reader="nvml:read_without_mode",
        judge=nvml.without_mode,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=4,
        name="MIG profiles and fields",
        expected="profiles, names and placements are those of the catalog, by version 1 or 2",
        reader="nvml:read_profiles",
        judge=nvml.profiles,
        limit_s=30.0,
    ),
    HardwareCheck(
        number=5,
        name="every property of a GPU",
        expected="a property is read, or is missing by one of four codes",
        reader="nvml:read_described",
        judge=nvml.every_call,
        limit_s=45.0,
    ),
    HardwareCheck(
        number=6,
        name="missing device nodes",
        expected="NVML as root makes missing nodes with the kernel's numbers, or none",
        reader="files:read_missing_nodes",
        judge=files.missing_nodes,
        limit_s=30.0,
        needs=frozenset({"root"}),
    ),
    HardwareCheck(
        number=7,
        name="device numbers",
        expected="numbers read from /proc are those of the nodes in /dev",
        reader="files:read_kernel",
        judge=files.kernel,
        limit_s=15.0,
    ),
    HardwareCheck(
        number=8,
        name="files of the driver",
        expected="version and files are those of NVML, nvidia-ctk and the linker's cache",
        reader="files:read_files",
        judge=files.files,
        limit_s=60.0,
    ),
    HardwareCheck(
        number=9,
        name="libraries in turn",
        expected="after a session's end another file of NVML is used, also from several threads",
        reader="nvml_session:read_copies",
        judge=nvml_session.copies,
        limit_s=75.0,
    ),
    HardwareCheck(
        number=10,
        name="an MPS daemon",
        expected="the daemon takes this driver's commands, and a client keeps its limit",
        reader="cuda:read_daemon",
        judge=cuda.daemon,
        limit_s=75.0,
        needs=_ON_FREE_GPU,
    ),
    HardwareCheck(
        number=11,
        name="nvidia-smi and first calls",
        expected="nvidia-smi runs in the environment that it gets, and first calls end within a minute",
        reader="nvml_session:read_first_calls",
        judge=nvml_session.first_calls,
        limit_s=75.0,
    ),
    HardwareCheck(
        number=12,
        name="first MIG instance beside a client",
        expected="creating works, or is refused with IN_USE while another client has the GPU",
        reader="mig:read_first_create",
        judge=mig.first_create,
        limit_s=60.0,
        needs=_BY_OWNER,
    ),
    HardwareCheck(
        number=13,
        name="instance that another process listed",
        expected="destroying works, at the latest after the other process has ended",
        reader="mig:read_subscriptions",
        judge=mig.subscriptions,
        limit_s=60.0,
        needs=_BY_OWNER,
    ),
    HardwareCheck(
        number=14,
        name="fabric after MIG",
        expected="the fabric is complete again within 30 s after the last instance",
        reader="mig:read_fabric",
        judge=mig.fabric,
        limit_s=75.0,
        needs=_BY_OWNER,
    ),
)


TOTAL_S: Final = 540.0
"""After this, no further check begins; a check that runs then has its own limit."""
RESTORE_STOP_S: Final = 20.0
"""How long a check may take to restore a GPU after SIGTERM: MIG mode and instances take seconds each."""
MIN_S: Final = 5.0
"""A check with less time than this is left out."""


class Plan(Struct, frozen=True, kw_only=True):
    """What to run. ``task`` has the paths; ``only`` the numbers of checks, () for all."""

    task: Task
    consent: Consent = field(default_factory=Consent)
    only: tuple[int, ...] = ()

    @property
    def checks(self) -> tuple[HardwareCheck, ...]:
        """The checks in order."""
        return tuple(check for check in CHECKS if not self.only or check.number in self.only)


def run_all(
    plan: Plan,
    run: Run,
    said: Callable[[CheckRecord], None],
    *,
    surveyed: Callable[[Reading], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> HardwareReport:
    """Run the plan. ``said`` gets each record as soon as there is one, ``surveyed`` the survey before.

    KeyboardInterrupt ends it: the rest is skipped, and the report has what was read so far. Raises ConfigurationError
    for a GPU that cannot be chosen.
    """
    begin, records, stopped = clock(), list[CheckRecord](), False
    survey = Reading(skipped="interrupted")
    choice = GpuChoice()
    try:
        survey = run(replace(plan.task, reader=SURVEY), SURVEY_S)
        choice = choose(survey.facts, plan.consent)
        surveyed(survey)
    except KeyboardInterrupt:
        stopped = True
    for check in plan.checks:
        if stopped:
            reading = Reading(skipped="the command was interrupted")
        else:
            reason = skip_reason(check, survey.facts, plan.consent, choice)
            left_s = TOTAL_S - (clock() - begin)
            if not reason and left_s < MIN_S:
                reason = f"no time was left within {TOTAL_S:.0f} s"
            try:
                stop_s = RESTORE_STOP_S if check.changes_gpu else plan.task.stop_s
                task = replace(plan.task, reader=check.reader, gpu=choice.gpu, stop_s=stop_s)
                reading = Reading(skipped=reason) if reason else _read(check, task, run, min(check.limit_s, left_s))
            except InterruptedReading as error:
                stopped, reading = True, error.reading
        finding = judge(check, reading, survey.facts)
        records.append(CheckRecord(number=check.number, reading=reading, finding=finding))
        said(records[-1])
    return HardwareReport(about=_about(plan, choice, clock() - begin, stopped), survey=survey, records=tuple(records))


def judged_again(report: HardwareReport) -> HardwareReport:
    """The report with the findings of this version: facts of a report can be judged anywhere."""
    by_number = {check.number: check for check in CHECKS}

    def again(record: CheckRecord) -> CheckRecord:
        check = by_number.get(record.number)
        return replace(record, finding=judge(check, record.reading, report.survey.facts)) if check else record

    return replace(report, records=tuple(again(record) for record in report.records))


def lines(records: Sequence[CheckRecord]) -> Iterator[str]:
    """One line per check."""
    for record in records:
        finding = record.finding
        expected = f". Expected: {finding.expected}" if finding.status is Status.FAIL else ""
        meaning = f". It means: {finding.meaning}" if finding.meaning else ""
        text = one_line(f"{finding.seen}{expected}{meaning}")
        yield f"{record.number:2}  {one_line(finding.check):<36} {record.verdict:<11} {text}"


def _read(check: HardwareCheck, task: Task, run: Run, limit_s: float) -> Reading:
    """The reading. A GPU that the check's own process did not restore is restored by another one."""
    interrupted = False
    try:
        reading = run(task, limit_s)
    except InterruptedReading as error:
        interrupted, reading = True, error.reading
    if check.changes_gpu and "before" in reading.facts and "after" not in reading.facts:
        again = run(replace(task, reader=RESTORE, facts={"before": reading.facts["before"]}), RESTORE_S)
        reading = replace(reading, facts={**reading.facts, **again.facts})
    if interrupted:
        raise InterruptedReading(reading)
    return reading


def _about(plan: Plan, choice: GpuChoice, seconds: float, stopped: bool) -> dict[str, Any]:
    return {
        "version": __version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "kernel": os.uname().release,
        "machine": os.uname().machine,
        "owner": plan.consent.owner,
        "gpu": choice.gpu.index if choice.gpu else None,
        "only": list(plan.only),
        "interrupted": stopped,
    }


def read_only(task: Task, run: Run) -> tuple[CheckRecord, ...]:
    """The records of the checks for the doctor. The caller knows that NVML answers."""
    survey = run(replace(task, reader=SURVEY), SURVEY_S)
    records = []
    for check in (check for check in CHECKS if check.number in READ_ONLY):
        reading = run(replace(task, reader=check.reader), check.limit_s)
        finding = judge(check, reading, survey.facts)
        records.append(CheckRecord(number=check.number, reading=reading, finding=finding))
    return tuple(records)
