"""Values at run time: Python's own types where they fit, small classes for CEL's other types.

int, double, string, bytes, bool and null are Python's int, float, str, bytes, bool and None; uint is UInt; lists are
``list`` or ``range``; maps are CelMap. Also type names and sizes of values.

Limits of one evaluation that cel-go does not have: sizes of lists and strings, and work that the cost leaves out.
"""

import re
import threading
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Any, Final

from dra_driver.core.quantity import Quantity
from dra_driver.core.semver import Semver

MAX_ELEMENTS: Final = 4_000_000
"""Longest list that an evaluation may build. cel-go has no limit but memory."""
MAX_TEXT: Final = 1 << 26
"""Longest string or bytes that an evaluation may build."""
MAX_WORK: Final = 5_000_000
"""Comparisons and copies of elements within one evaluation, which the cost model leaves out for nested values."""


class AbortedError(Exception):
    """Ends the evaluation; no operator absorbs it. Cost limit, limits of this module, and panics in Go."""


class _Work(threading.local):
    """The work left for the evaluation of this thread."""

    left: int = MAX_WORK


_work = _Work()


def reset_work() -> None:
    """Resets the work of this thread. Call it before an evaluation that may build or compare large values."""
    _work.left = MAX_WORK


def spend(amount: int) -> None:
    """Counts work outside the cost model. Raises AbortedError beyond MAX_WORK."""
    _work.left -= amount
    if _work.left < 0:
        raise AbortedError("the expression takes too much work on large values")


def check_size(size: int) -> int:
    """Returns ``size`` if a list of that size may be built. Raises AbortedError otherwise."""
    if size > MAX_ELEMENTS:
        raise AbortedError(f"a list of {size} elements is too large, at most {MAX_ELEMENTS} are allowed")
    spend(size)
    return size


def check_text(size: int) -> int:
    """Returns ``size`` if a string or bytes of that size may be built. Raises AbortedError otherwise."""
    if size > MAX_TEXT:
        raise AbortedError(f"a string of {size} characters is too large, at most {MAX_TEXT} are allowed")
    spend(size >> 6)
    return size


_SURROGATES: Final = re.compile("[\ud800-\udfff]")


def well_formed(text: str) -> str:
    """The text with single surrogates, which JSON may contain, replaced by U+FFFD as Go does."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


class EvalError(Exception):
    """A run-time error of CEL. ``&&``, ``||`` and some macros can absorb it."""


class UInt(int):
    """An unsigned 64-bit integer. Python arithmetic on it returns int; `operators` convert the result back."""

    __slots__ = ()


class ConcatList(list):  # type: ignore[type-arg]
    """The result of ``+`` on two non-empty lists. Its equality does not ignore errors of elements."""

    __slots__ = ()


class GrowingList(list):  # type: ignore[type-arg]
    """A list accumulator that started empty: ``+`` appends in place, as cel-go's mutable list does."""

    __slots__ = ()


class TypeValue:
    """A type as a value, such as the result of ``type(1)``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Optional:
    """``optional.of(value)``; NONE is ``optional.none()``."""

    __slots__ = ("present", "value")

    def __init__(self, value: Any, present: bool = True) -> None:
        self.value = value
        self.present = present


NONE: Final = Optional(None, present=False)


class Duration:
    """A span of time in nanoseconds, within 64 bits."""

    __slots__ = ("ns",)

    def __init__(self, ns: int) -> None:
        self.ns = ns

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Duration) and self.ns == other.ns

    def __hash__(self) -> int:
        return hash(self.ns)


class Timestamp:
    """Nanoseconds since 1970 UTC. ``offset_s`` is the time zone of its original text, and affects only its text."""

    __slots__ = ("ns", "offset_s")

    def __init__(self, ns: int, offset_s: int = 0) -> None:
        self.ns = ns
        self.offset_s = offset_s

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timestamp) and (self.ns, self.offset_s) == (other.ns, other.offset_s)

    def __hash__(self) -> int:
        return hash(self.ns)


class Url:
    """A URL that `libraries.url` has parsed."""

    __slots__ = ("escaped_path", "host", "query", "scheme", "text")

    def __init__(self, scheme: str, host: str, escaped_path: str, query: str, text: str) -> None:
        self.scheme = scheme
        self.host = host
        self.escaped_path = escaped_path
        self.query = query
        self.text = text


class NamedFormat:
    """The value of ``format.NAME()``, see `libraries.formats`."""

    __slots__ = ("name", "regex_size", "validate")

    def __init__(self, name: str, regex_size: int, validate: Any) -> None:
        self.name = name
        self.regex_size = regex_size
        self.validate = validate


class CelQuantity:
    """A quantity: ``mantissa`` times ten to the ``scale``.

    ``big``: Go keeps the number as a big decimal, for which ``isInteger`` is false. ``derived``: the result of add or
    sub, for which ``other == derived`` is an error.
    """

    __slots__ = ("big", "derived", "mantissa", "quantity", "scale")

    def __init__(
        self, quantity: Quantity, mantissa: int, scale: int, *, big: bool = False, derived: bool = False
    ) -> None:
        self.quantity = quantity
        self.mantissa = mantissa
        self.scale = scale
        self.big = big
        self.derived = derived


class _Identity:
    """A key that equals only itself, such as a list."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


