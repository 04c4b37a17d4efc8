"""``dra-driver kubelet-plugin``: flags into settings, then the node process.

Owns the help text. Refuses to know what a setting means: flags, environment twins, defaults and checks come from
``config.settings``, so a new setting needs no change here.
"""

import argparse
import logging
import os
from typing import Any

from dra_driver.config.options import Flag
from dra_driver.config.settings import load_node_settings, node_flags

DESCRIPTION = """\
Publish this node's GPUs as ResourceSlices and prepare claims for its kubelet.

Each flag has a twin in the environment, named in brackets; the flag wins. The process runs until SIGTERM, and ends at
once with status 2 and a sentence when a setting or a directory is wrong. A missing NVIDIA driver or API server is
waited for: /readyz says what is missing.
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "kubelet-plugin",
        help="run the driver on a node",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation in a manifest would change its meaning when a flag is added
    )
    groups: dict[str, Any] = {}
    for flag in node_flags():
        group = groups.get(flag.option.group) or parser.add_argument_group(flag.option.group)
        groups[flag.option.group] = group
        group.add_argument(flag.flag, dest=flag.field, metavar=flag.option.metavar, help=_help(flag))


def _help(flag: Flag) -> str:
    default = " (required)" if flag.required else f" (default: {flag.default})" if flag.default else ""
    return f"{flag.option.help}{default} [{flag.option.env}]".replace("%", "%%")


def run(args: argparse.Namespace) -> int:
    """Runs until SIGTERM and ends the process. Raises ConfigurationError when it cannot start."""
    given = {flag.field: getattr(args, flag.field) for flag in node_flags()}
    settings = load_node_settings(given, os.environ)
    from dra_driver.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    # gRPC's core would write lines of its own format to stderr; what fails there arrives here as an exception too.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dra_driver.kubelet import plugin

    plugin.run(settings)
    logging.shutdown()
    # Everything is closed by now. An ordinary exit would wait for worker threads, and one that hangs in a call to the
    # API server or the hardware would hold it up past the pod's grace period.
    os._exit(0)
