"""Remove every trace of this driver from a node: undo changes of GPUs, then remove files, sockets and mounts.

Refuses, and removes nothing, in these cases: a node process or an MPS host runs; a claim is prepared in this boot or
could be (the journal is damaged or new, and claims have CDI files); a change of a GPU cannot be undone.

Removes only names that a version of this driver writes, because NVIDIA's driver can share the directories. Device
nodes in /dev stay: they belong to the NVIDIA driver.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import listed
from dra_driver.diagnose.node_state.state import NodeState, Places, cdi_files, read_state, socket_paths
from dra_driver.diagnose.node_state.stopped import no_mps_host, no_node_process, stopped_node
from dra_driver.hardware.sharing.memory import SystemMounts, own_mounts
from dra_driver.hardware.sharing.safe_rmtree import remove_tree
from dra_driver.node.claims import Claims
from dra_driver.node.claims.inspection import Entry, State
from dra_driver.node.process.node_claims import METADATA

log = logging.getLogger(__name__)

# Patterns of names in the plugin directory. Locks come last: they keep a node process from starting until then.
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
    *_REPLACED,
    "health.json.damaged",
    "health.lock",
    "last-known-gpus.json.damaged",
    "detach",
    "simulated-gpus.json.lock",
    "simulated-gpus.json.open",
    "simulated-usage.json.lock",
    *(f".{name}.????????.tmp" for name in _REPLACED),  # of a process that was killed in `files.replace_file`
)
_FOLDERS: Final = ("made", "mps", "usage", "locks", "simulated-root", METADATA)
_LOCKS: Final = ("state.db.lock", "owner-*.lock", "instances.lock", "instances.lock.next", "process.lock")

Unmount = Callable[[Path], None]
"""Unmounts the path. Raises OSError."""


class Leftover(Struct, frozen=True, kw_only=True):
    """One trace. ``remove`` raises OSError, and succeeds if the trace no longer exists."""

    what: str
    path: Path
    remove: Callable[[], None]


def find_leftovers(places: Places, unmount: Unmount) -> Iterator[Leftover]:
    """All traces in the order of removal."""
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
    """Files in the plugin directory that this driver did not create."""
    sockets = {path for path in socket_paths(places) if path.parent == places.plugin}
    own = sockets.union(*(places.plugin.glob(name) for name in (*_FILES, *_FOLDERS, *_LOCKS)))
    return tuple(sorted(path for path in places.plugin.glob("*") if path not in own)) if places.plugin.is_dir() else ()


def _memory(places: Places, unmount: Unmount) -> Iterator[Leftover]:
    """File systems in memory of MPS daemons, their directories, and the directory of earlier versions."""
    for path in sorted(own_mounts()):
        if path.parent == places.run:
            yield Leftover(what="mount", path=path, remove=partial(unmount, path))
    for folder in (places.run, places.shm):
        # /dev/shm is writable for all users: a directory of that name by another user is not this driver's.
        if folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.geteuid():
            yield _folder("folder", folder)


def _file(what: str, path: Path) -> Leftover:
    return Leftover(what=what, path=path, remove=lambda: path.unlink(missing_ok=True))


def _folder(what: str, path: Path) -> Leftover:
    return Leftover(what=what, path=path, remove=partial(remove_tree, path))


class Cleanup(Struct, frozen=True, kw_only=True):
    """The changes, done or planned: a message for each GPU change to undo, and for each trace to remove.

    ``kept`` are files of other programs in the plugin directory, ``problems`` traces that could not be removed.
    """

    undone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def clean_up(
    settings: NodeSettings, places: Places, *, dry_run: bool = False, unmount: Unmount | None = None
) -> Cleanup:
    """Remove everything, or list the removals. Raises ConfigurationError if it refuses. Repeatable."""
    state = read_state(places)
    if refusals := list(_refusals(state)):
        raise ConfigurationError(f"nothing was removed: {'; '.join(refusals)}", reason="CleanupRefused")
    unmount = unmount or SystemMounts().unmount
    undone, kept = tuple(_changes(state)), foreign_files(places)
    found = tuple(f"{each.what} {each.path}" for each in find_leftovers(places, unmount))
    if dry_run or not (state.exists or found):
        return Cleanup(undone=undone, removed=found, kept=kept)
    _make_folder(places.plugin)
    with no_node_process(places.plugin):
        if state.journal.path.exists() or state.backups:
            with stopped_node(settings) as claims:
                _undo(claims)
        with no_mps_host(places.mps):  # one may have started since the check
            removed, problems = _remove(find_leftovers(places, unmount))
    return Cleanup(undone=undone, removed=removed, kept=kept, problems=problems)


def _make_folder(path: Path) -> None:
    """Create the directory of the lock against a starting node process, if an administrator removed it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(
            f"nothing was removed: cannot create {path}: {error.strerror}", reason="NoLock"
        ) from error


