"""Values at run time, their type names and sizes. int, double, string, bytes, bool and null are Python's; uint is UInt;
lists are ``list`` or ``range``; maps are CelMap. Sizes of lists and strings, and work without cost, have limits that
cel-go lacks."""

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from typing import Final, TypeGuard

from msgspec import Struct

from dra_driver.core.quantity import Quantity
from dra_driver.core.semver import Semver

MAX_ELEMENTS: Final = 4_000_000  # longest list that an evaluation may build. cel-go is limited only by memory.
MAX_TEXT: Final = 1 << 26  # longest string or bytes that an evaluation may build
MAX_WORK: Final = 5_000_000
"""Comparisons and copies of elements within one evaluation, which the cost model leaves out for nested values."""


class AbortedError(Exception):
    """Ends the evaluation; no operator absorbs it. Cost limit, limits of this module, and panics in Go."""


class _Work(threading.local):
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


class TypeValue(Struct, frozen=True):
    """A type as a value, such as the result of ``type(1)``."""

    name: str


class Optional(Struct, frozen=True, eq=False):
    """``optional.of(value)``; NONE is ``optional.none()``."""

    value: object
    present: bool = True


NONE: Final = Optional(None, present=False)


class Duration(Struct, frozen=True):
    """A span of time in nanoseconds, within 64 bits."""

    ns: int


class Timestamp(Struct, frozen=True):
    """Nanoseconds since 1970 UTC. ``offset_s`` is the time zone of its original text, and affects only its text."""

    ns: int
    offset_s: int = 0


class Url(Struct, frozen=True):
    """A URL that `libraries.net` has parsed."""

    scheme: str
    host: str
    escaped_path: str
    query: str
    text: str


class NamedFormat(Struct, frozen=True):
    """The value of ``format.NAME()``, see `libraries.kube`. ``validate`` returns the error of a text."""

    name: str
    regex_size: int
    validate: Callable[[str], list[str]]


class CelQuantity(Struct, frozen=True, eq=False):
    """A quantity: ``mantissa`` times ten to the ``scale``. ``big``: Go keeps it as a big decimal, for which
    ``isInteger`` is false. ``derived``: the result of add or sub, for which ``other == derived`` is an error."""

    quantity: Quantity
    mantissa: int
    scale: int
    big: bool = False
    derived: bool = False


class _Identity:
    """A key that equals only itself, such as a list."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


MISSING: Final = object()
_INT_LIMIT: Final = 2**63


class CelMap:
    """A map. One number in different types makes different keys, but a lookup finds a key of any number type. The keys
    of ``data`` are str and int, others are tuples with a tag."""

    __slots__ = ("data",)

    def __init__(self, data: dict[object, object]) -> None:
        self.data = data

    @classmethod
    def of(cls, pairs: Iterable[tuple[object, object]]) -> "CelMap":
        return cls({encode_key(key): value for key, value in pairs})

    def __len__(self) -> int:
        return len(self.data)

    def keys(self) -> Iterator[object]:
        return (decode_key(key) for key in self.data)

    def items(self) -> Iterator[tuple[object, object]]:
        return ((decode_key(key), value) for key, value in self.data.items())

    def contains(self, key: object) -> bool:
        return CelMap.find(self, key) is not MISSING

    def find(self, key: object) -> object:
        data = self.data
        if not data:
            return MISSING
        if type(key) is str:
            return data.get(key, MISSING)
        found = data.get(encode_key(key), MISSING)
        if found is MISSING and is_number(key):
            for other in _other_numbers(key):
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

    def find(self, key: object) -> object:
        return self.data.get(key, MISSING) if type(key) is str else MISSING

    def contains(self, key: object) -> bool:
        return type(key) is str and key in self.data


class DomainMap(StringMap):
    """Domains of a device. A lookup of an unknown domain returns an empty map, although ``in`` is false for it."""

    __slots__ = ()

    def find(self, key: object) -> object:
        return self.data.get(key, EMPTY_MAP) if type(key) is str else EMPTY_MAP


EMPTY_MAP: Final = CelMap({})


def encode_key(key: object) -> object:
    kind = type(key)
    if kind is str or kind is int:
        return key
    if type(key) is UInt:
        return (UInt, int(key))
    if kind in {bool, float, Duration, Timestamp}:
        return (kind, key)
    if kind in {bytes, Semver, NamedFormat}:
        raise AbortedError(f"a value of type {type_name(key)} cannot be a key")
    return (kind, _Identity(key))


def decode_key(key: object) -> object:
    if not isinstance(key, tuple):
        return key
    kind, value = key
    if kind is UInt:
        return UInt(value)
    return value.value if type(value) is _Identity else value


def _other_numbers(key: float) -> Iterator[object]:
    if type(key) is not float:
        if type(key) is int and key >= 0:
            yield (UInt, key)
        elif type(key) is UInt and key < _INT_LIMIT:
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
LISTS: Final = (list, range)
"""For isinstance: the classes of lists, of which some are subclasses of ``list``. Maps are `CelMap`."""
NUMBERS: Final = frozenset({int, UInt, float})


def is_number(value: object) -> TypeGuard[float]:
    """Return whether the value is an int, a uint or a double; a bool is not a number."""
    return type(value) in NUMBERS


def type_name(value: object) -> str:
    """The name of the run-time type, as in ``type(value)``."""
    return _TYPE_NAMES[type(value)]


def no_overload(what: str = "") -> EvalError:
    return EvalError(f"no such overload: {what}" if what else "no such overload")


# Tuples, because isinstance with a union is slower.
_SIZED: Final = (str, bytes, list, range, CelMap)
ADDRESSES: Final = (IPv4Address, IPv6Address)  # for isinstance: addresses, and interfaces, which are subclasses of them
_INTERFACES: Final = (IPv4Interface, IPv6Interface)


def size_of(value: object) -> int | None:
    """Elements of a list or map, characters of a string, bytes of bytes and addresses; None for other types."""
    if isinstance(value, _SIZED):
        return len(value)
    if isinstance(value, ADDRESSES):
        if isinstance(value, _INTERFACES):
            return -(-value.network.prefixlen // 8)
        return 4 if isinstance(value, IPv4Address) else 16
    return None
