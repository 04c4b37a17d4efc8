"""``string.format(list)``, as cel-go ext/formatting.go (strings library before version 4) with the locale en_US: ``%f``
and ``%e`` print as golang.org/x/text does, with grouped thousands and powers of ten."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from dra_driver.scheduler.cel import values
from dra_driver.scheduler.cel.libraries.convert import to_string

_DEFAULT_PRECISION: Final = 6
_MAX_PRECISION: Final = 4096
_SCALAR: Final = frozenset(
    {int, values.UInt, float, bool, str, bytes, values.Duration, values.Timestamp, values.TypeValue}
)


class FormatClause(NamedTuple):
    """One part of a format string: literal text, or a verb with its precision."""

    text: str
    verb: str = ""
    precision: int | None = None


_CLAUSE: Final = re.compile(r"[^%]+|%%|%(?:\.([0-9]*))?(.?)", re.S)


def parse_format(text: str) -> list[FormatClause]:
    """The parts of a format string. Raises EvalError if it is malformed."""
    pieces: list[FormatClause] = []
    for found in _CLAUSE.finditer(text):
        whole, digits, verb = found[0], found[1], found[2]
        if whole == "%":
            raise values.EvalError("unexpected end of string")
        if verb is None:
            pieces.append(FormatClause("%" if whole == "%%" else whole))
            continue
        if digits is not None and (not verb or not digits or len(digits) > 18):
            raise values.EvalError("could not parse formatting clause: error while parsing precision")
        if verb not in "sdfebxXo":
            raise values.EvalError(f"could not parse formatting clause: unrecognized formatting clause {verb!r}")
        pieces.append(FormatClause("", verb, None if digits is None else int(digits)))
    return pieces


def format_string(text: str, arguments: Sequence[object]) -> str:
    out, used = [], 0
    for clause in parse_format(text):
        if not clause.verb:
            out.append(clause.text)
            continue
        if used >= len(arguments):
            raise values.EvalError(f"index {used} out of range")
        out.append(_FORMATTERS[clause.verb](arguments[used], clause))
        used += 1
    result = "".join(out)
    values.check_text(len(result))
    return result


def _wrong(verb: str, value: object) -> values.EvalError:
    return values.EvalError(f"error during formatting: %{verb} cannot format a value of type {values.type_name(value)}")


def _string(value: object, _clause: FormatClause) -> str:
    if isinstance(value, (*values.LISTS, values.CelMap)):
        return _literal(value)
    if value is None:
        return "null"
    if isinstance(value, values.TypeValue):
        return value.name
    if type(value) in _SCALAR:
        return to_string(value)
    raise _wrong("s", value)


def _integer(spec: str) -> Callable[[object, FormatClause], str]:
    def formatted(value: object, clause: FormatClause) -> str:
        if isinstance(value, int) and (spec == "b" or type(value) is not bool):
            return format(int(value), spec)
        raise _wrong(clause.verb, value)

    return formatted


def _double(value: object, verb: str) -> float:
    if isinstance(value, str) and value in {"NaN", "Infinity", "-Infinity"}:
        return float(value)
    if not isinstance(value, float):
        raise _wrong(verb, value)
    return value


def _fixed(value: object, clause: FormatClause) -> str:
    number = _double(value, "f")
    return _special(number) or f"{number if number else 0.0:,.{_bounded(clause)}f}"


def _scientific(value: object, clause: FormatClause) -> str:
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
        raise values.EvalError(f"a precision of {precision} is not supported, at most {_MAX_PRECISION}")
    return precision


def _hex(value: object, clause: FormatClause) -> str:
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value.hex().upper() if clause.verb == "X" else value.hex()
    return _integer(clause.verb)(value, clause)


_FORMATTERS: Final[dict[str, Callable[[object, FormatClause], str]]] = {
    "s": _string,
    "d": _integer("d"),
    "f": _fixed,
    "e": _scientific,
    "b": _integer("b"),
    "x": _hex,
    "X": _hex,
    "o": _integer("o"),
}


def quoted(text: str) -> str:
    return '"' + "".join(_QUOTED.get(c) or (c if c.isprintable() else _escaped(ord(c))) for c in text) + '"'


_QUOTED: Final = {c: f"\\{e}" for c, e in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}


def _escaped(code: int) -> str:
    if code < 0x80:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _literal(value: object) -> str:
    values.spend(1)
    if isinstance(value, values.LISTS):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, values.CelMap):
        entries = sorted(((_key(key), _literal(item)) for key, item in value.items()), key=lambda pair: pair[0])
        return "{" + ", ".join(f"{key}:{item}" for key, item in entries) + "}"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, bytes):
        return "b" + quoted(to_string(value))
    if isinstance(value, float):
        special = _GO_SPECIAL.get(_special(value))
        return quoted(special) if special else f"{value:.6f}"
    if isinstance(value, values.Timestamp | values.Duration):
        return f"{type(value).__name__.lower()}({quoted(to_string(value))})"
    return _string(value, FormatClause("", "s"))


_GO_SPECIAL: Final = {"NaN": "NaN", "∞": "+Inf", "-∞": "-Inf"}


def _key(key: object) -> str:
    if isinstance(key, str):
        return quoted(key)
    if type(key) in {bool, int, values.UInt}:
        return to_string(key)
    raise values.EvalError(f"no formatting function for map key of type {values.type_name(key)}")
