"""The string functions: standard ones, ext/strings.go of cel-go in version 2, and Kubernetes' find and findAll.
Positions count Unicode characters. Regular expressions are RE2's, without syntax that Go's regexp lacks (`pattern`)."""

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.values import EvalError, check_text, no_overload, spend

# unicode.IsSpace of Go. str.strip() would also remove U+001C to U+001F.
_SPACE: Final = "\t\n\v\f\r \x85\xa0   　" + "".join(map(chr, range(0x2000, 0x200B))) + "\u1680\u2028\u2029\u202f\u205f"
_QUOTED: Final = {ord(c): f"\\{e}" for c, e in zip('\a\b\f\n\r\t\v\\"', 'abfnrtv\\"', strict=True)}
_UPPER: Final = {ord(c): c.upper() for c in "abcdefghijklmnopqrstuvwxyz"}
_LOWER: Final = {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


# The escape for any byte, which RE2 has and Go's regexp does not.
_ANY_BYTE: Final = re.compile(r"(?<!\\)(?:\\\\)*\\C")


def _out_of_range(index: int) -> EvalError:
    return EvalError(f"index out of range: {index}")


def char_at(text: str, index: int) -> str:
    if not 0 <= index <= len(text):
        raise _out_of_range(index)
    return text[index : index + 1]


def index_of(text: str, part: str, offset: int = 0) -> int:
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    return text.find(part, offset)


def last_index_of(text: str, part: str, offset: int | None = None) -> int:
    if offset is None:
        return text.rfind(part)
    if not part:
        return offset
    if offset < 0:
        raise _out_of_range(offset)
    if offset >= len(text):
        return -1
    return text.rfind(part, 0, offset + len(part))


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    if count == 0:
        return text
    found = text.count(old) if old else len(text) + 1
    check_text(len(text) + (found if count < 0 else min(found, count)) * max(0, len(new) - len(old)))
    return text.replace(old, new, -1 if count < 0 else count)


def split(text: str, separator: str, count: int = -1) -> list[str]:
    if count == 0:
        return []
    if not separator:
        pieces = list(text)
        if 0 < count < len(pieces):
            pieces = [*pieces[: count - 1], "".join(pieces[count - 1 :])]
        return pieces
    return text.split(separator, -1 if count < 0 else count - 1)


def substring(text: str, start: int, end: int | None = None) -> str:
    if end is not None and start > end:
        raise EvalError(f"invalid substring range. start: {start}, end: {end}")
    if not 0 <= start <= len(text):
        raise _out_of_range(start)
    if end is not None and not 0 <= end <= len(text):
        raise _out_of_range(end)
    return text[start:end]


def join(items: Sequence[object], separator: str = "") -> str:
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) < len(items):
        raise EvalError("join: invalid input: not a string")
    check_text(len(separator) * max(0, len(texts) - 1) + sum(map(len, texts)))
    return separator.join(texts)


def quote(text: str) -> str:
    return '"' + text.translate(_QUOTED) + '"'


# --- regular expressions


@lru_cache(maxsize=512)
def pattern(text: str) -> Any:
    """The compiled pattern. Raises EvalError on a syntax that Go's regexp does not have. Thread-safe."""
    import re2  # noqa: PLC0415  only for selectors that use patterns

    if _ANY_BYTE.search(text):
        raise EvalError("error parsing regexp: invalid escape sequence: `\\C`")
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise EvalError(f"error parsing regexp: {_reason(error)} in {text[:80]!r}") from error


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else error
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)


def matches(text: str, expression: str) -> bool:
    if type(text) is not str or type(expression) is not str:
        raise no_overload("matches")
    return pattern(expression).search(text) is not None


def find(text: str, expression: str) -> str:
    found = pattern(expression).search(text)
    return "" if found is None else str(found.group())


def find_all(text: str, expression: str, count: int = -1) -> list[str]:
    """All matches, except an empty match directly after another match."""
    compiled, end, position = pattern(expression), -1, 0
    found: list[str] = []
    while position <= len(text) and (count < 0 or len(found) < count):
        hit = compiled.search(text, position)
        if hit is None:
            break
        spend(1)
        start, stop = hit.span()
        if start < stop or start != end:
            found.append(text[start:stop])
        end = stop
        position = stop if stop > start else stop + 1
    return found


FUNCTIONS: Final[dict[str, Function]] = {
    "indexOf": index_of,
    "lastIndexOf": last_index_of,
    "contains": lambda text, part: part in text,
    "startsWith": lambda text, part: text.startswith(part),
    "endsWith": lambda text, part: text.endswith(part),
    "charAt": char_at,
    "lowerAscii": lambda text: text.translate(_LOWER),
    "upperAscii": lambda text: text.translate(_UPPER),
    "replace": replace,
    "split": split,
    "substring": substring,
    "trim": lambda text: text.strip(_SPACE),
    "join": join,
    "strings.quote": quote,
    "matches": matches,
    "find": find,
    "findAll": find_all,
}
"""Implementations by function, for all overloads except `lists.OVERLOADS`."""
