"""The attributes and capacities that an expression reads. Devices that are equal in these are evaluated once.

Any use of the device other than a constant name of a constant domain counts as reading everything.
"""

from functools import lru_cache

from msgspec import Struct, field

from dra_driver.scheduler.cel.parser import parse
from dra_driver.scheduler.cel.source import SourceText
from dra_driver.scheduler.cel.syntax import Call, Expr, Ident, Literal, Select, children

_MAPS = ("attributes", "capacity")
Names = set[tuple[str, str]]


class AttributeRefs(Struct):
    """Names as (domain, identifier). ``everything``: the expression may read more than these names.

    ``device.driver`` and ``device.allowMultipleAllocations`` are not listed.
    """

    attributes: Names = field(default_factory=set)
    capacity: Names = field(default_factory=set)
    everything: bool = False


@lru_cache(maxsize=1024)
def find_attribute_refs(expression: str) -> AttributeRefs:
    """What the expression reads. The result is shared; do not change it. Raises CelSyntaxError on a syntax error."""
    found = AttributeRefs()
    pending: list[Expr] = [parse(SourceText(expression))]
    while pending:
        node = pending.pop()
        if not _note(node, found):
            pending += children(node)
    return found


def _note(node: Expr, found: AttributeRefs) -> bool:
    """Records what the node itself reads; True if its children need no visit."""
    if isinstance(node, Ident):
        found.everything = found.everything or node.name.lstrip(".") == "device"
        return True
    if _is_field(node, "driver") or _is_field(node, "allowMultipleAllocations"):
        return True
    inner = _step(node)
    outer = _step(inner[0]) if inner is not None else None
    if inner is None or outer is None or (isinstance(inner[0], Select) and inner[0].test):
        return False
    for kind in _MAPS:
        if _is_field(outer[0], kind):
            getattr(found, kind).add((outer[1], inner[1]))
            return True
    return False


def _is_field(node: Expr, name: str) -> bool:
    return (
        isinstance(node, Select)
        and node.field == name
        and isinstance(node.operand, Ident)
        and node.operand.name.lstrip(".") == "device"
    )


def _step(node: Expr) -> tuple[Expr, str] | None:
    """The operand and constant key of ``operand.key``, ``operand["key"]`` or their optional forms."""
    if isinstance(node, Select):
        return node.operand, node.field
    if isinstance(node, Call) and node.function in ("_[_]", "_[?_]", "_?._") and node.target is None:
        operand, key = node.arguments
        if isinstance(key, Literal) and isinstance(key.value, str):
            return operand, key.value
    return None
