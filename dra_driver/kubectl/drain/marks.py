"""Reads and changes the annotations of a Node that ask for a drain and for a detach."""

import secrets
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, MAX_LENGTH, DrainRequest, clean
from dra_driver.core.model.ids import GpuUuid
from dra_driver.kube.node_annotation import Annotations, NodeApi, change_annotation

DETACH_REASON: Final = "kubectl dra drain"
"""How the reason of a detach begins that ``drain`` asks for; ``undrain`` ends only those. A number follows, and the
UUIDs of the GPUs where it was asked for single ones: it stays until the last of them is given back."""


def change_drain(api: NodeApi, node: str, change: Callable[[DrainRequest], DrainRequest]) -> tuple[str | None, bool]:
    """The drain annotation's value after ``change``, and whether it was another one before."""

    def decide(found: Annotations) -> str | None:
        text = change(DrainRequest.of(found.get(DRAIN_ANNOTATION))).text
        if text is not None and len(text) >= MAX_LENGTH:
            raise ConfigurationError(f"--gpu: too many GPUs for annotation {DRAIN_ANNOTATION}; drain the whole node")
        return text

    return change_annotation(api, node, DRAIN_ANNOTATION, decide)


class DetachEnd(Struct, frozen=True, kw_only=True):
    """What became of a detach. ``ended``: it was of ``drain`` and is over. ``foreign`` is the reason of one that stays
    because something else asked for it; ``needed_by`` are the drained GPUs for which one of ``drain`` stays."""

    ended: bool
    foreign: str | None = None
    needed_by: tuple[GpuUuid, ...] = ()


def ask_detach(api: NodeApi, node: str, gpus: Iterable[GpuUuid] | None) -> str:
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

    reason, _ = change_annotation(api, node, DETACH_ANNOTATION, decide)
    return clean(reason or "")


def end_detach(api: NodeApi, node: str) -> DetachEnd:
    """End a detach that ``drain`` asked for, unless it is needed by a GPU that is still drained."""
    needed_by: tuple[GpuUuid, ...] = ()

    def decide(found: Annotations) -> str | None:
        nonlocal needed_by
        needed_by = _needed_by(found)
        return found[DETACH_ANNOTATION] if needed_by else _foreign_reason(found)

    left, changed = change_annotation(api, node, DETACH_ANNOTATION, decide)
    foreign = None if left is None or needed_by else clean(left)
    return DetachEnd(ended=changed, foreign=foreign, needed_by=needed_by)


def _needed_by(found: Annotations) -> tuple[GpuUuid, ...]:
    """The drained GPUs for which ``drain`` asked for a detach.

    A reason without GPUs, as older versions wrote it for single ones too, counts for all that are drained.
    """
    reason = found.get(DETACH_ANNOTATION, "")
    if not reason.startswith(DETACH_REASON):
        return ()
    drained = DrainRequest.of(found.get(DRAIN_ANNOTATION)).gpus
    asked = DrainRequest.of(reason.rpartition(" ")[2]).gpus
    return tuple(sorted(drained & asked if asked else drained))


def _foreign_reason(found: Annotations) -> str | None:
    reason = found.get(DETACH_ANNOTATION)
    if reason is None or reason.lower() == "false" or reason.startswith(DETACH_REASON):
        return None
    return reason
