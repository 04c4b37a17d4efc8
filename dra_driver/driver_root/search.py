"""Find ``libnvidia-ml.so.1`` below a driver root.

Links are followed as if the root were ``/``: in a driver container or behind a host mount, an absolute link points into
the root and not into this process' file system.
"""

import stat
from pathlib import Path

SONAME = "libnvidia-ml.so.1"
# The folders that NVIDIA's container toolkit searches, in its order; the linker cache of the root is not consulted.
FOLDERS = (
    "",
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
)
MAX_LINKS = 40  # as the kernel's limit on nested links


def find_library(driver_root: str) -> str | None:
    """Full path, links followed, of the driver's NVML library below ``driver_root``; None when there is none.

    The file's own name ends in the driver version, so after a driver upgrade the path differs and the dynamic linker
    loads the new library and does not reuse the one that it loaded under the old name.
    """
    root = Path(driver_root)
    for folder in FOLDERS:
        found = resolve_below(root, f"{folder}/{SONAME}")
        if found is not None and _is_file(found):
            return str(found)
    return None


def resolve_below(root: Path, path: str) -> Path | None:
    """``path`` below ``root`` with every link followed inside ``root``; None when it does not exist or links loop.

    ``..`` never leaves the root. The path existed during the call; it may be gone afterwards.
    """
    pending = [part for part in reversed(path.split("/")) if part]
    done: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == ".":
            continue
        if part == "..":
            done = done[:-1]
            continue
        here = root.joinpath(*done, part)
        try:
            mode = here.lstat().st_mode
            target = str(here.readlink()) if stat.S_ISLNK(mode) else None
        except OSError:
            return None
        if target is None:
            done.append(part)
            continue
        links += 1
        if links > MAX_LINKS:
            return None
        if target.startswith("/"):
            done = []
        pending += [piece for piece in reversed(target.split("/")) if piece]
    return root.joinpath(*done)


def _is_file(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
