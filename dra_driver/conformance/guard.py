"""Recognizes a registrar folder in which a kubelet works, which the suite must not compete with.

A kubelet serves its own sockets beside the registrar folder, below its root directory: pod-resources/kubelet.sock
(pkg/kubelet/apis/podresources) and device-plugins/kubelet.sock (pkg/kubelet/cm/devicemanager). A socket that a dead
kubelet left accepts no connections.
"""

from pathlib import Path
from typing import Final

from dra_driver.conformance.registry import is_served
from dra_driver.core.errors import ConfigurationError

KUBELET_SOCKETS: Final = ("pod-resources/kubelet.sock", "device-plugins/kubelet.sock")
_PROBE_S: Final = 1.0


def kubelet_beside(registrar_dir: Path) -> str:
    """Why a kubelet seems to work in this folder, as a sentence; empty if none does."""
    root = registrar_dir.resolve().parent
    for name in KUBELET_SOCKETS:
        if is_served(root / name, _PROBE_S):
            return f"a kubelet serves {root / name}, so it also works in {registrar_dir}"
    return ""


def check_folder(registrar_dir: Path, *, owned: bool) -> None:
    """Raise ConfigurationError for a folder that the suite must not use."""
    if not registrar_dir.is_dir():
        raise ConfigurationError(f"--registrar-dir {registrar_dir} is not a folder")
    why = kubelet_beside(registrar_dir)
    if why and not owned:
        raise ConfigurationError(
            f"{why}. The checks restart the driver, delete its ResourceSlices and prepare claims, which disturbs pods; "
            "use a folder without a kubelet, or --i-own-this-node on a node without pods that need the driver"
        )
