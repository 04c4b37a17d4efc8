"""Field selection, indexing and presence on values of any type.

Follows cel-go interpreter/attributes.go: missing keys, valid indexes, and chains that start with an optional, which are
optional as a whole.
"""

from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    MISSING,
    CelQuantity,
    EvalError,
    Optional,
    TypeValue,
    UInt,
    Url,
    type_name,
)

_KEYS: Final = frozenset({str, int, UInt, bool, float})
# Types that cel-go loses when an optional in a variable is selected from or read.
_LOST: Final = frozenset({CelQuantity, Semver, Url, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface})


def check_key(key: Any) -> Any:
    """Returns ``key`` if it can be an index. Raises EvalError otherwise."""
    if type(key) not in _KEYS:
        raise EvalError(f"invalid qualifier type: {type_name(key)}")
    return key


def shown(key: Any) -> str:
    return str(int(key)) if type(key) is UInt else ("true" if key else "false") if type(key) is bool else str(key)


def lookup(target: Any, key: Any) -> Any:
    """``target[key]``. Raises EvalError for a missing key or index."""
    found = find(target, key)
    if found is MISSING:
        kind = "index out of bounds" if type(target) in LISTS else "no such key"
        raise EvalError(f"{kind}: {shown(key)}")
    return found


def find(target: Any, key: Any) -> Any:
    """``target[key]`` or MISSING. Raises EvalError for an index that a list cannot have."""
    kind = type(target)
    if kind in MAPS:
        return target.find(key)
    if kind in LISTS:
        index = _index(key)
        return target[index] if 0 <= index < len(target) else MISSING
    return MISSING


def _index(key: Any) -> int:
    kind = type(key)
    if kind is int:
        return key  # type: ignore[no-any-return]
    if kind is float and -(2.0**63) < key < 2.0**63 and key == int(key):
        return int(key)
    if kind is UInt and key < 2**63:
        return int(key)
    raise EvalError(f"unsupported index value {shown(key)} in list")


def unwrapped(optional: Optional) -> Any:
    """The value of an optional at the start of a chain. Raises EvalError for types that cel-go loses."""
    value = optional.value
    while type(value) is Optional:
        if not value.present:
            raise EvalError("unsupported conversion to ref.Val")
        value = value.value
    if type(value) in _LOST:
        raise EvalError(f"unsupported conversion to ref.Val: {type_name(value)}")
    return value.name if type(value) is TypeValue else value
