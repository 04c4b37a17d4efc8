"""Settings of ``dra-driver hardware-check``, and the places of the driver and of this driver's folder by them.

The settings of the node process that say where things are, with the same environment variables, so that a pod with the
node process' environment needs no flag."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from dra_driver.config.options import Flag
from dra_driver.config.settings import NodeSettings, load_node_settings, node_flags
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import Detector, find_library

if TYPE_CHECKING:
    from dra_driver.diagnose.hardware.child import Task

FIELDS: Final = (
    "driver_root",
    "driver_root_on_host",
    "host_root",
    "dev_root",
    "proc_devices",
    "kubelet_plugins_dir",
    "driver_name",
)


def place_flags() -> list[Flag]:
    """The flags of the node process that say where things are."""
    return [flag for flag in node_flags() if flag.field in FIELDS]


def load_places(given: Mapping[str, str | None], environ: Mapping[str, str]) -> NodeSettings:
    """The settings; other variables of the node process are not read. Raises ConfigurationError."""
    known = {flag.env: environ[flag.env] for flag in place_flags() if flag.env in environ}
    return load_node_settings({"node_name": os.uname().nodename.lower(), **given}, known)


def task_of(settings: NodeSettings) -> "tuple[Task, str]":
    """The task that all checks begin with, and why there is no driver ("" when there is one)."""
    from dra_driver.diagnose.hardware.child import Task  # noqa: PLC0415 - the flags need no NVML bindings

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
    """Names of this machine that a report must not show."""
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
