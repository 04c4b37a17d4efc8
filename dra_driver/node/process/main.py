"""``dra-driver kubelet-plugin``: reads the settings and runs the node process.

Flags, environment variables, defaults and checks come from ``config.settings``, so a new setting needs no change here.
"""

import argparse
import logging
import os

from dra_driver.config.options import add_flags
from dra_driver.config.settings import load_node_settings, node_flags

DESCRIPTION = """\
Publish this node's GPUs as ResourceSlices and prepare claims for its kubelet.

Each flag can also be set by the environment variable in brackets; the flag takes precedence. The process runs until
SIGTERM. A wrong setting or directory ends it at once with status 2 and an error message. It waits for a missing NVIDIA
driver or API server; /readyz reports what is missing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, node_flags())


def run(args: argparse.Namespace) -> int:
    """Runs until SIGTERM and ends the process. Raises ConfigurationError when it cannot start."""
    given = {flag.field: getattr(args, flag.field) for flag in node_flags()}
    settings = load_node_settings(given, os.environ)
    from dra_driver.core.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    # gRPC's core would write lines in its own format to stderr; its failures are also raised as exceptions here.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from dra_driver.node.process import process_tuning

    process_tuning.keep_large_blocks_apart()
    process_tuning.sleep_long()
    from dra_driver.node.process import plugin

    plugin.run(settings)
    logging.shutdown()
    # Everything is closed at this point. A normal exit would wait for worker threads; one that hangs in a call to the
    # API server or the hardware would delay it beyond the pod's grace period.
    os._exit(0)
