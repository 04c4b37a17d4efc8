"""Removes every trace of this driver from a node: changes of GPUs are undone, then files, sockets and mounts go.

It refuses while a node process or an MPS host runs, while a claim is prepared in this boot, and while that is not known
(the journal is damaged or new, and there are CDI files of claims). Nothing is removed in these cases. What cannot be
undone on a GPU, because its driver is missing, also stops it: with the journal the right to undo it would be lost.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.node_state.leftovers import Leftover, Unmount, find_leftovers, foreign_files
from dra_driver.diagnose.node_state.places import Places
from dra_driver.diagnose.node_state.reading import read_state
from dra_driver.diagnose.node_state.state import NodeState
from dra_driver.diagnose.node_state.stopped import no_mps_host, no_node_process, stopped_node
from dra_driver.hardware.sharing.tmpfs import SystemMounts
from dra_driver.node.claims import Claims
from dra_driver.node.claims.inspection import Entry, State

log = logging.getLogger(__name__)

_MOST_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What was done, or would be: a sentence for each GPU change that is undone, and for each trace that is removed.

    ``kept`` are foreign files in the plugin folder, ``problems`` what could not be removed.
    """

    undone: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    kept: tuple[Path, ...] = ()
    problems: tuple[str, ...] = ()


def clean_up(
    settings: NodeSettings, places: Places, *, dry_run: bool = False, unmount: Unmount | None = None
) -> Cleanup:
    """Remove everything, or say what would be removed. Raises ConfigurationError when it refuses. Repeatable."""
    state = read_state(places)
    if refusals := list(_refusals(state)):
        raise ConfigurationError(f"nothing was removed: {'; '.join(refusals)}")
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
        with no_mps_host(places.mps):  # one may have started since the look
            removed, problems = _remove(find_leftovers(places, unmount))
    return Cleanup(undone=undone, removed=removed, kept=kept, problems=problems)


def _make_folder(path: Path) -> None:
    """For the lock that keeps a node process from starting, where a person has removed the folder."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"nothing was removed: cannot create {path}: {error.strerror}") from error


def _remove(leftovers: Iterable[Leftover]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What was removed, and sentences about what was not."""
    removed, problems = list[str](), list[str]()
    for each in list(leftovers):
        try:
            each.remove()
        except OSError as error:
            problems.append(f"{each.what} {each.path} cannot be removed: {error.strerror or error}")
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
            f"{seen}, and {len(state.cdi.claims)} claims have CDI files, so it is not known what is prepared: start "
            "the node process again, delete the pods with GPUs, and try again"
        )
    held = [entry for entry in (content.entries if content else ()) if not _is_over(state, entry.boot_id)]
    if held:
        yield _prepared(held)


def _prepared(held: Sequence[Entry]) -> str:
    names = [f"{entry.ref.namespace}/{entry.ref.name}" for entry in held[:_MOST_NAMED]]
    more = f" and {len(held) - _MOST_NAMED} more" if len(held) > _MOST_NAMED else ""
    states = "prepared" if all(entry.state is State.PREPARED for entry in held) else "prepared or in work"
    advice = "delete their pods while the node process runs, or drain the node"
    return f"claims are {states}: {', '.join(names)}{more}; {advice}"


def _is_over(state: NodeState, boot_id: str) -> bool:
    """No container outlives a reboot."""
    return bool(state.boot_id) and boot_id not in ("", state.boot_id)


def _changes(state: NodeState) -> Iterator[str]:
    content = state.journal.content
    if content is None:
        return
    for note in content.notes:
        yield f"GPU {note.gpu}: {note.key} ({note.value})"
    for orphan in content.orphans:
        yield f"GPU {orphan.partition.id.gpu_uuid}: partition {orphan.partition.id}"


def _undo(claims: Claims) -> None:
    """Restore GPUs. Raises ConfigurationError when something stays that only the journal knows."""
    problems = list(claims.service.recover().problems)
    claims.service.reclaim_orphans()
    if held := claims.journal.entries():
        raise ConfigurationError(f"no file was removed: {_prepared(held)}")
    left = [f"{', '.join(sorted(keys))} of GPU {gpu}" for gpu, keys in sorted(claims.journal.noted_gpus().items())]
    left += [f"partition {orphan.partition.id}" for orphan in claims.journal.orphaned_partitions()]
    if left or claims.service.rebuild_pending:
        why = "; ".join(dict.fromkeys(problems)) or "see the log"
        raise ConfigurationError(
            f"no file was removed, because the driver's changes cannot be undone now: "
            f"{', '.join(left) or 'the journal is new'}: "
            f"{why}; make the NVIDIA driver work and end what uses the GPUs, then try again"
        )
