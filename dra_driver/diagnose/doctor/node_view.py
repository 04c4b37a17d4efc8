"""Where this process sees the folders of a node: the same paths on the host, below a mount in a pod."""

from pathlib import Path
from typing import Final

from msgspec import Struct

CRI_SOCKETS: Final = (
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
    "/run/cri-dockerd.sock",
)
"""Where runtimes listen: their packages, k3s and RKE2, k0s, MicroK8s, and the adapter of Docker."""


class HostView(Struct, frozen=True, kw_only=True):
    """Paths of settings are as this process sees them. ``host`` is the host's ``/`` as this process sees it.

    ``driver_root`` is None where it is searched below ``host_root``, as the node process does. ``cri_socket`` is a path
    on the host, None where it is searched. ``simulated``: the node process simulates its GPUs, and needs no driver.
    """

    driver: str
    host: str = "/"
    driver_root: str | None = None
    driver_root_on_host: str | None = None
    host_root: str = "/"
    dev: str = "/dev"
    proc_devices: str = "/proc/devices"
    hook: str | None = None
    plugins: Path = Path("/var/lib/kubelet/plugins")
    registry: Path = Path("/var/lib/kubelet/plugins_registry")
    cdi: Path = Path("/var/run/cdi")
    cri_socket: str | None = None
    simulated: bool = False
    second_publisher_allowed: bool = False

    def here(self, path: str) -> str:
        """This process' path of a path on the host."""
        return self.host.rstrip("/") + path

    @property
    def proc(self) -> str:
        """The host's ``/proc``: with it, a pod without the host's process ids sees the kubelet."""
        return self.here("/proc")

    @property
    def sys(self) -> str:
        """The kernel's ``/sys``."""
        return self.here("/sys")

    @property
    def own_folder(self) -> Path:
        """The driver's folder below the kubelet's plugins."""
        return self.plugins / self.driver

    @property
    def device_plugins(self) -> str:
        """Where device plugins have their sockets."""
        return self.here(f"{self.registry.parent}/device-plugins")
