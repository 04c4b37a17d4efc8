"""The SELinux label with which containers may use a file of the host.

A file that the MPS host makes has a type that confined containers must not touch. NVIDIA's device plugin labels its
folder of pipes with the same type (k8s-device-plugin, cmd/mps-control-daemon/mps/daemon.go). A file system that is
mounted with ``context=`` has the label on all files, also on those that are made later (mount(8)); it has no
categories, so containers of all pods may use it.
"""

from pathlib import Path
from typing import Final

LABEL: Final = "system_u:object_r:container_file_t:s0"
_FOLDER: Final = Path("/sys/fs/selinux")
_OWN: Final = Path("/proc/self/attr/current")
_PARTS: Final = 3
"""A label has user, role and type at least; what other security modules write there has no colons."""


def container_label(folder: Path = _FOLDER, own: Path = _OWN) -> str | None:
    """The label, None where SELinux is off or has no policy. Also containers see the folder if the kernel has it on."""
    if not folder.is_dir():
        return None
    try:
        label = own.read_text(errors="replace")
    except OSError:
        return None
    return LABEL if len(label.rstrip("\0\n").split(":")) >= _PARTS else None
