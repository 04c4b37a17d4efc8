"""Flags and settings of commands that read a node, with the names of the node process and its MPS host."""

import argparse
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dra_driver.config.options import Flag, flags_of
from dra_driver.config.settings import NodeSettings, load_node_settings, node_flags
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import Detector, find_library
from dra_driver.hardware.sharing.main import MpsHostSettings

if TYPE_CHECKING:
    from dra_driver.diagnose.hardware.child import Task
    from dra_driver.diagnose.node_state import Places

_PLACES: Final = (
    "driver_root",
    "driver_root_on_host",
    "host_root",
    "dev_root",
    "proc_devices",
    "kubelet_plugins_dir",
    "driver_name",
)
_MPS: Final = ("run_dir", "shm_dir")
# Settings for running processes only.
_UNUSED: Final = frozenset({"pod_uid", "http_addr", "log_format", "log_level", "policy_dir"})


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags. ``--node-name`` is optional: it matters only for rebuilding a journal."""
    group = parser.add_argument_group(
        "location of the driver",
        "as for kubelet-plugin and mps-host; in their pods the variables in brackets are set already",
    )
    flags = [flag for flag in node_flags() if flag.field not in _UNUSED]
    add_options(group, (*flags, *(flag for flag in flags_of(MpsHostSettings) if flag.field in _MPS)))


def add_options(group: "argparse._ActionsContainer", flags: Iterable[Flag]) -> None:
    """Add the flags of settings, with variable and default in their help."""
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
    # Empty variables of the pod count as unset; unused variables are ignored.
    settings = load_node_settings(given, {"POLICY_DIR": ""} | dict(os.environ))
    mps = {flag.field: flag for flag in flags_of(MpsHostSettings) if flag.field in _MPS}
    run, shm = (Path(getattr(args, field) or os.environ.get(mps[field].env) or mps[field].default) for field in _MPS)
    return settings, Places.of(settings, run_dir=run, shm_dir=shm)


def place_flags() -> list[Flag]:
    """The flags of the node process for directories and files."""
    return [flag for flag in node_flags() if flag.field in _PLACES]


def load_places(given: Mapping[str, str | None], environ: Mapping[str, str]) -> NodeSettings:
    """Return the settings; ignores other variables of the node process. Raises ConfigurationError."""
    known = {flag.env: environ[flag.env] for flag in place_flags() if flag.env in environ}
    return load_node_settings({"node_name": os.uname().nodename.lower(), **given}, known)


def task_of(settings: NodeSettings) -> "tuple[Task, str]":
    """Return the task that all checks begin with, and why no driver was found ("" if found)."""
    from dra_driver.diagnose.hardware.child import Task  # the flags need no NVML bindings

    reason = ""
    try:
        root = _root(settings)
    except DriverUnavailableError as error:
        root, reason = DriverRoot(), str(error)
    library = find_library(root.here("/"))
    if not reason and library is None and root.root:
        reason = f"no libnvidia-ml.so.1 below the driver root {root.here('/')}"
    return Task(
        reader="",
        folder="",
        root=root.root or "/",
        host_root=root.host_root or "/",
        dev_root=root.dev_root or "/",
        host_dev_root=root.host_dev_root or "/",
        host=settings.host_root,
        library=library,
        proc_devices=settings.proc_devices,
        plugin_dir=f"{settings.kubelet_plugins_dir}/{settings.driver_name}",
    ), reason


def host_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names of this machine that a report must not contain."""
    names = (os.uname().nodename, environ.get("NODE_NAME", ""))  # in a pod, the first one is the pod's
    return tuple(dict.fromkeys(text for name in names for text in (name, name.partition(".")[0]) if text))


def _root(settings: NodeSettings) -> DriverRoot:
    if settings.driver_root is None:
        return Detector(settings.host_root, dev_root=settings.dev_root or "").current()
    host = settings.host_root.rstrip("/")
    below = settings.driver_root.removeprefix(host) if settings.driver_root.startswith(f"{host}/") else ""
    return DriverRoot.locate(
        settings.driver_root, host_root=settings.driver_root_on_host or below, dev_root=settings.dev_root or ""
    )