def _remove(leftovers: Iterable[Leftover]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    removed, problems = list[str](), list[str]()
    for each in list(leftovers):
        try:
            each.remove()
        except OSError as error:
            problems.append(f"cannot remove {each.what} {each.path}: {error.strerror or error}")
        else:
            removed.append(f"{each.what} {each.path}")
    return tuple(removed), tuple(problems)


def _refusals(state: NodeState) -> Iterator[str]:
    if state.runs:
        yield "a node process runs on this node; delete the DaemonSet dra-driver-node first"
    if state.mps.host_lives:
        yield "an MPS host runs on this node; delete the DaemonSet dra-driver-mps-host first"
    served = [str(found.path) for found in state.sockets if found.served]
    if served and not state.runs:
        yield f"another process serves {', '.join(served)}"
    content = state.journal.content
    if (content is None or content.rebuild_pending) and state.cdi.claims:
        seen = state.journal.problem or "the journal is missing or new"
        yield (
            f"{seen}, and {len(state.cdi.claims)} claims have CDI files, so prepared claims are unknown: start the "
            "node process again, delete the pods with GPUs, and retry"
        )
    held = [entry for entry in (content.entries if content else ()) if not state.is_of_earlier_boot(entry)]
    if held:
        yield _prepared(held)


def _prepared(held: Sequence[Entry]) -> str:
    names = listed([f"{entry.ref.namespace}/{entry.ref.name}" for entry in held], 5)
    states = "prepared" if all(entry.state is State.PREPARED for entry in held) else "prepared or in progress"
    advice = "delete their pods while the node process runs, or drain the node"
    return f"claims are {states}: {names}; {advice}"


def _changes(state: NodeState) -> Iterator[str]:
    content = state.journal.content
    if content is None:
        return
    for note in content.notes:
        yield f"GPU {note.gpu}: {note.key} ({note.value})"
    for orphan in content.orphans:
        yield f"GPU {orphan.partition.id.gpu_uuid}: partition {orphan.partition.id}"


def _undo(claims: Claims) -> None:
    """Restore GPUs. Raises ConfigurationError if a change remains that only the journal records."""
    problems = list(claims.service.recover().problems)
    claims.service.reclaim_orphans()
    if held := claims.journal.entries():
        raise ConfigurationError(f"no file was removed: {_prepared(held)}", reason="ClaimsPrepared")
    left = [f"{', '.join(sorted(keys))} of GPU {gpu}" for gpu, keys in sorted(claims.journal.noted_gpus().items())]
    left += [f"partition {orphan.partition.id}" for orphan in claims.journal.orphaned_partitions()]
    if left or claims.service.rebuild_pending:
        why = "; ".join(dict.fromkeys(problems)) or "see the log"
        raise ConfigurationError(
            f"no file was removed, because the driver's changes cannot be undone now: "
            f"{', '.join(left) or 'the journal is new'}: "
            f"{why}; make the NVIDIA driver work, end all programs that use the GPUs, and retry",
            reason="ChangesNotUndone",
        )
