"""Adds the settings of a process to its command as flags, with default and environment variable in the help."""

import argparse
from collections.abc import Iterable
from typing import Any

from dra_driver.config.options import Flag


def add_flags(parser: argparse.ArgumentParser, flags: Iterable[Flag], *, bare_switches: bool = False) -> None:
    """One flag for each setting, below the heading of its group. With ``bare_switches`` a flag with the values
    ``true|false`` may stand alone and means true."""
    groups: dict[str, Any] = {}
    for flag in flags:
        group = groups.get(flag.option.group) or parser.add_argument_group(flag.option.group)
        groups[flag.option.group] = group
        bare: dict[str, Any] = {}
        if bare_switches and flag.option.metavar == "true|false":
            bare = {"nargs": "?", "const": "true"}
        group.add_argument(flag.flag, dest=flag.field, metavar=flag.option.metavar, help=_help(flag), **bare)


def _help(flag: Flag) -> str:
    default = " (required)" if flag.required else f" (default: {flag.default})" if flag.default else ""
    return f"{flag.option.help}{default} [{flag.option.env}]".replace("%", "%%")