MISSING: Final = object()
_INT_LIMIT: Final = 2**63


class CelMap:
    """A map. One number in different types makes different keys, but a lookup finds a key of any number type.

    The keys of ``data`` are encoded: str and int unchanged, others as tuples with a tag.
    """

    __slots__ = ("data",)

    def __init__(self, data: dict[Any, Any]) -> None:
        self.data = data

    @classmethod
    def of(cls, pairs: Iterable[tuple[Any, Any]]) -> "CelMap":
        return cls({encode_key(key): value for key, value in pairs})

    def __len__(self) -> int:
        return len(self.data)

    def keys(self) -> Iterator[Any]:
        return (decode_key(key) for key in self.data)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return ((decode_key(key), value) for key, value in self.data.items())

    def contains(self, key: Any) -> bool:
        return CelMap.find(self, key) is not MISSING

    def find(self, key: Any) -> Any:
        """The value or MISSING."""
        data = self.data
        if not data:
            return MISSING
        kind = type(key)
        if kind is str:
            return data.get(key, MISSING)
        found = data.get(encode_key(key), MISSING)
        if found is MISSING and kind in {int, UInt, float}:
            for other in _other_numbers(kind, key):
                found = data.get(other, MISSING)
                if found is not MISSING:
                    break
        return found


class GrowingMap(CelMap):
    """A map accumulator that started empty: insertion changes it in place."""

    __slots__ = ()


class StringMap(CelMap):
    """A map whose keys are all strings; a key of another type is never found."""

    __slots__ = ()

    def find(self, key: Any) -> Any:
        return self.data.get(key, MISSING) if type(key) is str else MISSING

    def contains(self, key: Any) -> bool:
        return type(key) is str and key in self.data


class DomainMap(StringMap):
    """Domains of a device. A lookup of an unknown domain returns an empty map, although ``in`` is false for it."""

    __slots__ = ()

    def find(self, key: Any) -> Any:
        return self.data.get(key, EMPTY_MAP) if type(key) is str else EMPTY_MAP


EMPTY_MAP: Final = CelMap({})


def encode_key(key: Any) -> Any:
    """The key in the form of ``CelMap.data``."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind is bool or kind is UInt or kind is float or kind is Duration or kind is Timestamp:
        return (kind, int(key) if kind is UInt else key)
    if kind in {bytes, Semver, NamedFormat}:
        raise AbortedError(f"a value of type {type_name(key)} cannot be a key")
    return (kind, _Identity(key))


def decode_key(key: Any) -> Any:
    if type(key) is not tuple:
        return key
    if key[0] is UInt:
        return UInt(key[1])
    return key[1].value if type(key[1]) is _Identity else key[1]


def _other_numbers(kind: type, key: Any) -> Iterator[Any]:
    if kind is int:
        if key >= 0:
            yield (UInt, key)
    elif kind is UInt:
        if key < _INT_LIMIT:
            yield int(key)
    elif key == key and abs(key) < 2.0**64 and key == int(key):  # noqa: PLR0124  NaN is not itself
        if -(2.0**63) < key < 2.0**63:
            yield int(key)
        if key >= 0:
            yield (UInt, int(key))


_TYPE_NAMES: Final[dict[type, str]] = {
    int: "int",
    bool: "bool",
    UInt: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    range: "list",
    ConcatList: "list",
    GrowingList: "list",
    CelMap: "map",
    GrowingMap: "map",
    StringMap: "map",
    DomainMap: "map",
    Optional: "optional_type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    CelQuantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    IPv4Interface: "net.CIDR",
    IPv6Interface: "net.CIDR",
    Url: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
    TypeValue: "type",
}
LISTS: Final = frozenset({list, range, ConcatList, GrowingList})
MAPS: Final = frozenset({CelMap, GrowingMap, StringMap, DomainMap})
NUMBERS: Final = frozenset({int, UInt, float})


def type_name(value: Any) -> str:
    """The name of the run-time type, as in ``type(value)``."""
    return _TYPE_NAMES[type(value)]


def no_overload(what: str = "") -> EvalError:
    return EvalError(f"no such overload: {what}" if what else "no such overload")


def size_of(value: Any) -> int | None:
    """Elements of a list or map, characters of a string, bytes of bytes and addresses; None for other types."""
    kind = type(value)
    if kind in LISTS or kind in MAPS or kind is str or kind is bytes:
        return len(value)
    if kind is IPv4Address or kind is IPv6Address:
        return 4 if kind is IPv4Address else 16
    if kind is IPv4Interface or kind is IPv6Interface:
        return int(-(-value.network.prefixlen // 8))
    return None
