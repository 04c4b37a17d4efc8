"""Where the driver and this driver's own folder are, from the settings of the node process."""

import os
from collections.abc import Mapping

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.diagnose.hardware.settings import CheckSettings
from dra_driver.diagnose.hardware.task import Task
from dra_driver.hardware.driver_root.detect import Detector
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import find_library


def task_of(settings: CheckSettings) -> tuple[Task, str]:
    """The task that all checks begin with, and why there is no driver ("" when there is one)."""
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


def _root(settings: CheckSettings) -> DriverRoot:
    if settings.driver_root is None:
        return Detector(settings.host_root, dev_root=settings.dev_root or "").current()
    host = settings.host_root.rstrip("/")
    below = settings.driver_root.removeprefix(host) if settings.driver_root.startswith(f"{host}/") else ""
    return DriverRoot.locate(
        settings.driver_root, host_root=settings.driver_root_on_host or below, dev_root=settings.dev_root or ""
    )
