"""Map a node's paths to this process, and read small files, sockets and versions there.

The paths are the host's on the host itself, and below a mount in a pod."""

import os
import re
import stat
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.core.files import read_start

CRI_SOCKETS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
)
"""Sockets of runtimes: of their packages, k3s and RKE2, k0s, MicroK8s, and the adapter of Docker."""


class HostView(Struct, frozen=True, kw_only=True):
    """``host`` (the host's ``/``) and the paths in the node process' ``settings``, as this process sees them.

    ``cri_socket`` is a path on the host, None to search for it.
    """

    settings: NodeSettings
    host: str = "/"
    cri_socket: str | None = None

    @property
    def driver(self) -> str:
        return self.settings.driver_name

    @property
    def dev(self) -> str:
        return self.settings.host_dev or "/dev"

    @property
    def registry(self) -> Path:
        return Path(self.settings.kubelet_registrar_dir)

    @property
    def cdi(self) -> Path:
        return Path(self.settings.cdi_dir)

    @property
    def simulated(self) -> bool:
        """Return whether the node process simulates its GPUs and needs no driver."""
        return self.settings.simulate is not None

    def here(self, path: str) -> str:
        """The path in this process of a path on the host."""
        return self.host.rstrip("/") + path

    @property
    def proc(self) -> str:
        """The host's ``/proc``, through which a pod without the host's process ids sees the kubelet."""
        return self.here("/proc")

    @property
    def sys(self) -> str:
        return self.here("/sys")

    @property
    def own_folder(self) -> Path:
        """The driver's directory below the kubelet's plugins."""
        return Path(self.settings.kubelet_plugins_dir) / self.driver

    @property
    def device_plugins(self) -> str:
        return self.here(f"{self.registry.parent}/device-plugins")


MAX_BYTES: Final = 1 << 20
_VERSION: Final = re.compile(r"v?(\d{1,4})\.(\d{1,4})")


def text(path: str) -> str | None:
    """The file's text, at most 1 MiB, without white space at its ends; None if unreadable."""
    found = read_start(path, MAX_BYTES)
    return found if found is None else found.strip("\0\n ")


def names(folder: str) -> list[str] | None:
    """The sorted names in a directory; None if unreadable."""
    try:
        return sorted(os.listdir(folder))  # noqa: PTH208 - names
    except OSError:
        return None


def is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return False


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor of ``1.6.20~ds1`` or ``v2.1.9``; None for another form."""
    match = _VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None
