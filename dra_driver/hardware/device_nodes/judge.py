"""Decide what has to happen at a node's path. Pure."""

from msgspec import Struct

from dra_driver.hardware.device_nodes.folder import Found, Seen
from dra_driver.hardware.device_nodes.numbers import NodeNumbers
from dra_driver.hardware.device_nodes.params import NodeParams


class NodeVerdict(Struct, frozen=True, kw_only=True):
    """At most one of the three.

    ``make``: make the node, in place of what is there. ``missing``: why it must not be made; containers without a
    user namespace work. ``refusal``: what is there instead; a container in a user namespace would get that.
    """

    make: bool = False
    missing: str | None = None
    refusal: str | None = None


RIGHT = NodeVerdict()


def judge(numbers: NodeNumbers, seen: Seen, params: NodeParams, behind: NodeNumbers | None = None) -> NodeVerdict:
    """What to do about a node that should have ``numbers``. ``behind`` are those at the end of a symbolic link."""
    if numbers in (seen.numbers, behind):
        return RIGHT
    if seen.found is Found.MISSING:
        return (
            NodeVerdict(make=True) if params.modify else NodeVerdict(missing=f"must not be made: {_forbidden(params)}")
        )
    if seen.found is not Found.DEVICE or seen.numbers is None:
        return NodeVerdict(refusal=f"it is a {seen.found}")
    if params.modify:
        return NodeVerdict(make=True)
    has = f"it has the device numbers {seen.numbers.major}:{seen.numbers.minor}"
    return NodeVerdict(refusal=f"{has} and must not be replaced: {_forbidden(params)}")


def _forbidden(params: NodeParams) -> str:
    if params.problem is not None:
        return params.problem
    return "the NVIDIA module was loaded with NVreg_ModifyDeviceFiles=0"
