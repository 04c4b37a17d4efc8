"""Which boot of the node this is.

Owns reading the kernel's id of the running boot (``/proc/sys/kernel/random/boot_id``, the same in every container).
"""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """The id, or '' when the kernel does not tell: then nothing is ever taken for an earlier boot's."""
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
