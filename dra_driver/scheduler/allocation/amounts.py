"""Amounts of capacities and counters: exact integers for arithmetic, and the text that a result carries.

k8s.io/apimachinery pkg/api/resource (quantity.go, ParseQuantity) keeps two things besides the number, and both matter
here: the spelling (a canonical spelling is printed unchanged) and the fields of the struct, which the scheduler
compares in one place. Amounts are in billionths, as in `quantity`.
"""

import re
from functools import lru_cache
from typing import Any, Final, NamedTuple

from dra_driver.core.quantity import NANO, Format, Quantity

_INT64: Final = 2**63
# Most decimal digits that the fast form of ParseQuantity takes, without and with a binary suffix.
_DECIMAL_DIGITS: Final = 18
_BINARY_DIGITS: Final = 14
_WRITTEN: Final = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([A-Za-z]*)([-+]?[0-9]*)\Z")
_BINARY: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}

Form = tuple[int, int, Format, str]


class Amount(NamedTuple):
    """A quantity. ``form`` is value, power of ten, format and kept text of Go's struct; None if it equals no other."""

    quantity: Quantity
    form: Form | None

    @property
    def nano(self) -> int:
        return self.quantity.nano

    @property
    def text(self) -> str:
        """The text that the API server prints."""
        return (self.form[3] if self.form else "") or str(self.quantity)


def amount(text: Any) -> Amount:
    """The amount in a field of an API object. Raises ValueError with a full sentence."""
    return _amount(text if isinstance(text, str) else _number(text))


def nano(text: Any) -> int:
    """The billionths in a field of an API object. Raises ValueError with a full sentence."""
    return _amount(text if isinstance(text, str) else _number(text)).quantity.nano


def whole(value: int) -> Amount:
    """``value`` whole units, printed with binary suffixes where that loses nothing (``NewQuantity(…, BinarySI)``)."""
    return Amount(Quantity.from_bytes(value), (value, 0, Format.BINARY_SI, ""))


def units(of: Amount) -> int:
    """Whole units, fractions away from zero, as a 64-bit number (``Quantity.Value()``)."""
    return max(-_INT64, min(_INT64 - 1, of.quantity.as_int()))


def in_milli(of: Amount) -> int:
    """Thousandths, fractions away from zero (``Quantity.MilliValue()``)."""
    count = -(-abs(of.nano) // (NANO // 1000))
    return count if of.nano >= 0 else -count


def _number(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{str(value)[:40]!r} is not a quantity: expected text such as 80Gi or 500m")


@lru_cache(maxsize=16384)
def _amount(text: str) -> Amount:
    return Amount(Quantity.parse(text), _form(text))


def _form(text: str) -> Form | None:
    """The fields of Go's fast form of a quantity; None where Go keeps a pointer to a big decimal."""
    if text == "0":
        return 0, 0, Format.DECIMAL_SI, text
    written = _WRITTEN.match(text)
    if written is None:
        return None
    sign, digits, decimals, suffix, exponent = written[1], written[2] or "0", written[3] or "", written[4], written[5]
    if suffix in _BINARY and not exponent:
        number_format, scale, factor = Format.BINARY_SI, 0, 2 ** _BINARY[suffix]
        # Go computes the digits of a suffix in floating point and truncates.
        precision = _BINARY_DIGITS - len(digits) - int(_BINARY[suffix] * 3 / 10)
        if decimals or precision < 0:
            return None
    elif suffix in _DECIMAL and not exponent:
        number_format, scale, factor = Format.DECIMAL_SI, _DECIMAL[suffix], 1
    elif suffix in ("e", "E") and exponent.lstrip("+-"):
        number_format, scale, factor = Format.DECIMAL_EXPONENT, int(exponent), 1
    else:
        return None
    scale -= len(decimals)
    if number_format is not Format.BINARY_SI and len(digits) + len(decimals) > _DECIMAL_DIGITS:
        return None
    value = int(digits + decimals) * factor
    if scale < -9 or value >= _INT64:
        return None
    shifted = digits + decimals
    if number_format is Format.BINARY_SI:
        kept = int(shifted) & 7 != 0
    else:
        kept = scale % 3 == 0 and not shifted.endswith("000") and shifted[0] != "0"
    return (-value if sign == "-" else value), scale, number_format, text if kept else ""
