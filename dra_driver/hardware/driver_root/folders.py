"""Folders in which distributions install NVIDIA's libraries and programs, in the order of the search, as data.

The order: folders of NVIDIA's container toolkit (``pkg/lookup/library.go``), then one folder for each system that
installs elsewhere. docs/driver-roots.md has the systems and the sources of their folders.
"""

from typing import Final

TRIPLETS: Final = ("x86_64-linux-gnu", "aarch64-linux-gnu")
"""Debian's folder name of each machine that NVIDIA has Linux drivers for."""

LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    *(f"/usr/lib/{triplet}{sub}" for triplet in TRIPLETS for sub in ("", "/nvidia/current")),
    "/lib64",
    *(f"/lib/{triplet}{sub}" for triplet in TRIPLETS for sub in ("", "/nvidia/current")),
    "/usr/lib",  # Bottlerocket
    "/usr/lib/nvidia/tesla",  # Bottlerocket with R570 and older
    "/usr/local/lib",  # Talos
    "/usr/local/glibc/usr/lib",  # Talos before 1.13
    "/opt/nvidia/current/usr/lib64",  # Flatcar's nvidia.service
    "/run/opengl-driver/lib",  # NixOS
    "/",
)
"""Folders below a driver root that are searched for libraries; the linker's cache comes after them."""

PROGRAM_FOLDERS: Final = (
    "/opt/bin",  # Flatcar's nvidia.service
    "/usr/bin",
    "/usr/sbin",
    "/bin",
    "/sbin",
    "/usr/local/bin",  # Talos
    "/usr/local/sbin",
    "/usr/libexec/nvidia/tesla/bin",  # Bottlerocket before the programs moved to /usr/bin
    "/run/current-system/sw/bin",  # NixOS
)
"""Folders below a driver root that are searched for programs."""

SEARCHED_BY_CONTAINERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
"""The usual PATH of images: a program in another folder is mounted in /usr/bin."""
