"""Flags of commands that look at a node: those of the node process and its MPS host, from the same variables."""

import argparse
import os
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.config.options import Flag, flags_of
from dra_driver.config.settings import NodeSettings, load_node_settings, node_flags
from dra_driver.hardware.sharing.main import MpsHostSettings

if TYPE_CHECKING:
    from dra_driver.diagnose.node_state import Places

_MPS: Final = ("run_dir", "shm_dir")
# Settings of a running process have no meaning here.
_UNUSED: Final = frozenset({"pod_uid", "http_addr", "log_format", "log_level", "policy_dir"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """``--node-name`` is optional: it only matters where a journal has to be rebuilt."""
    group = parser.add_argument_group(
        "where the driver is",
        "as for kubelet-plugin and mps-host; inside their pods the variables in brackets are set already",
    )
    flags = [flag for flag in node_flags() if flag.field not in _UNUSED]
    add_options(group, (*flags, *(flag for flag in flags_of(MpsHostSettings) if flag.field in _MPS)))


def add_options(group: "argparse._ActionsContainer", flags: Iterable[Flag]) -> None:
    """The flags of settings, with variable and default in their help."""
    for flag in flags:
        default = f" (default: {flag.default})" if flag.default else ""
        text = f"{flag.help}{default} [{flag.env}]".replace("%", "%%")
        group.add_argument(flag.flag, dest=flag.field, metavar=flag.metavar, help=text)


def load_settings(args: argparse.Namespace) -> "tuple[NodeSettings, Places]":
    """The settings and the places. Raises ConfigurationError."""
    from dra_driver.diagnose.node_state import Places

    given: dict[str, str | None] = {flag.field: getattr(args, flag.field, None) for flag in node_flags()}
    if given["node_name"] is None and not os.environ.get("NODE_NAME"):
        given["node_name"] = socket.gethostname().lower()
    # Empty variables of the pod count as not set; those without meaning here are not read.
    settings = load_node_settings(given, {"POLICY_DIR": ""} | dict(os.environ))
    mps = {flag.field: flag for flag in flags_of(MpsHostSettings) if flag.field in _MPS}
    run, shm = (Path(getattr(args, field) or os.environ.get(mps[field].env) or mps[field].default) for field in _MPS)
    return settings, Places.of(settings, run_dir=run, shm_dir=shm)
