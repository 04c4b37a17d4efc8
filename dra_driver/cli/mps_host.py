"""``dra-driver mps-host``: the process whose children are the node's MPS daemons.

Owns its settings and signals. Refuses to load anything of the node process: it runs on every node that has GPUs, mostly
to do nothing, so it has to be small.
"""

import argparse
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, get_args

from dra_driver.config.options import Flag, Option, flags_of, load, setting
from dra_driver.telemetry.logs import LogFormat, LogLevel

DESCRIPTION = """\
Run the MPS daemons that claims on this node ask for.

One per node. The node process writes down which daemons should run; this process starts them, restarts them and says
when they are ready. Its life does not depend on the node process, and ending it ends the daemons and with them the work
of their clients. Each flag has a twin in the environment, named in brackets; the flag wins. Runs until SIGTERM.
"""

NODE, MPS, TELEMETRY = "node", "MPS", "telemetry"
FOLDER: Final = "mps"
"""Below the driver's own folder in the kubelet's plugin directory."""


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path")
    return str(PurePosixPath(text))


def _name(text: str) -> str:
    if not 0 < len(text) <= 63 or "/" in text or text.startswith("."):
        raise ValueError("expected the driver's name, such as gpu.nvidia.com")
    return text


def _one_of(*choices: str) -> Any:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return text

    return parse


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsHostSettings:
    """What ``dra-driver mps-host`` is told."""

    driver_name: str = setting(
        Option(NODE, "DRIVER_NAME", "NAME", "what the node process calls this driver", _name),
        "gpu.nvidia.com",
    )
    kubelet_plugins_dir: str = setting(
        Option(NODE, "KUBELET_PLUGINS_DIR", "DIR", "as for kubelet-plugin; the same path on the host", _absolute),
        "/var/lib/kubelet/plugins",
    )
    driver_root: str = setting(
        Option(NODE, "DRIVER_ROOT", "DIR", "where this process sees the root of the NVIDIA driver", _absolute), "/"
    )
    shm_dir: str = setting(
        Option(
            MPS,
            "MPS_SHM_DIR",
            "DIR",
            "a tmpfs, under the same path here and on the host, in which a folder NAME-mps with the daemons' shared"
            " memory is made",
            _absolute,
        ),
        "/dev/shm",  # noqa: S108 - the host's own
    )
    namespaces: str = setting(
        Option(
            MPS,
            "MPS_NAMESPACES",
            "own|none",
            "own gives each daemon a mount namespace with shared memory of its own, which takes privilege; none lets"
            " all daemons and their clients share one folder",
            _one_of("own", "none"),
        ),
        "own",
    )
    users: str = setting(
        Option(
            MPS,
            "MPS_USERS",
            "one|all",
            "whose processes may use a daemon at a time: those of one user, or those of all, which the MPS server then"
            " treats as root's",
            _one_of("one", "all"),
        ),
        "one",
    )
    log_format: LogFormat = setting(  # noqa: RUF009 - it makes a dataclass field, as dataclasses.field does
        Option(TELEMETRY, "LOG_FORMAT", "FORMAT", "text (key=value) or json", _one_of(*get_args(LogFormat))), "text"
    )
    log_level: LogLevel = setting(  # noqa: RUF009 - same
        Option(TELEMETRY, "LOG_LEVEL", "LEVEL", "debug, info, warning or error", _one_of(*get_args(LogLevel))), "info"
    )


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "mps-host",
        help="run this node's MPS daemons",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation in a manifest would change its meaning when a flag is added
    )
    groups: dict[str, Any] = {}
    for flag in flags_of(MpsHostSettings):
        group = groups.get(flag.option.group) or parser.add_argument_group(flag.option.group)
        groups[flag.option.group] = group
        group.add_argument(flag.flag, dest=flag.field, metavar=flag.option.metavar, help=_help(flag))


def _help(flag: Flag) -> str:
    default = " (required)" if flag.required else f" (default: {flag.default})" if flag.default else ""
    return f"{flag.option.help}{default} [{flag.option.env}]".replace("%", "%%")


def run(args: argparse.Namespace) -> int:
    """Runs until SIGTERM or SIGINT. Raises ConfigurationError when it cannot start."""
    given = {flag.field: getattr(args, flag.field) for flag in flags_of(MpsHostSettings)}
    settings = load(MpsHostSettings, given, os.environ)
    from dra_driver.sharing.control import ControlProgram
    from dra_driver.sharing.host import MpsHost
    from dra_driver.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    over: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: over.append(received))
    program = ControlProgram(
        root=settings.driver_root,
        private=settings.namespaces == "own",
        users="all" if settings.users == "all" else "one",
    )
    host = MpsHost(
        Path(settings.kubelet_plugins_dir) / settings.driver_name / FOLDER,
        program,
        Path(settings.shm_dir) / f"{settings.driver_name}-mps",
    )
    host.run(lambda: bool(over))
    logging.shutdown()
    return 0
