"""Ensure one device node and its link in ``/dev/char``: decide what is needed, do it, and report what failed."""

from typing import Final

from msgspec import Struct

from dra_driver.hardware.device_nodes.folder import DevFolder, Found, LinkState, Seen, link_end, link_state
from dra_driver.hardware.device_nodes.numbers import CAPABILITIES, NodeNumbers, char_link, char_target
from dra_driver.hardware.device_nodes.params import NodeParams


class Ensured(Struct, frozen=True, kw_only=True):
    """The node's ``mode``, or why there is none: it is ``missing``, or ``refusal`` names a different file, which a
    container must not get."""

    mode: int | None = None
    missing: str | None = None
    refusal: str | None = None


def present_node(
    numbers: NodeNumbers, seen: Seen, params: NodeParams, behind: NodeNumbers | None = None
) -> Ensured | None:
    """What is there in place of a node that should have ``numbers``; None if the node must be made. ``behind`` are the
    numbers at the end of a symbolic link."""
    if numbers in (seen.numbers, behind):
        return Ensured(mode=seen.mode if seen.numbers == numbers else params.mode)
    if seen.found is not Found.MISSING and (seen.found is not Found.DEVICE or seen.numbers is None):
        return Ensured(refusal=f"it is a {seen.found}")
    if params.modify:
        return None
    if seen.numbers is None:
        return Ensured(missing=f"must not be made: {_forbidden(params)}")
    has = f"it has the device numbers {seen.numbers.major}:{seen.numbers.minor}"
    return Ensured(refusal=f"{has} and must not be replaced: {_forbidden(params)}")


def _forbidden(params: NodeParams) -> str:
    if params.problem is not None:
        return params.problem
    return "the NVIDIA module was loaded with NVreg_ModifyDeviceFiles=0"


_CHAR: Final = "/dev/char"


def ensure_node(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams) -> Ensured:
    """Make the node unless it is there, or replace one with other numbers, as far as ``params`` allow. No OSError."""
    try:
        if path.startswith(f"{CAPABILITIES}/") and dev.look(CAPABILITIES).found is Found.LINK:
            return Ensured(refusal=f"{CAPABILITIES} is a symbolic link, expected a folder")
        seen = dev.look(path)
        behind = link_end(dev, path) if seen.found is Found.LINK else None
    except OSError as error:
        return Ensured(missing=f"it cannot be looked at: {error.strerror}")
    return present_node(numbers, seen, params, behind) or _make(dev, path, numbers, params, seen)


def _make(dev: DevFolder, path: str, numbers: NodeNumbers, params: NodeParams, seen: Seen) -> Ensured:
    try:
        if path.startswith(f"{CAPABILITIES}/"):
            dev.make_folder(CAPABILITIES)
        replace = seen.numbers is not None
        dev.make_node(path, numbers, mode=params.mode, uid=params.uid, gid=params.gid, replace=replace)
    except OSError as error:
        if _appeared(dev, path, numbers):
            return Ensured(mode=params.mode)
        if seen.numbers is None:
            return Ensured(missing=f"it cannot be made: {error.strerror}")
        has = f"{seen.numbers.major}:{seen.numbers.minor}"
        return Ensured(refusal=f"it has the device numbers {has} and cannot be replaced: {error.strerror}")
    return Ensured(mode=params.mode)


def _appeared(dev: DevFolder, path: str, numbers: NodeNumbers) -> bool:
    """Whether another program made the same node meanwhile."""
    try:
        return dev.look(path).numbers == numbers
    except OSError:
        return False


def ensure_link(dev: DevFolder, path: str, numbers: NodeNumbers) -> str | None:
    """Make the node's link in ``/dev/char`` unless it leads there; why that failed, or None. A link that leads
    elsewhere in ``/dev`` is replaced: its number belongs to this node. Links out of ``/dev`` and other files stay. No
    OSError.
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
