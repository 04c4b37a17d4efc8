"""Every trace that this driver leaves in the file system of a node, and how each is removed.

Only names that a version of this driver writes are listed: another driver may share the folders, NVIDIA's the plugin
folder itself. Device nodes in /dev stay: they are the NVIDIA driver's, also those that this driver made.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.diagnose.node_state.places import Places
from dra_driver.diagnose.node_state.reading import cdi_files, socket_paths
from dra_driver.hardware.sharing.safe_rmtree import remove_tree
from dra_driver.hardware.sharing.tmpfs import own_mounts

# Names in the plugin folder, as patterns. Locks come last: they keep a node process from starting meanwhile.
_REPLACED: Final = (
    "claim-names",
    "claim-status.json",
    "policies-in-force.json",
    "health.json",
    "last-known-gpus.json",
    "second-publisher.json",
    "simulated-gpus.json",
    "simulated-usage.json",
)
_FILES: Final = (
    "state.db",
    "state.db-wal",
    "state.db-shm",
    "state.db.damaged-*",
    "claim-names",
    "claim-status.json",
    "policies-in-force.json",
    "health.json",
    "health.json.damaged",
    "health.lock",
    "last-known-gpus.json",
    "last-known-gpus.json.damaged",
    "detach",
    "second-publisher.json",
    "simulated-gpus.json",
    "simulated-gpus.json.lock",
    "simulated-gpus.json.open",
    "simulated-usage.json",
    "simulated-usage.json.lock",
    *(f".{name}.????????.tmp" for name in _REPLACED),  # of a process that died in `files.replace_file`
)
_FOLDERS: Final = ("made", "mps", "usage", "locks", "simulated-root")
_LOCKS: Final = ("state.db.lock", "owner-*.lock", "instances.lock", "instances.lock.next", "process.lock")

Unmount = Callable[[Path], None]
"""Unmounts what is at the path. Raises OSError."""


class Leftover(Struct, frozen=True, kw_only=True):
    """One trace. ``remove`` raises OSError; a trace that is gone already is success."""

    what: str
    path: Path
    remove: Callable[[], None]


def find_leftovers(places: Places, unmount: Unmount) -> Iterator[Leftover]:
    """All traces in the order in which they have to be removed."""
    for path in cdi_files(places):
        yield _file("CDI file", path)
    for path in socket_paths(places):
        yield _file("socket", path)
    yield from _memory(places, unmount)
    for pattern in _FILES:
        for path in sorted(places.plugin.glob(pattern)):
            yield _file("file", path)
    for name in _FOLDERS:
        if (places.plugin / name).is_dir():
            yield _folder("folder", places.plugin / name)
    for pattern in _LOCKS:
        for path in sorted(places.plugin.glob(pattern)):
            yield _file("lock file", path)
    if places.plugin.is_dir() and not foreign_files(places):
        yield Leftover(what="folder", path=places.plugin, remove=places.plugin.rmdir)


def foreign_files(places: Places) -> tuple[Path, ...]:
    """What is in the plugin folder and not this driver's."""
    sockets = {path for path in socket_paths(places) if path.parent == places.plugin}
    own = sockets.union(*(places.plugin.glob(name) for name in (*_FILES, *_FOLDERS, *_LOCKS)))
    return tuple(sorted(path for path in places.plugin.glob("*") if path not in own)) if places.plugin.is_dir() else ()


def _memory(places: Places, unmount: Unmount) -> Iterator[Leftover]:
    """File systems in memory of MPS daemons, their folders, and the folder of earlier versions."""
    for path in sorted(own_mounts()):
        if path.parent == places.run:
            yield Leftover(what="mount", path=path, remove=partial(unmount, path))
    for folder in (places.run, places.shm):
        # /dev/shm is open to all users: a folder of that name that another user made is not this driver's.
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
            yield _folder("folder", folder)


def _file(what: str, path: Path) -> Leftover:
    return Leftover(what=what, path=path, remove=lambda: path.unlink(missing_ok=True))


def _folder(what: str, path: Path) -> Leftover:
    return Leftover(what=what, path=path, remove=partial(remove_tree, path))
