"""Find the ``access`` file of a MIG capability by the minor of its node.

Source: NVIDIA's MIG User Guide, "Device Nodes and Capabilities": ``nvidia-caps/mig-minors`` lists the minors of all
possible instances as ``gpu0/gi1/ci0/access 13``; ``nvidia/capabilities/gpu0/mig/gi1/ci0/access`` is there while the
instance exists.
"""

import os
import re
from typing import Final

from msgspec import Struct

_LIMIT: Final = 4 << 20  # 32 GPUs with 135 lines of some 25 characters are 110 kB
_LINE: Final = re.compile(r"^gpu([0-9]{1,4})/(gi[0-9]{1,4}(?:/ci[0-9]{1,4})?)/access ([0-9]{1,7})$", re.MULTILINE)


class CapabilityFile(Struct, frozen=True, kw_only=True):
    """An access file. ``gone``: the module has such files, but not this one, so the instance does not exist."""

    path: str
    gone: bool


def capability_file(proc_driver: str, minor: int) -> CapabilityFile | None:
    """The file of ``nvidia-cap<minor>`` below ``/proc/driver``; None where the module lists none. Never raises."""
    try:
        with open(f"{proc_driver}/nvidia-caps/mig-minors", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            text = file.read(_LIMIT)
    except OSError:
        return None
    for gpu, instance, number in _LINE.findall(text):
        if int(number) == minor:
            folder = f"{proc_driver}/nvidia/capabilities"
            path = f"{folder}/gpu{gpu}/mig/{instance}/access"
            has_files = os.path.isdir(folder)  # noqa: PTH112
            return CapabilityFile(path=path, gone=not os.path.exists(path)) if has_files else None  # noqa: PTH110
    return None
