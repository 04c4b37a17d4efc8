"""Which of the NVIDIA driver's device files this process has open.

The kernel module cannot be unloaded, a GPU not be unbound or reset, while any process has one open. NVML opens them and
has to close them at nvmlShutdown; another library in the process could keep one.
"""

import re
from pathlib import Path

OWN_DESCRIPTORS = "/proc/self/fd"
_DEVICE_FILE = re.compile(r"/dev/nvidia[^/]*(/.*)?$")  # also nvidia-caps/…, and below another root than /


def open_device_files(descriptors: str | Path = OWN_DESCRIPTORS) -> tuple[str, ...]:
    """Paths of the driver's device files behind the links in ``descriptors``, sorted; () where that cannot be read."""
    found = set()
    try:
        links = list(Path(descriptors).iterdir())
    except OSError:
        return ()
    for link in links:
        try:
            path = str(link.readlink())
        except OSError:  # closed meanwhile
            continue
        if _DEVICE_FILE.search(path):
            found.add(path)
    return tuple(sorted(found))
