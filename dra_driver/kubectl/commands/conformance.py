"""``dra-driver conformance``: test a DRA driver on its sockets, as a kubelet would use it."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.core.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_driver.conformance.bench import Bench, Control

DESCRIPTION: Final = """\
Test a DRA driver through the kubelet interface: register it, prepare and unprepare claims, and check its slices. With
--profile full, also restart it, delete its slices and call it in parallel. The suite acts as kubelet and scheduler; no
pod runs.

  dra-driver conformance --registrar-dir DIR --kubeconfig FILE              a running driver
  dra-driver conformance --registrar-dir DIR --embedded-api-server FILE -- my-driver --kubeconfig FILE ...
                                                                            a driver that the suite starts and restarts
  dra-driver conformance --simulate 2xh100-sxm5-80gb                        this project's driver

Exit status: 0 no check failed, 1 a check failed, 2 wrong usage or a directory that a kubelet uses, 3 some checks could
not run.
"""
SIMULATED_NODE: Final = "conformance-node"
PROGRAM: Final = (sys.executable, "-m", "dra_driver.core.command_line.main")
DEFAULT_CDI_DIRS: Final = ("/etc/cdi", "/var/run/cdi")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    where = parser.add_argument_group("the driver")
    where.add_argument("--registrar-dir", type=Path, metavar="DIR", help="directory of its registration socket")
    where.add_argument("--driver", default="", metavar="NAME", help="its name (default: the only one in the directory)")
    where.add_argument("--node-name", default="", metavar="NAME", help="its node (default: that of its slices)")
    where.add_argument(
        "--cdi-dir",
        type=Path,
        action="append",
        metavar="DIR",
        help=f"CDI directory; repeatable, the last has precedence (default: {' '.join(DEFAULT_CDI_DIRS)})",
    )
    where.add_argument("--no-cdi", action="store_true", help="it injects devices without CDI, for example by NRI")
    where.add_argument("--block-devices", action="store_true", help="its devices are block devices")
    where.add_argument(
        "--host-root",
        type=Path,
        action="append",
        metavar="DIR",
        help="root of the host paths in CDI files; repeatable (default: /)",
    )
    where.add_argument("--claim-template", type=Path, metavar="FILE", help="claim for most checks")
    where.add_argument("--restart-command", metavar="COMMAND", help="kills the driver with SIGKILL and restarts it")
    where.add_argument("--break-command", metavar="COMMAND", help="makes {device} of {pool} unhealthy")
    where.add_argument("--repair-command", metavar="COMMAND", help="makes {device} of {pool} healthy again")
    where.add_argument("--simulate", metavar="SPEC", help="test this project's driver with simulated GPUs")
    where.add_argument(
        "driver_command", nargs="*", metavar="COMMAND", help="runs the driver in the foreground; after --"
    )
    server = parser.add_argument_group("the API server")
    server.add_argument("--kubeconfig", metavar="FILE", help="how to reach it (default: as kubectl does)")
    server.add_argument(
        "--embedded-api-server",
        type=Path,
        metavar="FILE",
        help="run one in this process with a Node object; write its kubeconfig to FILE",
    )
    run = parser.add_argument_group("the run")
    run.add_argument("--profile", choices=("basic", "full"), default="basic", help="default: basic")
    run.add_argument("--only", default="", metavar="IDS", help="checks by id, comma-separated; * is allowed")
    run.add_argument("--strict", action="store_true", help="exit with 1 also for failed checks of level 'should'")
    run.add_argument("--list", action="store_true", help="print the checks and exit")
    run.add_argument("--timeout", type=float, default=0.0, metavar="SECONDS", help="time limit for each check")
    run.add_argument("-o", "--output", choices=("table", "json", "junit"), default="table", help="default: table")
    run.add_argument("--output-file", type=Path, metavar="FILE", help="write JSON or JUnit XML to this file")
    run.add_argument(
        "--i-own-this-node", action="store_true", help="run in a directory that a kubelet uses; disrupts its pods"
    )


def run(args: argparse.Namespace) -> int:
    from dra_driver.conformance import report, suite
    from dra_driver.core.finding import Status, exit_status
    from dra_driver.core.telemetry import logs

    logs.configure("text", "error")
    checks = suite.select(args.profile, [part.strip() for part in args.only.split(",") if part.strip()])
    if args.list:
        print(report.listing(checks))
        return 0
    _check_usage(args)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    shows = args.output == "table" or args.output_file is not None
    with _bench(args) as bench:
        if shows:
            print(f"driver {bench.subject.driver} on node {bench.cluster.node}, profile {args.profile}\n", flush=True)
        seen = (lambda outcome: print(report.line(outcome), flush=True)) if shows else (lambda _: None)
        outcomes, driver = suite.run(bench, checks, seen), bench.subject.driver
    if shows:
        print(f"\n{report.summary(outcomes)}")
    if args.output != "table":
        is_junit = args.output == "junit"
        text = report.as_junit(driver, outcomes) if is_junit else report.as_json(driver, args.profile, outcomes)
        _write(args.output_file, text)
    statuses = {outcome.finding.status for outcome in outcomes}
    return 1 if args.strict and Status.WARN in statuses else exit_status(statuses, unanswered=3)


def _check_usage(args: argparse.Namespace) -> None:
    own = args.driver_command or args.restart_command or args.registrar_dir or args.break_command
    for is_wrong, sentence in (
        (
            args.simulate and own,
            "--simulate starts the driver: omit --registrar-dir and the commands",
        ),
        (
            not args.simulate and args.registrar_dir is None,
            "--registrar-dir is missing: set it to the directory of the driver's registration socket",
        ),
        (
            args.driver_command and args.restart_command,
            "the suite restarts the command after --: omit --restart-command",
        ),
        (
            bool(args.break_command) != bool(args.repair_command),
            "--break-command and --repair-command need each other: give both or none",
        ),
        (args.embedded_api_server and args.kubeconfig, "--embedded-api-server and --kubeconfig exclude each other"),
        (args.output_file and args.output == "table", "--output-file needs --output json or junit"),
        (args.timeout < 0, f"--timeout {args.timeout:g}: expected seconds, 0 for the default"),
    ):
        if is_wrong:
            raise ConfigurationError(sentence)


@contextmanager
def _bench(args: argparse.Namespace) -> "Iterator[Bench]":
    from dra_driver.conformance.cdi_edits import Host
    from dra_driver.conformance.cluster import read_template
    from dra_driver.conformance.control import (
        ChildControl,
        CommandControl,
        CommandFaults,
        own_driver,
        own_faults,
        simulated_root,
    )
    from dra_driver.conformance.suite import SuiteTarget, check_folder, open_bench
    from dra_driver.conformance.values import TimeLimits
    from dra_driver.kube.connection import Connection
    from dra_driver.kube.rest import RestClient

    with ExitStack() as stack:
        # The path of a unix socket has at most 107 bytes, so /tmp replaces a long TMPDIR.
        short = None if len(tempfile.gettempdir()) <= 32 else "/tmp"  # noqa: S108 - the folder inside is private
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dra-", dir=short)))
        registrar_dir = args.registrar_dir or folder / "reg"
        if not args.simulate:
            check_folder(registrar_dir, owned=args.i_own_this_node)
        template = read_template(args.claim_template) if args.claim_template else None
        limits = TimeLimits()
        if args.timeout:
            limits = TimeLimits(check_s=args.timeout, publish_s=args.timeout, restart_s=args.timeout)
        kubeconfig, node = args.kubeconfig, args.node_name
        if args.embedded_api_server or args.simulate:
            kubeconfig = str(args.embedded_api_server or folder / "kubeconfig")
            node = node or SIMULATED_NODE
            stack.enter_context(_api_server(Path(kubeconfig), node))
        connection = Connection.load(kubeconfig)
        stack.callback(connection.close)
        command = args.driver_command
        roots = args.host_root or [Path("/")]
        faults = CommandFaults(args.break_command, args.repair_command) if args.break_command else None
        if args.simulate:
            faults = own_faults(PROGRAM, kubeconfig=str(kubeconfig), node=node)
            roots = [*roots, simulated_root(folder)]
            command = own_driver(PROGRAM, args.simulate, folder, kubeconfig=str(kubeconfig), node=node)
        control: Control | None = CommandControl(args.restart_command) if args.restart_command else None
        if command:
            environ = os.environ | ({"KUBECONFIG": kubeconfig} if kubeconfig else {})
            control = child = ChildControl(command, environ, folder / "log")
            child.start()
            stack.callback(child.stop)
        cdi_dirs = args.cdi_dir or ([folder / "cdi"] if args.simulate else [Path(one) for one in DEFAULT_CDI_DIRS])
        target = SuiteTarget(
            registrar_dir=registrar_dir,
            cdi_dirs=tuple(cdi_dirs),
            driver=args.driver,
            node=node,
            control=control,
            faults=faults,
            host=Host(roots=tuple(roots)),
            uses_cdi=not args.no_cdi,
            has_disks=args.block_devices,
            template=template,
            limits=limits,
        )
        yield stack.enter_context(open_bench(target, RestClient(connection)))


@contextmanager
def _api_server(kubeconfig: Path, node: str) -> Iterator[None]:
    """Run the embedded API server with a Node; remove its kubeconfig at the end."""
    from dra_driver.sim.apiserver.kinds import NODES
    from dra_driver.sim.apiserver.server import ApiServer

    server = ApiServer()
    server.start()
    try:
        server.store.create(NODES, {"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}})
        server.kubeconfig(kubeconfig)
        yield
    finally:
        server.stop()
        kubeconfig.unlink(missing_ok=True)


def _write(path: Path | None, text: str) -> None:
    if path is None:
        print(text, end="")
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise ConfigurationError(f"--output-file {path} cannot be written: {error}") from error
