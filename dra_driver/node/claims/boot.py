"""The id of the node's current boot: ``/proc/sys/kernel/random/boot_id``, which is the same in every container."""

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_boot_id(path: Path = BOOT_ID) -> str:
    """The boot id; "" when it cannot be read. No entry then counts as one of an earlier boot."""
    try:
        return path.read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
