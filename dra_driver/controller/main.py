"""``dra-driver controller``: reads the settings and runs the controller process.

Flags, environment variables, defaults and checks come from ``config.controller_settings``.
"""

import argparse
import logging
import os

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import add_flags, flags_of, load

DESCRIPTION = """\
Run cluster-wide tasks: update GpuPolicy status, evict pods that request an extended resource from unhealthy GPUs, evict
pods of claims that exceed their grant or are idle, survey free capacity. Enable each task separately.

Run two replicas; a Lease decides which of them acts. Each flag can also be set by the environment variable in brackets;
the flag takes precedence. Runs until SIGTERM. It needs no GPU, no node and no root.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # `--evict-extended-resource-pods` alone switches it on.
    add_flags(parser, flags_of(ControllerSettings), bare_switches=True)


def run(args: argparse.Namespace) -> int:
    settings = load(ControllerSettings, vars(args), os.environ)
    from dra_driver.core.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    from dra_driver.controller import process

    process.run(settings)
    logging.shutdown()
    return 0
