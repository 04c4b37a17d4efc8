"""``kubectl dra support-bundle``: write the state, logs and the doctor's report to one file, without secrets.

Exit status: 0 written, also with unanswered requests; 1 not written: the API server does not answer.
"""

import argparse
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DraError
from dra_driver.kubectl.commands.doctor import MOST_TIMEOUT_S, add_driver_namespace, facts_of
from dra_driver.kubectl.commands.listing import duration
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of

DESCRIPTION: Final = """\
Write the cluster's state, GpuNodes, GpuPolicies, events, the driver's pods and logs, and the doctor's report to one
file. Omits environment, arguments, annotations and secrets of pods, opaque parameters of other drivers, and tokens in
logs. Check it before you send it: names and labels of pods, nodes and claims, and this driver's parameters are kept.

  kubectl dra support-bundle
  kubectl dra support-bundle case-17.tar.gz --no-logs
  kubectl dra doctor --snapshot case-17.tar.gz
  kubectl dra explain pod/train --cluster-state case-17.tar.gz
"""
_LOG_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="output file (default: dra-support-TIME.tar.gz)")
    parser.add_argument("-n", "--namespace", metavar="NAME", help="namespace to read, for users who cannot read all")
    parser.add_argument("--no-logs", action="store_true", help="omit the logs of the driver's pods")
    parser.add_argument(
        "--timeout",
        type=partial(duration, most_s=MOST_TIMEOUT_S),
        default="60s",
        metavar="DURATION",
        help="limit for all API requests except logs (default: 60s)",
    )
    add_driver_namespace(parser)
    add_kubeconfig(parser)
    parser.set_defaults(snapshot=None)


def run(args: argparse.Namespace) -> int:
    from dra_driver import __version__
    from dra_driver.core.document import to_wire
    from dra_driver.diagnose.doctor import bundle, facts
    from dra_driver.diagnose.doctor.cluster import DoctorScope, diagnose
    from dra_driver.diagnose.doctor.report import document_of, render

    found, took_s = facts_of(args)
    if not found.knows(facts.VERSION):
        raise DraError(found.unanswered[facts.VERSION].seen)
    logs, left = ({}, []) if args.no_logs else bundle.read_logs(client(kubeconfig_of(args)), found, within_s=_LOG_S)
    report = diagnose(found, DoctorScope(), clock=time.monotonic, took_s=took_s)
    now = datetime.now(UTC)
    path = Path(args.file or f"dra-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    written = bundle.SupportBundle(
        facts=found,
        created_at=f"{now:%Y-%m-%dT%H:%M:%SZ}",
        program_version=__version__,
        report=to_wire(document_of(report)),
        report_text=render(report, verbose=True),
        logs=logs,
    )
    size = bundle.write(written, path)
    for why in dict.fromkeys([*(each.seen for each in found.unanswered.values()), *left]):
        print(f"skipped: {why}", file=sys.stderr)
    print(
        f"{path}: {size >> 10} KiB, {len(logs)} logs; the doctor's report in it ends with status {report.exit_status}"
    )
    return 0
