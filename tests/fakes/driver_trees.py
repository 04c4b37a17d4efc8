"""The places at which systems install NVIDIA's driver, laid out as small trees; each says where its paths are from."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.fakes import elf
from tests.fakes.driver_root import LIBRARIES, VERSION, FakeDriverRoot

PROGRAMS = ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-modprobe")
LOOKUP = "NVIDIA/nvidia-container-toolkit d34b3046, `pkg/lookup/library.go`"


class DriverTree(NamedTuple):
    """A host's file system with a driver: ``build`` lays it out below an empty folder."""

    name: str
    source: str
    build: Callable[[FakeDriverRoot], None]

    def lay_out(self, folder: Path) -> FakeDriverRoot:
        root = FakeDriverRoot(folder)
        (folder / "dev").mkdir(parents=True)
        self.build(root)
        return root


def install(root: FakeDriverRoot, libraries: str, programs: str, hook: str = "") -> None:
    root.libraries(libraries)
    for name in PROGRAMS:
        root.put(f"{programs}/{name}", b"#!/bin/sh\n", 0o755)
    if hook:
        root.put(hook, b"", 0o755)


def ubuntu(root: FakeDriverRoot) -> None:
    root.link("/lib", "usr/lib")
    install(root, "/usr/lib/x86_64-linux-gnu", "/usr/bin", "/usr/bin/nvidia-cdi-hook")


def debian(root: FakeDriverRoot) -> None:
    """Two of the libraries through /etc/alternatives, absolutely, as glx-alternative-nvidia links them."""
    home = "/usr/lib/x86_64-linux-gnu/nvidia/current"
    root.link("/lib", "usr/lib")
    install(root, home, "/usr/lib/nvidia/current", "/usr/bin/nvidia-cdi-hook")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        root.link(f"/etc/alternatives/glx--{name}", f"{home}/{name}")
        root.link(f"/usr/lib/x86_64-linux-gnu/{name}", f"/etc/alternatives/glx--{name}")
    for name in PROGRAMS:
        root.link(f"/etc/alternatives/nvidia--{name}", f"/usr/lib/nvidia/current/{name}")
        root.link(f"/usr/bin/{name}", f"/etc/alternatives/nvidia--{name}")


def rhel(root: FakeDriverRoot) -> None:
    root.link("/lib64", "usr/lib64")
    install(root, "/usr/lib64", "/usr/bin", "/usr/bin/nvidia-cdi-hook")


def driver_container(root: FakeDriverRoot) -> None:
    """The whole root of the driver's image, and the toolkit that the GPU operator installs on the host."""
    inside, toolkit = "/run/nvidia/driver", "/usr/local/nvidia/toolkit"
    root.link(f"{inside}/lib", "usr/lib")
    install(root, f"{inside}/usr/lib/x86_64-linux-gnu", f"{inside}/usr/bin", f"{toolkit}/nvidia-cdi-hook")
    (root.path / "run/nvidia/driver/dev").mkdir()


def gke(root: FakeDriverRoot) -> None:
    install(root, "/home/kubernetes/bin/nvidia/lib64", "/home/kubernetes/bin/nvidia/bin")


def bottlerocket(root: FakeDriverRoot) -> None:
    """Since R580: everything in /usr, and links for programs that know the older folder."""
    root.link("/usr", "x86_64-bottlerocket-linux-gnu/sys-root/usr")
    (root.path / "x86_64-bottlerocket-linux-gnu/sys-root/usr").mkdir(parents=True)
    install(root, "/usr/lib", "/usr/bin", "/usr/bin/nvidia-ctk")
    for name, soname in LIBRARIES.items():
        for link in {name.format(v=VERSION), soname.format(v=VERSION)}:
            if "/" not in link:
                root.link(f"/usr/lib/nvidia/tesla/{link}", f"../../{link}")


def bottlerocket_old(root: FakeDriverRoot) -> None:
    root.link("/usr", "x86_64-bottlerocket-linux-gnu/sys-root/usr")
    (root.path / "x86_64-bottlerocket-linux-gnu/sys-root/usr").mkdir(parents=True)
    install(root, "/usr/lib/nvidia/tesla", "/usr/libexec/nvidia/tesla/bin", "/usr/bin/nvidia-ctk")


