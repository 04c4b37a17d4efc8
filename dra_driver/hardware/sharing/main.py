"""``dra-driver mps-host``: run the node's MPS daemons as children of this process. Usually idle, it imports nothing of
the node process to stay small."""

import argparse
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.config.options import add_flags, flags_of, format_of_logs, level_of_logs, load, one_of, path, setting
from dra_driver.core.telemetry.logs import LogFormat, LogLevel

if TYPE_CHECKING:
    from dra_driver.hardware.sharing.memory import DaemonMemory

DESCRIPTION = """\
Run the MPS daemons for the claims on this node.

One process per node. The node process writes files that describe the daemons; this process starts and restarts them
and reports when they are ready. It does not depend on the node process. Ending it ends the daemons and the work of
their clients. Each flag can also be set by the environment variable in brackets; the flag takes precedence. Runs until
SIGTERM.
"""

NODE, MPS, TELEMETRY = "node", "MPS", "telemetry"
LEAST_SIZE, MOST_SIZE = 16 * 2**20, 2**40
MEMORY_PART: Final = 16
"""Part of the machine's memory that one daemon's tmpfs may hold by default: eight GPUs together a half, which is what
/dev/shm may hold. Pages count in the memory limit of the container that writes them."""
FOLDER: Final = "mps"
"""Folder below the driver's folder in the kubelet's plugin directory."""


def _name(text: str) -> str:
    if not 0 < len(text) <= 63 or "/" in text or text.startswith("."):
        raise ValueError("expected the driver's name, such as gpu.nvidia.com")
    return text


def _size(text: str) -> int:
    """Bytes, parsed without the module of quantities, which would only cost memory here."""
    number, unit = text[:-2], text[-2:]
    factor = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}.get(unit, 0)
    amount = int(number) * factor if number.isascii() and number.isdigit() and len(number) <= 7 else 0
    if not LEAST_SIZE <= amount <= MOST_SIZE:
        raise ValueError("expected 16Mi to 1Ti in whole Mi, Gi or Ti, such as 4Gi")
    return amount


def _files(text: str) -> int:
    count = int(text) if text.isascii() and text.isdigit() and len(text) <= 7 else 0
    if not 256 <= count <= 2**20:
        raise ValueError("expected 256 to 1048576")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsHostSettings:
    driver_name: str = setting(
        NODE, "NAME", "name of this driver, the same as for kubelet-plugin", "gpu.nvidia.com", parse=_name
    )
    kubelet_plugins_dir: str = path(
        NODE, "DIR", "as for kubelet-plugin; the same path on the host", "/var/lib/kubelet/plugins"
    )
    driver_root: str | None = path(
        NODE,
        "DIR",
        "root of the NVIDIA driver, as this process sees it; default: search for it below the host root",
        None,
    )
    host_root: str = path(NODE, "DIR", "the host's / as this process sees it, searched for the driver", "/")
    shm_dir: str = path(
        MPS,
        "DIR",
        "with --namespaces none, a tmpfs in which the folder NAME-mps for the shared memory of all daemons is"
        " created; otherwise, where an earlier version did so. The same path here and on the host",
        "/dev/shm",  # noqa: S108 - the host's folder
        env="MPS_SHM_DIR",
    )
    run_dir: str = path(
        MPS,
        "DIR",
        "with --namespaces own, a folder on a shared mount in which the folder NAME-mps for the daemons' pipes and"
        " shared memory is created, with a tmpfs for each daemon. The same path here and on the host",
        "/run",
        env="MPS_RUN_DIR",
    )
    tmpfs_size: int | None = setting(
        MPS,
        "SIZE",
        "the most that pipes and shared memory of one daemon and its clients hold, 16Mi to 1Ti, such as 4Gi;"
        " default: a sixteenth of the machine's memory",
        None,
        parse=_size,
        env="MPS_TMPFS_SIZE",
    )
    tmpfs_files: int = setting(
        MPS, "COUNT", "the most files in these, 256 to 1048576", 65536, parse=_files, env="MPS_TMPFS_FILES"
    )
    namespaces: str = setting(
        MPS,
        "own|none",
        "own: each daemon gets its own mount namespace and shared memory, which needs privileges; none: all daemons"
        " and their clients share one folder",
        "own",
        parse=one_of("own", "none"),
        env="MPS_NAMESPACES",
    )
    users: str = setting(
        MPS,
        "one|all",
        "one: only processes of one user at a time can use a daemon; all: processes of all users can, and the MPS"
        " server treats them as root's",
        "one",
        parse=one_of("one", "all"),
        env="MPS_USERS",
    )
    log_format: LogFormat = format_of_logs(TELEMETRY)
    log_level: LogLevel = level_of_logs(TELEMETRY)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--check",
        action="store_true",
        help="run nothing: exit with status 0 if this node's MPS host works, else print why not and exit with status 1",
    )
    add_flags(parser, flags_of(MpsHostSettings))


def run(args: argparse.Namespace) -> int:
    settings = load(MpsHostSettings, vars(args), os.environ)
    root = Path(settings.kubelet_plugins_dir) / settings.driver_name / FOLDER
    if args.check:
        return _check(root)
    from dra_driver.core.stop_signal import StopSignal
    from dra_driver.core.telemetry import logs
    from dra_driver.hardware.driver_root.search import Detector
    from dra_driver.hardware.sharing.control import ControlProgram
    from dra_driver.hardware.sharing.host import MpsHost

    logs.configure(settings.log_format, settings.log_level)
    stop = StopSignal()
    detector = Detector(settings.host_root)
    program = ControlProgram(
        root=settings.driver_root or (lambda: detector.current().here("/")),
        private=settings.namespaces == "own",
        users="all" if settings.users == "all" else "one",
    )
    host = MpsHost(root, program, _memory(settings))
    host.run(lambda: stop.wait(0.0))
    logging.shutdown()
    return 0


def _check(root: Path) -> int:
    from dra_driver.hardware.sharing import mps_files
    from dra_driver.hardware.sharing.mps_files import MpsFolders

    problem = mps_files.host_problem(MpsFolders(root))
    if problem is not None:
        print(problem)
    return 0 if problem is None else 1


def _memory(settings: MpsHostSettings) -> "DaemonMemory":
    from dra_driver.hardware.sharing.memory import OwnMemory, SharedMemory, SystemMounts, TmpfsBounds

    folder = f"{settings.driver_name}-mps"
    former = Path(settings.shm_dir) / folder
    if settings.namespaces != "own":
        return SharedMemory(former)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = settings.tmpfs_size or max(LEAST_SIZE, memory // MEMORY_PART)
    limits = TmpfsBounds(size_bytes=size, files=settings.tmpfs_files)
    return OwnMemory(Path(settings.run_dir) / folder, former, SystemMounts(), limits)
