"""Reads and changes the annotations of a Node that ask for a drain and for a detach.

Each change is a merge patch that holds for one resourceVersion: two people who drain at once do not undo each other.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from dra_driver.errors import ConfigurationError, ConflictError, NotFoundError
from dra_driver.kube import paths
from dra_driver.model.drain import DETACH_ANNOTATION, DRAIN_ANNOTATION, MAX_LENGTH, DrainRequest, clean

DETACH_REASON: Final = "kubectl dra drain"
"""How the reason of a detach begins that ``drain`` asks for; ``undrain`` ends only those."""
_TRIES: Final = 10


class NodeApi(Protocol):
    """The part of ``kube.rest.RestClient`` that is needed here."""

    def get(self, path: str) -> dict[str, Any]: ...
    def merge_patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...


Annotations = Mapping[str, str]


def annotations_of(api: NodeApi, node: str) -> Annotations:
    """Raises ConfigurationError for a node that does not exist."""
    return _annotations(_node(api, node))


def change_drain(api: NodeApi, node: str, change: Callable[[DrainRequest], DrainRequest]) -> tuple[str | None, bool]:
    """The drain annotation's value after ``change``, and whether it was another one before."""

    def decide(found: Annotations) -> str | None:
        text = change(DrainRequest.of(found.get(DRAIN_ANNOTATION))).text
        if text is not None and len(text) >= MAX_LENGTH:
            raise ConfigurationError(f"--gpu: too many GPUs for annotation {DRAIN_ANNOTATION}; drain the whole node")
        return text

    return _change(api, node, DRAIN_ANNOTATION, decide)


def ask_detach(api: NodeApi, node: str) -> str:
    """Ask for a detach, unless another one does; returns the reason that is in force, as events tell it.

    A reason of this command gets a new number each time, by which its event is known.
    """
    fresh = f"{DETACH_REASON} {secrets.token_hex(4)}"

    def decide(found: Annotations) -> str:
        foreign = _foreign_reason(found)
        return fresh if foreign is None else foreign  # an empty one asks as well

    reason, _ = _change(api, node, DETACH_ANNOTATION, decide)
    return clean(reason or "")


def end_detach(api: NodeApi, node: str) -> tuple[bool, str | None]:
    """End a detach that ``drain`` asked for: whether there was one, and the reason of one that stays, as it is told."""
    left, changed = _change(api, node, DETACH_ANNOTATION, _foreign_reason)
    return changed, None if left is None else clean(left)


def _foreign_reason(found: Annotations) -> str | None:
    reason = found.get(DETACH_ANNOTATION)
    if reason is None or reason.lower() == "false" or reason.startswith(DETACH_REASON):
        return None
    return reason


def _change(api: NodeApi, node: str, key: str, decide: Callable[[Annotations], str | None]) -> tuple[str | None, bool]:
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


def _node(api: NodeApi, node: str) -> Mapping[str, Any]:
    try:
        return api.get(paths.node(node))
    except NotFoundError as error:
        raise ConfigurationError(f"node {node[:253]!r} does not exist: kubectl get nodes") from error


def _annotations(item: Mapping[str, Any]) -> Annotations:
    found = (item.get("metadata") or {}).get("annotations")
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, Mapping) else {}
