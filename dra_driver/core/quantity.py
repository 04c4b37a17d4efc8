"""Kubernetes quantities such as ``80Gi``, ``1500m`` and ``2e3``: parsing, exact arithmetic, order and canonical text.

Follows k8s.io/apimachinery pkg/api/resource (quantity.go, suffix.go): a value is a whole number of nano units, and
finer fractions are rounded away from zero. The maximum of a value with a binary suffix is 2**63-1. A suffix alone is
zero.
"""

import re
from enum import Enum
from typing import Final, NamedTuple

NANO: Final = 10**9
_BINARY_MAX: Final = (2**63 - 1) * NANO
# Real numbers have up to twenty digits; without a limit "1e999999999" would use up all memory.
_MAX_TEXT: Final = 1024
_MAX_EXPONENT: Final = 1024

_SHAPE: Final = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[-+]?[0-9]*)\Z")
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)\Z")
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIX: Final = {exponent: suffix for suffix, exponent in _BINARY.items()}
# Most digits that ParseQuantity keeps in 64 bits (maxInt64Factors), without and with a binary suffix.
_DECIMAL_DIGITS: Final = 18
_BINARY_DIGITS: Final = 14


class Format(Enum):
    """Notation of a quantity, which decides its printed form."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


class Quantity:
    """An exact number with a preferred text; ``nano`` is the value in billionths. Equality, order and hash use only the
    number."""

    __slots__ = ("format", "nano")

    format: Format
    nano: int

    def __init__(self, nano: int, number_format: Format = Format.DECIMAL_SI) -> None:
        object.__setattr__(self, "nano", nano)
        object.__setattr__(self, "format", number_format)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Quantity is immutable: cannot set {name}")

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """The quantity that ``text`` denotes. Raises ValueError with a sentence that quotes the text."""
        return cls.of(WrittenQuantity.parse(text))

    @classmethod
    def of(cls, written: "WrittenQuantity") -> "Quantity":
        number_format = written.format
        nano = _scaled(int(written.whole + written.fraction), len(written.fraction), number_format, written.exponent)
        if number_format is Format.BINARY_SI:
            nano = min(nano, _BINARY_MAX)
            if 0 < nano < NANO:
                number_format = Format.DECIMAL_SI
        return cls(-nano if written.negative else nano, number_format)

    @classmethod
    def from_bytes(cls, count: int) -> "Quantity":
        """``count`` whole units, printed with binary suffixes where that loses nothing."""
        return cls(count * NANO, Format.BINARY_SI)

    def as_int(self) -> int:
        """The value in whole units, fractions rounded away from zero (``Quantity.Value()``)."""
        whole = -(-abs(self.nano) // NANO)
        return whole if self.nano >= 0 else -whole

    def is_integer(self) -> bool:
        """Return whether the value is a whole number that fits 64 bits (``Quantity.AsInt64()``)."""
        return self.nano % NANO == 0 and -(2**63) <= self.nano // NANO < 2**63

    def __add__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano + other.nano, self._sum_format(other))

    def __sub__(self, other: "Quantity") -> "Quantity":
        return Quantity(self.nano - other.nano, self._sum_format(other))

    def __eq__(self, other: object) -> bool:
        return self.nano == other.nano if isinstance(other, Quantity) else NotImplemented

    def __lt__(self, other: "Quantity") -> bool:
        return self.nano < other.nano

    def __le__(self, other: "Quantity") -> bool:  # > and >= swap the sides of < and <=
        return self.nano <= other.nano

    def __hash__(self) -> int:
        return hash(self.nano)

    def __str__(self) -> str:
        """The canonical text: no fraction, the largest suffix that keeps the value exact."""
        if self.nano == 0:
            return "0"
        whole = self.nano % NANO == 0 and 1024 * NANO <= abs(self.nano) <= _BINARY_MAX
        if self.format is Format.BINARY_SI and whole:
            return _binary_text(self.nano // NANO)
        return _decimal_text(self.nano, self.format is Format.DECIMAL_EXPONENT)

    def __repr__(self) -> str:
        return f"Quantity({str(self)!r})"

    def _sum_format(self, other: "Quantity") -> Format:
        return other.format if self.nano == 0 else self.format


def quantity_in(value: object) -> Quantity | None:
    """Return the quantity of a text or number; None for another value."""
    try:
        return Quantity.parse(str(value))
    except ValueError:
        return None


class WrittenQuantity(NamedTuple):
    """The text of a quantity in parts. ``whole`` has no leading zeros; the base of ``exponent`` is 2 or 10."""

    negative: bool
    whole: str
    fraction: str
    format: Format
    exponent: int

    @classmethod
    def parse(cls, text: str) -> "WrittenQuantity":
        shape = _SHAPE.match(text) if len(text) <= _MAX_TEXT else None
        if shape is None or not text:
            raise ValueError(f"{_quoted(text)} is not a quantity: expected a number and a suffix, such as 80Gi or 500m")
        number_format, exponent = _suffix(shape[4], text)
        return cls(shape[1] == "-", shape[2] or "0", shape[3] or "", number_format, exponent)

    def small(self) -> tuple[int, int] | None:
        """Mantissa (without sign) and power of ten in Go's 64-bit form; None where Go keeps a big decimal."""
        if self.format is Format.BINARY_SI:
            # Go counts the digits of a suffix in floating point and truncates.
            if self.fraction or len(self.whole) + self.exponent * 3 // 10 > _BINARY_DIGITS:
                return None
            value = int(self.whole) << self.exponent
            return (value, 0) if value < 2**63 else None
        scale = self.exponent - len(self.fraction)
        if len(self.whole) + len(self.fraction) > _DECIMAL_DIGITS or scale < -9:
            return None
        return int(self.whole + self.fraction), scale


def _suffix(suffix: str, text: str) -> tuple[Format, int]:
    """Return the format of the suffix and its power of ten (binary suffixes: of two)."""
    if suffix in _BINARY:
        return Format.BINARY_SI, _BINARY[suffix]
    if suffix in _DECIMAL:
        return Format.DECIMAL_SI, _DECIMAL[suffix]
    written = _EXPONENT.match(suffix)
    if written is None:
        known = " ".join([*filter(None, _DECIMAL), *_BINARY])
        raise ValueError(
            f"{_quoted(text)} is not a quantity: unknown suffix {_quoted(suffix)}, expected one of {known}"
        )
    exponent = int(written[1])
    if abs(exponent) > _MAX_EXPONENT:
        raise ValueError(f"{_quoted(text)} is not a quantity: exponents beyond {_MAX_EXPONENT} are not supported")
    return Format.DECIMAL_EXPONENT, exponent


def _scaled(digits: int, decimals: int, number_format: Format, exponent: int) -> int:
    if number_format is Format.BINARY_SI:
        return -(-digits * NANO * (1 << exponent) // int(10**decimals))
    power = 9 + exponent - decimals
    return digits * int(10**power) if power >= 0 else -(-digits // int(10**-power))


def _binary_text(value: int) -> str:
    exponent = 0
    while value % 1024 == 0 and exponent < 60:
        value //= 1024
        exponent += 10
    return f"{value}{_BINARY_SUFFIX.get(exponent, '')}"


def _decimal_text(nano: int, scientific: bool) -> str:
    value, exponent = nano, -9
    # The Go code omits the suffix beyond E, which changes the value; 1000E is correct.
    while value % 1000 == 0 and (scientific or exponent < 18):
        value //= 1000
        exponent += 3
    if not scientific:
        return f"{value}{_DECIMAL_SUFFIX[exponent]}"
    return f"{value}e{exponent}" if exponent else str(value)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
