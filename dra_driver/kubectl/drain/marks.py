"""Reads and changes the annotations of a Node that ask for a drain and for a detach.

Each change is a merge patch that holds for one resourceVersion: two people who drain at once do not undo each other.
"""

import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, ConflictError, NotFoundError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, MAX_LENGTH, DrainRequest, clean
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube import paths
from dra_driver.kubectl.drain.view import DrainApi

DETACH_REASON: Final = "kubectl dra drain"
"""How the reason of a detach begins that ``drain`` asks for; ``undrain`` ends only those. A number follows, and the
UUIDs of the GPUs where it was asked for single ones: it stays until the last of them is given back."""
_TRIES: Final = 10


Annotations = Mapping[str, str]


def annotations_of(api: DrainApi, node: str) -> Annotations:
    """Raises ConfigurationError for a node that does not exist."""
    return _annotations(_node(api, node))


def change_drain(api: DrainApi, node: str, change: Callable[[DrainRequest], DrainRequest]) -> tuple[str | None, bool]:
    """The drain annotation's value after ``change``, and whether it was another one before."""

    def decide(found: Annotations) -> str | None:
        text = change(DrainRequest.of(found.get(DRAIN_ANNOTATION))).text
        if text is not None and len(text) >= MAX_LENGTH:
            raise ConfigurationError(f"--gpu: too many GPUs for annotation {DRAIN_ANNOTATION}; drain the whole node")
        return text

    return _change(api, node, DRAIN_ANNOTATION, decide)


class DetachEnd(Struct, frozen=True, kw_only=True):
    """What became of a detach. ``ended``: it was of ``drain`` and is over. ``foreign`` is the reason of one that stays
    because something else asked for it; ``needed_by`` are the drained GPUs for which one of ``drain`` stays."""

    ended: bool
    foreign: str | None = None
    needed_by: tuple[GpuUuid, ...] = ()


def ask_detach(api: DrainApi, node: str, gpus: Iterable[GpuUuid] | None) -> str:
    """Ask for a detach for these GPUs (None: the whole node), unless something else asks for one.

    Returns the reason that is in force, as events tell it. One of this command gets a new number each time, by which
    its event is known.
    """
    fresh = f"{DETACH_REASON} {secrets.token_hex(4)}"

    def decide(found: Annotations) -> str:
        foreign = _foreign_reason(found)
        if foreign is not None:
            return foreign  # an empty one asks as well
        return fresh if gpus is None else f"{fresh} {','.join(sorted({*gpus, *_needed_by(found)}))}"

    reason, _ = _change(api, node, DETACH_ANNOTATION, decide)
    return clean(reason or "")


def end_detach(api: DrainApi, node: str) -> DetachEnd:
    """End a detach that ``drain`` asked for, unless it is needed by a GPU that is still drained."""
    needed_by: tuple[GpuUuid, ...] = ()

    def decide(found: Annotations) -> str | None:
        nonlocal needed_by
        needed_by = _needed_by(found)
        return found[DETACH_ANNOTATION] if needed_by else _foreign_reason(found)

    left, changed = _change(api, node, DETACH_ANNOTATION, decide)
    foreign = None if left is None or needed_by else clean(left)
    return DetachEnd(ended=changed, foreign=foreign, needed_by=needed_by)


def _needed_by(found: Annotations) -> tuple[GpuUuid, ...]:
    """The drained GPUs for which ``drain`` asked for a detach.

    A reason without GPUs, as older versions wrote it for single ones too, counts for all that are drained.
    """
    reason = found.get(DETACH_ANNOTATION, "")
    if not _is_own(reason):
        return ()
    drained = DrainRequest.of(found.get(DRAIN_ANNOTATION)).gpus
    asked = DrainRequest.of(reason.rpartition(" ")[2]).gpus
    return tuple(sorted(drained & asked if asked else drained))


def _foreign_reason(found: Annotations) -> str | None:
    reason = found.get(DETACH_ANNOTATION)
    if reason is None or reason.lower() == "false" or _is_own(reason):
        return None
    return reason


def _is_own(reason: str) -> bool:
    return reason.startswith(DETACH_REASON)


def _change(api: DrainApi, node: str, key: str, decide: Callable[[Annotations], str | None]) -> tuple[str | None, bool]:
    for tried in range(1, _TRIES + 1):
        item = _node(api, node)
        found = _annotations(item)
        wanted, version = decide(found), (item.get("metadata") or {}).get("resourceVersion")
        if wanted == found.get(key):
            return wanted, False
        try:
            api.merge_patch(paths.node(node), {"metadata": {"resourceVersion": version, "annotations": {key: wanted}}})
        except ConflictError:
            if tried == _TRIES:
                raise
            continue
        return wanted, True
    raise AssertionError("unreachable")


def _node(api: DrainApi, node: str) -> Mapping[str, Any]:
    try:
        return api.get(paths.node(node))
    except NotFoundError as error:
        raise ConfigurationError(f"node {node[:253]!r} does not exist: kubectl get nodes") from error


def _annotations(item: Mapping[str, Any]) -> Annotations:
    found = (item.get("metadata") or {}).get("annotations")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
