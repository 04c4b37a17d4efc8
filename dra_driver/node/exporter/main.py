"""``dra-driver exporter``: read the settings and run the usage exporter."""

import argparse
import logging
import os

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import add_flags, flags_of, load

DESCRIPTION = """\
Report the GPU use of each claim, container and device: memory against its grant, utilization, energy, processes, idle
time. /metrics is for Prometheus, /usage for `kubectl dra usage`. Claims over their grant, idle claims and processes of
no claim are written to a file for the node process.

The chart runs it in the node process's pod (exporter.enabled=true). It changes nothing, needs no token, and reads the
host's /proc, the names of the kubelet's links to logs, and the kubelet's PodResources. If a source is missing, it
continues and reports the unknown values.

Each flag can also be set by the environment variable in brackets; the flag takes precedence. Runs until SIGTERM.

Example:
  dra-driver exporter --node-name node-a --interval 5
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, flags_of(ExporterSettings), bare_switches=True)


def run(args: argparse.Namespace) -> int:
    """Run until SIGTERM. Raises ConfigurationError if it cannot start."""
    settings = load(ExporterSettings, vars(args), os.environ)
    from dra_driver.core.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    from dra_driver.node.exporter import process

    process.run(settings)
    logging.shutdown()
    return 0
