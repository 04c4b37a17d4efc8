"""Run all checks once: survey, choice of a GPU, each check in its process, judgement, report.

Checks 1 to 11 run on any machine, 12 to 14 only with the consent of the GPU's owner, and the probes of a first session
(15 to 24) only if ``--for`` sets a time for them."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver import __version__
from dra_driver.core.finding import Status
from dra_driver.core.text import one_line
from dra_driver.diagnose.hardware import cuda, files, mig, nvml, nvml_session
from dra_driver.diagnose.hardware.child import Task
from dra_driver.diagnose.hardware.first_gpu import PROBES
from dra_driver.diagnose.hardware.runner import InterruptedReading, Run
from dra_driver.diagnose.hardware.survey import Consent, GpuChoice, choose, skip_reason
from dra_driver.diagnose.hardware.values import CheckRecord, HardwareCheck, HardwareReport, Reading, judged

SURVEY: Final = "survey:survey"
SURVEY_S: Final = 60.0
READ_ONLY: Final = (5, 7, 8)
"""Checks for the doctor: they only read, need neither root nor a free GPU, and finish within seconds."""
READ_ONLY_S: Final = 60.0
"""Limit of all of them, because the doctor's pod has a deadline."""
RESTORE: Final = "mig:restore"
RESTORE_S: Final = 40.0

CHECKS: Final = (
    cuda.contexts,
    nvml_session.held,
    nvml.without_mode,
    nvml.profiles,
    nvml.every_call,
    files.missing_nodes,
    files.kernel,
    files.files,
    nvml_session.copies,
    cuda.daemon,
    nvml_session.first_calls,
    mig.first_create,
    mig.subscriptions,
    mig.fabric,
)


TOTAL_S: Final = 540.0
"""After this, no further check begins; a running check keeps its limit."""
RESTORE_STOP_S: Final = 20.0
"""Time for a check to restore a GPU after SIGTERM: MIG mode and instances take seconds each."""
MIN_S: Final = 5.0
"""A check with less time than this is skipped."""


class Plan(Struct, frozen=True, kw_only=True):
    """The checks to run. ``task`` has the paths; ``only`` the numbers of checks and probes, () for all checks, and for
    all probes if ``total_s`` is set: the time for everything."""

    task: Task
    consent: Consent = field(default_factory=Consent)
    only: tuple[int, ...] = ()
    total_s: float | None = None

    @property
    def checks(self) -> tuple[HardwareCheck, ...]:
        known = CHECKS if self.total_s is None and not self.only else (*CHECKS, *PROBES)
        return tuple(check for check in known if not self.only or check.number in self.only)


def run_all(
    plan: Plan,
    run: Run,
    said: Callable[[CheckRecord], None],
    *,
    surveyed: Callable[[Reading], None] = lambda _: None,
    kept: Callable[[HardwareReport], None] = lambda _: None,
    clock: Callable[[], float] = time.monotonic,
) -> HardwareReport:
    """Run the plan. Calls ``said`` with each record, ``surveyed`` with the survey before, ``kept`` with the report so
    far. KeyboardInterrupt skips the remaining checks. Raises ConfigurationError for a GPU that cannot be chosen."""
    begin, records, stopped, complete = clock(), list[CheckRecord](), False, False
    total_s = TOTAL_S if plan.total_s is None else plan.total_s
    survey = Reading(skipped="interrupted")
    choice = GpuChoice()

    def report() -> HardwareReport:
        about = _about(plan, choice, clock() - begin, stopped) | {"complete": complete}
        return HardwareReport(about=about, survey=survey, records=tuple(records))

    try:
        survey = run(replace(plan.task, reader=SURVEY), SURVEY_S)
        choice = choose(survey.facts, plan.consent)
        surveyed(survey)
        kept(report())
    except KeyboardInterrupt:
        stopped = True
    for check in plan.checks:
        if stopped:
            reading = Reading(skipped="the command was interrupted")
        else:
            reason = skip_reason(check, survey.facts, plan.consent, choice)
            left_s = total_s - (clock() - begin)
            if not reason and left_s < MIN_S:
                reason = f"no time was left within {total_s:.0f} s"
            try:
                stop_s = RESTORE_STOP_S if check.changes_gpu else plan.task.stop_s
                task = replace(plan.task, reader=check.reader, gpu=choice.gpu, stop_s=stop_s)
                reading = Reading(skipped=reason) if reason else _read(check, task, run, min(check.limit_s, left_s))
            except InterruptedReading as error:
                stopped, reading = True, error.reading
        records.append(judged(check, reading, survey.facts))
        said(records[-1])
        kept(report())
    complete = not stopped
    return report()


def judged_again(report: HardwareReport) -> HardwareReport:
    """The report with the findings of this version: the facts of a report can be judged anywhere."""
    by_number = {check.number: check for check in (*CHECKS, *PROBES)}

    def again(record: CheckRecord) -> CheckRecord:
        check = by_number.get(record.number)
        return judged(check, record.reading, report.survey.facts) if check else record

    return replace(report, records=tuple(again(record) for record in report.records))


def lines(records: Sequence[CheckRecord]) -> Iterator[str]:
    for record in records:
        finding = record.finding
        expected = f". Expected: {finding.expected}" if finding.status is Status.FAIL else ""
        meaning = f". It means: {finding.meaning}" if finding.meaning else ""
        decides = f". It decides {record.decides}" if record.decides else ""
        text = one_line(f"{finding.seen}{expected}{meaning}{decides}")
        yield f"{record.number:2}  {one_line(finding.check):<36} {record.verdict:<11} {text}"


def _read(check: HardwareCheck, task: Task, run: Run, limit_s: float) -> Reading:
    """The reading. A separate process restores a GPU that the check's process did not restore."""
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


def _about(plan: Plan, choice: GpuChoice, seconds: float, stopped: bool) -> dict[str, object]:
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
    """The records of the checks for the doctor. The caller has checked that NVML answers."""
    end = time.monotonic() + READ_ONLY_S
    survey = run(replace(task, reader=SURVEY), READ_ONLY_S)
    records = []
    for check in (check for check in CHECKS if check.number in READ_ONLY):
        reading = run(replace(task, reader=check.reader), max(min(check.limit_s, end - time.monotonic()), 1.0))
        records.append(judged(check, reading, survey.facts))
    return tuple(records)
