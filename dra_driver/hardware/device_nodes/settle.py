"""Bring one node and its link into the state that they should have, and say what could not be done."""

from typing import Final

from msgspec import Struct

from dra_driver.hardware.device_nodes.folder import DevFolder, Found, LinkState, Seen, link_end, link_state
from dra_driver.hardware.device_nodes.judge import judge
from dra_driver.hardware.device_nodes.names import CAPABILITIES, char_link, char_target
from dra_driver.hardware.device_nodes.numbers import NodeNumbers
from dra_driver.hardware.device_nodes.params import NodeParams

_CHAR: Final = "/dev/char"


class Settled(Struct, frozen=True, kw_only=True):
    """How it went. ``mode`` is that of the node, if it is there.

    ``missing``: why there is no node. ``refusal``: what is there instead, which a container must not get.
    """

    mode: int | None = None
    missing: str | None = None
    refusal: str | None = None


def settle_node(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams) -> Settled:
    """Make the node unless it is there, or replace one with other numbers, as far as ``params`` allow. No OSError."""
    try:
        if path.startswith(f"{CAPABILITIES}/") and dev.look(CAPABILITIES).found is Found.LINK:
            return Settled(refusal=f"{CAPABILITIES} is a symbolic link, expected a folder")
        seen = dev.look(path)
        behind = link_end(dev, path) if seen.found is Found.LINK else None
    except OSError as error:
        return Settled(missing=f"it cannot be looked at: {error.strerror}")
    verdict = judge(numbers, seen, params, behind)
    if verdict.make:
        return _make(dev, path, numbers, params, seen)
    if verdict.missing or verdict.refusal:
        return Settled(missing=verdict.missing, refusal=verdict.refusal)
    return Settled(mode=seen.mode if seen.numbers == numbers else params.mode)


def _make(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams, seen: Seen) -> Settled:
    try:
        if path.startswith(f"{CAPABILITIES}/"):
            dev.make_folder(CAPABILITIES)
        replace = seen.numbers is not None
        dev.make_node(path, numbers, mode=params.mode, uid=params.uid, gid=params.gid, replace=replace)
    except OSError as error:
        if _appeared(dev, path, numbers):
            return Settled(mode=params.mode)
        if seen.numbers is None:
            return Settled(missing=f"it cannot be made: {error.strerror}")
        has = f"{seen.numbers.major}:{seen.numbers.minor}"
        return Settled(refusal=f"it has the device numbers {has} and cannot be replaced: {error.strerror}")
    return Settled(mode=params.mode)


def _appeared(dev: DevFolder, path: str, numbers: NodeNumbers) -> bool:
    """Whether another program made the same node meanwhile."""
    try:
        return dev.look(path).numbers == numbers
    except OSError:
        return False


def settle_link(dev: DevFolder, path: str, numbers: NodeNumbers) -> str | None:
    """Make the node's link in ``/dev/char`` unless it leads there; why that failed, or None. No OSError.

    A link that leads elsewhere in ``/dev`` is replaced: its name is a number that belongs to this node. Links out of
    ``/dev`` and files of other kinds are left alone.
    """
    try:
        match link_state(dev, numbers):
            case LinkState.RIGHT | LinkState.UNSEEN:
                return None
            case LinkState.FOREIGN:
                return f"{char_link(numbers)} is not a symbolic link"
        dev.make_folder(_CHAR)
        dev.make_link(char_link(numbers), char_target(path))
    except OSError as error:
        return f"{char_link(numbers)} cannot be made: {error.strerror}"
    return None
