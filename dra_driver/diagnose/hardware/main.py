"""``dra-driver hardware-check``: compare this machine's GPUs with the driver's assumptions, and write a report."""

import argparse
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.diagnose.node_settings import add_options, host_names, load_places, place_flags, task_of

if TYPE_CHECKING:
    from dra_driver.diagnose.hardware.child import Task
    from dra_driver.diagnose.hardware.values import HardwareReport, Reading

REPORT_FILE: Final = "hardware-check-report.json"
MIN_TOTAL_S, MAX_TOTAL_S = 10, 4 * 3600
ISSUES: Final = "see docs/hardware-check.md"
DESCRIPTION: Final = """\
Compare the GPUs and the NVIDIA driver of this machine with the assumptions of dra-driver. Takes about one minute, at
most ten. With --for it also runs ten probes for a first session on a GPU, in order of worth. It only reads unless a
flag allows more. It makes CUDA contexts and an MPS daemon only on a GPU without processes and claims. Each check
prints one line: number, name, verdict, observation and meaning. The report is written after each check.

  ok            matches the assumption of dra-driver
  differs       does not match the assumption of dra-driver: please report it
  cannot tell   the check did not get an answer
  skipped       the check did not run, with the reason

Exit status: 0 all ok or skipped, 1 a check differs, 2 no usable NVIDIA GPU (or wrong usage), 3 a check cannot tell.
The processes are named dra-hw-check. While they run they are another client of NVML, so the node process may have to
retry changes of MIG.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_choices(parser)
    parser.add_argument(
        "--output", metavar="FILE", help=f"file of the report, mode 0600 (default: {REPORT_FILE} in this directory)"
    )
    parser.add_argument(
        "--print-report", action="store_true", help="print the report packed into lines instead of writing a file"
    )
    parser.add_argument("--replay", metavar="FILE", help="judge the facts of a report again, without hardware")
    add_options(parser.add_argument_group("places, as for kubelet-plugin"), place_flags())


def add_choices(parser: "argparse._ActionsContainer") -> None:
    """Add the flags that `kubectl dra hardware-check` passes to the pod."""
    parser.add_argument(
        "--i-own-this-gpu",
        action="store_true",
        help="also run checks 12 to 14, which change MIG mode and instances and restore them; also allow a busy GPU",
    )
    parser.add_argument("--gpu", metavar="GPU", default="", help="NVML index or UUID of the GPU that checks may use")
    parser.add_argument("--only", metavar="NUMBERS", default="", help="only these checks, such as 3,4,5")
    parser.add_argument(
        "--keep-identities",
        action="store_true",
        help="do not hash UUIDs, serial numbers and host names in the report",
    )
    parser.add_argument(
        "--for",
        dest="total",
        metavar="TIME",
        default="",
        help="also run probes 15 to 24, in order of worth, within this time, such as 45m",
    )
    parser.add_argument(
        "--allow-xid",
        action="store_true",
        help="also run probe 21: an illegal access in a separate CUDA process, which leaves XID 31 in the kernel log",
    )


def passed_on(args: argparse.Namespace) -> list[str]:
    """The flags of `add_choices` as arguments."""
    return [
        *(["--i-own-this-gpu"] if args.i_own_this_gpu else []),
        *(["--gpu", args.gpu] if args.gpu else []),
        *(["--only", args.only] if args.only else []),
        *(["--keep-identities"] if args.keep_identities else []),
        *(["--for", args.total] if args.total else []),
        *(["--allow-xid"] if args.allow_xid else []),
    ]


def total_s(text: str) -> float | None:
    """The seconds of ``--for``; None without it. Raises ConfigurationError."""
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,5})([smh])", text)
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
    if not MIN_TOTAL_S <= seconds <= MAX_TOTAL_S:
        raise ConfigurationError(f"--for {text[:80]}: expected a time from 10s to 4h, such as 45m", reason="InvalidFor")
    return float(seconds)


def numbers(text: str) -> tuple[int, ...]:
    """The checks of ``--only``. Raises ConfigurationError."""
    from dra_driver.diagnose.hardware.first_gpu import PROBES
    from dra_driver.diagnose.hardware.session import CHECKS

    known = [check.number for check in (*CHECKS, *PROBES)]
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if any(not part.isdecimal() or int(part) not in known for part in parts):
        raise ConfigurationError(
            f"--only {text[:80]}: expected numbers from 1 to {known[-1]}, separated by commas", reason="InvalidOnly"
        )
    return tuple(int(part) for part in parts)


def run(args: argparse.Namespace) -> int:
    """Run the checks, or judge a report again. Raises ConfigurationError and StorageError."""
    if args.replay:
        return _replay(Path(args.replay))
    settings = load_places({flag.field: getattr(args, flag.field) for flag in place_flags()}, os.environ)
    from dra_driver.core.command_line.main import interrupt_once
    from dra_driver.core.text import one_line
    from dra_driver.diagnose.hardware import child, runner, session, storage
    from dra_driver.diagnose.hardware.storage import Hasher
    from dra_driver.diagnose.hardware.survey import Consent
    from dra_driver.diagnose.hardware.values import CheckRecord, HardwareReport, Reading

    task, no_driver = task_of(settings)
    consent = Consent(owner=args.i_own_this_gpu, gpu=args.gpu, xid=args.allow_xid)
    plan = session.Plan(task=task, consent=consent, only=numbers(args.only), total_s=total_s(args.total))
    hasher = None if args.keep_identities else Hasher(host_names(os.environ))

    def shown(text: str) -> str:
        return text if hasher is None else hasher.text(text)

    def surveyed(survey: Reading) -> None:
        reason = survey.problem or survey.skipped
        text = f"no usable NVIDIA GPU: {reason}" if not survey.facts.get("gpus") else _found(survey)
        print(shown(one_line(text)), flush=True)

    def said(record: CheckRecord) -> None:
        print(*map(shown, session.lines([record])), flush=True)

    path = Path(args.output or REPORT_FILE)

    def hashed(report: HardwareReport) -> HardwareReport:
        if hasher is None:
            return report
        return HardwareReport.from_wire(hasher.value(report.to_wire()) | {"hashed": True})

    def kept(report: HardwareReport) -> None:
        """Write the report so far: the command may be killed. The last write reports errors."""
        if args.output or not args.print_report:
            with suppress(StorageError):
                storage.write(path, hashed(report))

    child.name_process()
    interrupt_once()  # end the checks and restore the GPU

    def without_driver(_task: "Task", _limit_s: float) -> Reading:
        return Reading(problem=no_driver)  # needs no process

    reader = without_driver if no_driver else runner.run
    report = hashed(session.run_all(plan, reader, said, surveyed=surveyed, kept=kept))
    if args.print_report:
        print(storage.pack(report), flush=True)
    if args.output or not args.print_report:
        storage.write(path, report)
        print(f"report: {path}")
    advise(report)
    return 130 if report.about["interrupted"] else report.exit_status


def _replay(path: Path) -> int:
    from dra_driver.core.text import one_line
    from dra_driver.diagnose.hardware import session, storage

    report = session.judged_again(storage.load(path))
    about = report.about
    print(one_line(f"report of {about.get('at')}, dra-driver {about.get('version')}, kernel {about.get('kernel')}"))
    for line in session.lines(report.records):
        print(line)
    advise(report)
    return report.exit_status


def _found(survey: "Reading") -> str:
    gpus = survey.facts["gpus"]
    names = [gpu.get("answers", {}).get("nvmlDeviceGetName", {}).get("value") or "GPU that fails" for gpu in gpus]
    listed = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    version = survey.facts["system"]["nvmlSystemGetDriverVersion"].get("value")
    return f"{listed}; driver {version}; kernel {survey.facts['machine']['kernel']}"


def advise(report: "HardwareReport") -> None:
    """Print how to report a difference."""
    wrong = [str(record.number) for record in report.records if record.verdict == "differs"]
    if wrong:
        checks = f"Check {wrong[0]} differs" if len(wrong) == 1 else f"Checks {', '.join(wrong)} differ"
        print(
            f"{checks} from dra-driver's assumptions. Please report it with the JSON file; {ISSUES}.", file=sys.stderr
        )
