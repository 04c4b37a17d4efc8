"""``string.format(list)``: formatting clauses and the text of values in them.

Follows cel-go ext/formatting.go (strings library before version 4) with the locale en_US: ``%f`` and ``%e`` print as
golang.org/x/text does it, with grouped thousands and powers of ten.
"""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from dra_driver.scheduler.cel.libraries.convert import to_string
from dra_driver.scheduler.cel.values import (
    LISTS,
    MAPS,
    Duration,
    EvalError,
    Timestamp,
    TypeValue,
    UInt,
    check_text,
    spend,
    type_name,
)

_DEFAULT_PRECISION: Final = 6
_MAX_PRECISION: Final = 4096
_SCALAR: Final = frozenset({int, UInt, float, bool, str, bytes, Duration, Timestamp, TypeValue})


class FormatClause(NamedTuple):
    """One part of a format string: literal text, or a verb with its precision."""

    text: str
    verb: str = ""
    precision: int | None = None


def parse_format(text: str) -> list[FormatClause]:
    """The parts of a format string. Raises EvalError if it is malformed."""
    pieces: list[FormatClause] = []
    position = 0
    while position < len(text):
        percent = text.find("%", position)
        if percent < 0:
            pieces.append(FormatClause(text[position:]))
            break
        if percent > position:
            pieces.append(FormatClause(text[position:percent]))
        if text[percent + 1 : percent + 2] == "%":
            pieces.append(FormatClause("%"))
            position = percent + 2
            continue
        position = percent + 1
        if position >= len(text):
            raise EvalError("unexpected end of string")
        precision, position = _precision(text, position)
        verb = text[position : position + 1]
        if not verb or verb not in "sdfebxXo":
            raise EvalError(f"could not parse formatting clause: unrecognized formatting clause {verb!r}")
        pieces.append(FormatClause("", verb, precision))
        position += 1
    return pieces


def _precision(text: str, position: int) -> tuple[int | None, int]:
    if text[position] != ".":
        return None, position
    end = position + 1
    while end < len(text) and text[end] in "0123456789":
        end += 1
    digits = text[position + 1 : end]
    if end >= len(text) or not digits or len(digits) > 18:
        raise EvalError("could not parse formatting clause: error while parsing precision")
    return int(digits), end


def format_string(text: str, arguments: Any) -> str:
    out, used = [], 0
    for clause in parse_format(text):
        if not clause.verb:
            out.append(clause.text)
            continue
        if used >= len(arguments):
            raise EvalError(f"index {used} out of range")
        out.append(_FORMATTERS[clause.verb](arguments[used], clause))
        used += 1
    result = "".join(out)
    check_text(len(result))
    return result


def _wrong(verb: str, value: Any) -> EvalError:
    return EvalError(f"error during formatting: %{verb} cannot format a value of type {type_name(value)}")


def _string(value: Any, _clause: FormatClause) -> str:
    kind = type(value)
    if kind in LISTS or kind in MAPS:
        return _literal(value)
    if value is None:
        return "null"
    if kind is TypeValue:
        return str(value.name)
    if kind in _SCALAR:
        return to_string(value)
    raise _wrong("s", value)


def _decimal(value: Any, clause: FormatClause) -> str:
    if type(value) not in {int, UInt}:
        raise _wrong(clause.verb, value)
    return str(int(value))


def _double(value: Any, verb: str) -> float:
    if type(value) is str and value in {"NaN", "Infinity", "-Infinity"}:
        return float(value)
    if type(value) is not float:
        raise _wrong(verb, value)
    return value


def _fixed(value: Any, clause: FormatClause) -> str:
    number = _double(value, "f")
    return _special(number) or f"{number if number else 0.0:,.{_bounded(clause)}f}"


def _scientific(value: Any, clause: FormatClause) -> str:
    """cel-go uses the precision of ``%e`` as a width, so the number of decimals is always six."""
    number = _double(value, "e")
    text = _special(number)
    if not text:
        mantissa, _, exponent = f"{number if number else 0.0:.{_DEFAULT_PRECISION}e}".partition("e")
        text = f"{mantissa}×10{_raised(int(exponent))}"
    return text.rjust(_bounded(clause))


def _raised(exponent: int) -> str:
    return f"{exponent:03d}".translate(_SUPERSCRIPT) if exponent < 0 else f"{exponent:02d}".translate(_SUPERSCRIPT)


_SUPERSCRIPT: Final = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def _special(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return ("∞" if number > 0 else "-∞") if math.isinf(number) else ""


def _bounded(clause: FormatClause) -> int:
    precision = _DEFAULT_PRECISION if clause.precision is None else clause.precision
    if precision > _MAX_PRECISION:
        raise EvalError(f"a precision of {precision} is not supported, at most {_MAX_PRECISION}")
    return precision


def _binary(value: Any, clause: FormatClause) -> str:
    if type(value) is bool:
        return "1" if value else "0"
    if type(value) not in {int, UInt}:
        raise _wrong(clause.verb, value)
    return f"{int(value):b}"


def _hex(value: Any, clause: FormatClause) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value.hex().upper() if clause.verb == "X" else value.hex()
    if type(value) not in {int, UInt}:
        raise _wrong(clause.verb, value)
    return f"{int(value):X}" if clause.verb == "X" else f"{int(value):x}"


def _octal(value: Any, clause: FormatClause) -> str:
    if type(value) not in {int, UInt}:
        raise _wrong(clause.verb, value)
    return f"{int(value):o}"


_FORMATTERS: Final[dict[str, Callable[[Any, FormatClause], str]]] = {
    "s": _string,
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "x": _hex,
    "X": _hex,
    "o": _octal,
}


def quoted(text: str) -> str:
    """The text as strconv.Quote of Go writes it."""
    return '"' + "".join(_QUOTED.get(c) or (c if c.isprintable() else _escaped(ord(c))) for c in text) + '"'


_QUOTED: Final = {c: f"\\{e}" for c, e in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _literal(value: Any) -> str:
    """A value inside a list or map, similar to its CEL literal."""
    spend(1)
    kind = type(value)
    if kind in LISTS:
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if kind in MAPS:
        entries = sorted(((_key(key), _literal(item)) for key, item in value.items()), key=lambda pair: pair[0])
        return "{" + ", ".join(f"{key}:{item}" for key, item in entries) + "}"
    if kind is str:
        return quoted(value)
    if kind is bytes:
        return "b" + quoted(to_string(value))
    if kind is float:
        special = _GO_SPECIAL.get(_special(value))
        return quoted(special) if special else f"{value:.6f}"
    if kind is Timestamp:
        return f"timestamp({quoted(to_string(value))})"
    if kind is Duration:
        return f"duration({quoted(to_string(value))})"
    return _string(value, FormatClause("", "s"))


_GO_SPECIAL: Final = {"NaN": "NaN", "∞": "+Inf", "-∞": "-Inf"}


def _key(key: Any) -> str:
    if type(key) is str:
        return quoted(key)
    if type(key) in {bool, int, UInt}:
        return to_string(key)
    raise EvalError(f"no formatting function for map key of type {type_name(key)}")
