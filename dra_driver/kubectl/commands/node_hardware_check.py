"""``kubectl dra hardware-check NODE``: run the hardware check as a pod on a node and fetch its report."""

import argparse
from pathlib import Path
from typing import Final

from dra_driver.core.command_line.main import interrupt_once
from dra_driver.core.text import printable
from dra_driver.diagnose.hardware.main import add_choices, advise, numbers, passed_on, total_s
from dra_driver.kubectl.commands.doctor import add_pod_flags
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of

DESCRIPTION: Final = """\
Run `dra-driver hardware-check` in a pod like the node process' on a node, print its output, write its report to a local
file and delete the pod.

Needs permission to get daemonsets.apps, and to create, get and delete pods and get pods/log in the driver's namespace.
Exit status as `dra-driver hardware-check`; 1 also if the pod returns no report.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="name of the node")
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", default="dra-driver", help="of the driver (default: dra-driver)"
    )
    parser.add_argument("--output", metavar="FILE", help="report (default: hardware-check-NODE.json)")
    add_pod_flags(parser)
    add_kubeconfig(parser)
    add_choices(parser)


def run(args: argparse.Namespace) -> int:
    from dra_driver.diagnose.hardware import storage
    from dra_driver.diagnose.hardware.remote import run_on_node
    from dra_driver.kube.pod_run import PodPlace

    numbers(args.only)  # validated before the pod runs
    limit_s = total_s(args.total)
    place = PodPlace(
        command="kubectl dra hardware-check",
        node=args.node,
        namespace=args.namespace,
        daemon_set=args.daemonset,
        keep=args.keep,
    )
    interrupt_once()  # so that the pod is deleted
    report = run_on_node(
        client(kubeconfig_of(args)),
        place,
        passed_on(args),
        lambda line: print(printable(line), flush=True),
        total_s=limit_s,
    )
    path = Path(args.output or f"hardware-check-{args.node}.json")
    storage.write(path, report)
    print(f"report: {path}")
    advise(report)
    return report.exit_status