def talos(root: FakeDriverRoot) -> None:
    install(root, "/usr/local/lib", "/usr/local/bin", "/usr/local/bin/nvidia-cdi-hook")
    root.link("/usr/local/lib64", "lib/")
    root.link("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
    root.link("/usr/bin/nvidia-cdi-hook", "/usr/local/bin/nvidia-cdi-hook")


def talos_old(root: FakeDriverRoot) -> None:
    install(root, "/usr/local/glibc/usr/lib", "/usr/local/bin", "/usr/local/bin/nvidia-cdi-hook")


def flatcar(root: FakeDriverRoot) -> None:
    install(root, f"/opt/nvidia/{VERSION}/6.6.95-flatcar/usr/lib64", "/opt/bin")
    root.link("/opt/nvidia/current", f"{VERSION}/6.6.95-flatcar")


def nixos(root: FakeDriverRoot) -> None:
    driver = f"/nix/store/xdqvrwrf5baqz49aaa0wzd3z446vvblw-nvidia-x11-{VERSION}-6.10.5"
    drivers = "/nix/store/0a1b2c3d4e5f6g7h8i9j0k1l2m3n4p5q-graphics-drivers"
    system = "/nix/store/9z8y7x6w5v4s3r2q1p0n9m8l7k6j5i4h-nixos-system"
    install(root, f"{driver}/lib", f"{driver}-bin/bin")
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", f"libcuda.so.{VERSION}", f"libnvidia-ml.so.{VERSION}"):
        root.link(f"{drivers}/lib/{name}", f"{driver}/lib/{name}")
    root.link("/run/opengl-driver", drivers)
    for name in PROGRAMS:
        root.link(f"{system}/sw/bin/{name}", f"{driver}-bin/bin/{name}")
    root.link("/run/current-system", system)


def elsewhere(root: FakeDriverRoot) -> None:
    install(root, "/opt/vendor/lib", "/usr/local/bin")
    entries = [(0x0303, name, f"/opt/vendor/lib/{name}") for name in ("libcuda.so.1", "libnvidia-ml.so.1")]
    root.put("/etc/ld.so.cache", elf.linker_cache(entries))


TREES = (
    DriverTree("Ubuntu packages", LOOKUP, ubuntu),
    DriverTree("Debian packages", LOOKUP, debian),
    DriverTree("RHEL packages", LOOKUP, rhel),
    DriverTree(
        "driver container, GPU operator",
        "NVIDIA/gpu-driver-container 06a208ca, `ubuntu22.04/nvidia-driver` (`_mount_rootfs`)",
        driver_container,
    ),
    DriverTree(
        "GKE, Container-Optimized OS",
        "NVIDIA/nvidia-container-toolkit#209; `install.md` of kubernetes-sigs/dra-driver-nvidia-gpu 95932046",
        gke,
    ),
    DriverTree(
        "Bottlerocket, R580 and newer",
        "bottlerocket-os/bottlerocket-kernel-kit#425 and #473; bottlerocket-core-kit#834",
        bottlerocket,
    ),
    DriverTree(
        "Bottlerocket, older",
        "bottlerocket-os/bottlerocket-kernel-kit 2f501629, `kmod-6.1-nvidia.spec`",
        bottlerocket_old,
    ),
    DriverTree(
        "Talos 1.13 and newer",
        "siderolabs/extensions 26822f5c, `nvidia-pkgs/production/pkg.yaml`, `misc/glibc/pkg.yaml`",
        talos,
    ),
    DriverTree("Talos, older", "siderolabs/extensions fdd02585^, `nvidia-pkgs/production/pkg.yaml`", talos_old),
    DriverTree(
        "Flatcar, nvidia.service", "flatcar/scripts 14c9198e, `nvidia-drivers-service/files/bin/setup-nvidia`", flatcar
    ),
    DriverTree("NixOS", "NixOS/nixpkgs 035aa04c, `nvidia-container-toolkit/default.nix`; nixpkgs#337873", nixos),
    DriverTree("another folder, in ld.so.cache", LOOKUP, elsewhere),
)
