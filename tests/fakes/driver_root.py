"""A driver root as NVIDIA's packages install it, below a temporary folder. Libraries have real SONAMEs and no code."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.fakes import elf

VERSION = "580.65.06"
PROC_DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
237 nvidia-caps
510 nvidia-uvm

Block devices:
259 blkext
"""

# File name -> SONAME, as `readelf -d` shows them for a real driver.
LIBRARIES = {
    "libcuda.so.{v}": "libcuda.so.1",
    "libnvidia-ml.so.{v}": "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.{v}": "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-allocator.so.{v}": "libnvidia-allocator.so.1",
    "libGLX_nvidia.so.{v}": "libGLX_nvidia.so.0",
    "libnvidia-tls.so.{v}": "libnvidia-tls.so.{v}",
    "vdpau/libvdpau_nvidia.so.{v}": "libvdpau_nvidia.so.1",
    "libnvidia-egl-gbm.so.1.1.2": "libnvidia-egl-gbm.so.1",
}


class FakeDriverRoot:
    """A folder to fill; methods add one thing each, with inside paths such as ``/usr/bin/nvidia-smi``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def proc_devices(self) -> str:
        return str(self.path / "proc/devices")

    def put(self, inside: str, content: bytes = b"", mode: int = 0o644) -> Path:
        path = self.path / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def link(self, inside: str, target: str) -> Path:
        path = self.path / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return path

    def socket(self, inside: str) -> None:
        """A unix socket, bound through its folder's descriptor because socket paths end at 107 characters."""
        path = self.path / inside.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)

    def libraries(self, folder: str, version: str = VERSION, machine: int = elf.X86_64) -> None:
        for name, soname in LIBRARIES.items():
            file, link = name.format(v=version), soname.format(v=version)
            self.put(f"{folder}/{file}", elf.library(link, machine), 0o755)
            beside = f"{folder}/{Path(file).parent / link}"
            if Path(beside).name != Path(file).name and not (self.path / beside.lstrip("/")).is_symlink():
                self.link(beside, Path(file).name)


def debian(path: Path, version: str = VERSION) -> FakeDriverRoot:
    """A driver as ``apt`` lays it out on x86-64, with programs, firmware, configuration, a socket and noise beside."""
    root = FakeDriverRoot(path)
    folder = "/usr/lib/x86_64-linux-gnu"
    root.libraries(folder, version)
    root.put(f"{folder}/libc.so.6", elf.library("libc.so.6"))
    root.put(f"{folder}/libcuda.so.txt", b"not a library")
    root.link("/lib", "usr/lib")
    root.put("/usr/bin/nvidia-smi", b"#!/bin/sh\n", 0o755)
    root.put("/usr/bin/nvidia-persistenced", b"#!/bin/sh\n", 0o755)
    root.put("/usr/bin/nvidia-debugdump", b"not executable", 0o644)
    root.put(f"/usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin", b"fw")
    root.put(f"/usr/lib/firmware/nvidia/{version}/README", b"no firmware")
    root.put("/usr/share/glvnd/egl_vendor.d/10_nvidia.json", b"{}")
    root.put("/etc/vulkan/icd.d/nvidia_icd.json", b"{}")
    root.link("/var/run", "/run")
    root.socket("/run/nvidia-persistenced/socket")
    root.put("/proc/devices", PROC_DEVICES.encode())
    return root


def make_small_root(folder: Path) -> None:
    """Fill the folder. Skips the test for users who may not enter another root."""
    probe = subprocess.run(["/usr/sbin/chroot", "/", "/bin/true"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip("this user may not enter another root")
    shell = Path(shutil.which("sh") or "/bin/sh").resolve()
    linked = subprocess.run(["/usr/bin/ldd", str(shell)], capture_output=True, text=True, check=True).stdout
    for path in (shell, *(Path(word) for word in linked.split() if word.startswith("/"))):
        target = folder / path.relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path.resolve(), target)
    (folder / "bin").mkdir(exist_ok=True)
    if not (folder / "bin/sh").exists():
        (folder / "bin/sh").symlink_to(shell)
