"""Find the driver root of a node when no root is configured: a driver of the host, then one of a driver container.

A root counts when NVML is below it: other files of the driver may come later. The GPU operator's validator
(NVIDIA/gpu-operator, ``cmd/nvidia-validator/driver.go``) distinguishes the same two cases.
"""

import logging
import os
import threading
from collections.abc import Callable
from typing import Final

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.hardware.driver_root.root import DriverRoot, resolve
from dra_driver.hardware.driver_root.search import NVML, WSL_FOLDER, find_library

log = logging.getLogger(__name__)

CANDIDATES: Final = ("/", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia")
"""Driver roots on hosts: a package or image of the host, a driver container, Google's Container-Optimized OS."""
_TEGRA_FILES: Final = ("/etc/nv_tegra_release", "/sys/devices/soc0/family")

RootSource = Callable[[], DriverRoot]
"""Returns the current driver root. Raises DriverUnavailableError without one."""


class Detector:
    """Finds the driver root of a host whose ``/`` this process sees at ``host_root``. Thread-safe. ``dev_root`` and
    ``host_dev_root`` replace the parent of the device nodes: the driver root if it has a ``dev`` directory, else ``/``.
    """

    def __init__(self, host_root: str, *, dev_root: str = "", host_dev_root: str = "") -> None:
        self._host_root = host_root.rstrip("/")
        self._dev_root = dev_root
        self._host_dev_root = host_dev_root
        self._lock = threading.Lock()  # guards _found
        self._found: str | None = None

    def current(self) -> DriverRoot:
        """The driver root; the last one while NVML is below it. Raises `DriverUnavailableError`."""
        with self._lock:
            previous = [self._found] if self._found is not None else []
            for candidate in dict.fromkeys((*previous, *CANDIDATES)):
                is_refused = candidate == "/" and unsupported(self._host_root) is not None
                if not is_refused and find_library(self._host_root + candidate, NVML):
                    self._report(candidate)
                    return self._located(candidate)
        raise DriverUnavailableError(
            unsupported(self._host_root)
            or f"no {NVML} below {', '.join(self._host_root + candidate for candidate in CANDIDATES)}: install the"
            " NVIDIA driver, wait for the driver container, or set --driver-root (DRIVER_ROOT) to the driver's folder"
        )

    def _report(self, candidate: str) -> None:
        if candidate != self._found:
            log.info("driver root found", extra={"root": candidate, "seen_at": self._host_root + candidate})
        self._found = candidate

    def _located(self, candidate: str) -> DriverRoot:
        # A link at the candidate's place is followed as the host does.
        inside = resolve(self._host_root, candidate) or candidate
        root = self._host_root + ("" if inside == "/" else inside)
        has_dev = os.path.isdir(f"{root}/dev")  # noqa: PTH112 - an empty root is this process' own
        return DriverRoot(
            root=root or "/",
            host_root=inside,
            dev_root=self._dev_root or (root if has_dev else self._host_root) or "/",
            host_dev_root=self._host_dev_root or ("" if self._dev_root else inside if has_dev else "/"),
        )


def unsupported(root: str) -> str | None:
    """Why no driver below ``root`` can serve that system, with what to do instead; None if one can.

    Sources: NVIDIA/nvidia-container-toolkit d34b3046, ``pkg/nvcdi/lib-wsl.go`` (WSL); go-nvlib,
    ``pkg/nvlib/info/property-extractor.go`` (Tegra).
    """
    root = root.rstrip("/")
    if os.path.exists(f"{root}{WSL_FOLDER}/lib") or os.path.exists(f"{root}/dev/dxg"):  # noqa: PTH110
        return (
            "this node is a Windows Subsystem for Linux (WSL2): its GPU is Windows' and has no device nodes that can be"
            " given to containers one by one; use NVIDIA's device plugin with the CDI mode wsl of the NVIDIA Container"
            " Toolkit, or a node with Linux on the machine itself"
        )
    # The kernel has the module of discrete GPUs there: integrated GPUs are driven by nvgpu.
    has_discrete_driver = os.path.isdir(f"{root}/proc/driver/nvidia/gpus")  # noqa: PTH112
    if _is_tegra(root) and not has_discrete_driver:
        return (
            "this node is a Tegra system (Jetson, IGX): its integrated GPU belongs to the board's own software (L4T),"
            " and a driver for data-center GPUs does not work with it; use NVIDIA's device plugin with the CDI mode csv"
            " of the NVIDIA Container Toolkit"
        )
    return None


def _is_tegra(root: str) -> bool:
    release, family = (root + path for path in _TEGRA_FILES)
    if os.path.isfile(release):  # noqa: PTH113
        return True
    try:
        with open(family, encoding="ascii", errors="replace") as file:  # noqa: PTH123
            return file.read(64).lower().startswith("tegra")
    except OSError:
        return False
