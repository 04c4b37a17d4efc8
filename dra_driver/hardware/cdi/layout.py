"""Names of the files of NVIDIA's drivers, and folders of all but libraries and programs, as data.

Sources: NVIDIA's driver README ("Installed components") and Container Toolkit documentation for the
files; ``ld.so(8)`` for the loader's default folders; the FHS and Debian's multiarch layout for the rest.

Left out on purpose: 32-bit libraries, modules of the X server (which does not run in a container with a GPU claim), and
generic glvnd libraries (the image has its own).
"""

from dra_driver.hardware.cdi.elf import EM_AARCH64, EM_X86_64
from dra_driver.hardware.driver_root.folders import TRIPLETS

MULTIARCH = dict(zip((EM_X86_64, EM_AARCH64), TRIPLETS, strict=True))
"""Debian's folder name of each machine that NVIDIA has Linux drivers for."""

VERSIONED_EXTRAS = (
    "libnvidia-egl-gbm.so.",
    "libnvidia-egl-wayland.so.",
    "libnvidia-egl-wayland2.so.",
    "libnvidia-egl-xcb.so.",
    "libnvidia-egl-xlib.so.",
    "libnvidia-nvvm70.so.",
)
"""Prefixes of libraries that come with the driver but have their own version."""

DEVELOPMENT_NAMES = {
    stem: (f"{stem}.so",)
    for stem in ("libcuda", "libnvidia-ml", "libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow")
}
"""Libraries that programs also open by their plain ``.so`` name."""

ALIASES = {
    **DEVELOPMENT_NAMES,
    "libGLX_nvidia": ("libGLX_indirect.so.0",),
    "libnvidia-allocator": ("gbm/nvidia-drm_gbm.so",),
}
"""Further names of a library, relative to its folder."""

MPS_PROGRAMS = ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
BINARIES = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    *MPS_PROGRAMS,
    "nvidia-imex",
    "nvidia-imex-ctl",
)

SOCKETS = ("nvidia-persistenced/socket", "nvidia-fabricmanager/socket")
SOCKET_FOLDERS = ("/run", "/var/run")

CONFIG_FOLDERS = ("/etc", "/usr/local/share", "/usr/share")
CONFIGS = {
    "/usr/share": (
        "glvnd/egl_vendor.d/10_nvidia.json",
        "egl/egl_external_platform.d/15_nvidia_gbm.json",
        "egl/egl_external_platform.d/10_nvidia_wayland.json",
        "egl/egl_external_platform.d/09_nvidia_wayland2.json",
        "egl/egl_external_platform.d/20_nvidia_xcb.json",
        "egl/egl_external_platform.d/20_nvidia_xlib.json",
        "nvidia/nvoptix.bin",
    ),
    "/etc": (
        "OpenCL/vendors/nvidia.icd",
        "vulkan/icd.d/nvidia_icd.json",
        "vulkan/icd.d/nvidia_layers.json",
        "vulkan/implicit_layer.d/nvidia_layers.json",
    ),
}
"""Configuration files by the container folder that they go to; each is searched in `CONFIG_FOLDERS`."""

FIRMWARE_FOLDERS = ("/lib/firmware/updates", "/lib/firmware")
"""Each is searched with and without the running kernel's release below it, as the kernel itself does."""
