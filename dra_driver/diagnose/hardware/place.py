"""Settings of ``dra-driver hardware-check``, and the places of the driver and of this driver's folder by them.

The settings of the node process that say where things are, with the same environment variables, so that a pod with the
node process' environment needs no flag."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from dra_driver.config.options import Option, setting
from dra_driver.core.errors import DriverUnavailableError
from dra_driver.diagnose.hardware.child import Task
from dra_driver.hardware.driver_root.detect import Detector
from dra_driver.hardware.driver_root.root import DriverRoot
from dra_driver.hardware.driver_root.search import find_library

PLACES = "places, as for kubelet-plugin"


def _absolute(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError("expected an absolute path")
    return str(PurePosixPath(text))


def _name(text: str) -> str:
    if not 0 < len(text) <= 63 or "/" in text or text.startswith("."):
        raise ValueError("expected the driver's name, such as gpu.nvidia.com")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckSettings:
    """Where the driver, the kernel's files and this driver's folder are."""

    driver_root: str | None = setting(
        Option(
            PLACES,
            "DRIVER_ROOT",
            "DIR",
            "root of the NVIDIA driver, as this process sees it; default: search for it below the host root",
            _absolute,
        ),
        None,
    )
    driver_root_on_host: str | None = setting(
        Option(PLACES, "DRIVER_ROOT_ON_HOST", "DIR", "the same root as the host sees it, if different", _absolute), None
    )
    host_root: str = setting(Option(PLACES, "HOST_ROOT", "DIR", "the host's / as this process sees it", _absolute), "/")
    dev_root: str | None = setting(
        Option(PLACES, "DEV_ROOT", "DIR", "parent of the dev directory with the GPUs' device nodes", _absolute), None
    )
    proc_devices: str = setting(
        Option(PLACES, "ALT_PROC_DEVICES_PATH", "FILE", "the kernel's list of device numbers", _absolute),
        "/proc/devices",
    )
    kubelet_plugins_dir: str = setting(
        Option(PLACES, "KUBELET_PLUGINS_DIR", "DIR", "parent of the folder with this driver's journal", _absolute),
        "/var/lib/kubelet/plugins",
    )
    driver_name: str = setting(Option(PLACES, "DRIVER_NAME", "NAME", "name of this driver", _name), "gpu.nvidia.com")


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
