"""``dra-driver webhook``: reads the settings and runs the webhook process.

Flags, environment variables, defaults and checks come from ``config.webhook_settings``.
"""

import argparse
import logging
import os
from typing import Any

from dra_driver.config.flags import add_flags
from dra_driver.config.options import flags_of, load
from dra_driver.config.webhook_settings import WebhookSettings

DESCRIPTION = """\
Tell the API server what is wrong with claims, classes and GpuPolicies when they are applied, in the sentences of
`kubectl dra lint`. The chart runs it beside the controller (webhook.enabled=true), which hands over certificates in a
folder that both have mounted. It needs no token, no node and no root.

Each flag can also be set by the environment variable in brackets; the flag takes precedence. Runs until SIGTERM.

Example:
  dra-driver webhook --webhook-dir /run/dra-driver-webhook --http-addr :8081
"""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "webhook",
        help="run the admission webhook",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # an abbreviation in a manifest would change its meaning when a flag is added
    )
    add_flags(parser, flags_of(WebhookSettings), bare_switches=True)


def run(args: argparse.Namespace) -> int:
    """Runs until SIGTERM. Raises ConfigurationError when it cannot start."""
    given = {flag.field: getattr(args, flag.field) for flag in flags_of(WebhookSettings)}
    settings = load(WebhookSettings, given, os.environ)
    from dra_driver.core.telemetry import logs

    logs.configure(settings.log_format, settings.log_level)
    from dra_driver.webhook import process

    process.run(settings)
    logging.shutdown()
    return 0
