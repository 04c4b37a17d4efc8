"""Reads and writes YAML as Kubernetes does (sigs.k8s.io/yaml: YAML 1.1 with go-yaml v2's rules, then JSON).

``1:59:59`` and dates are text, ``0o17`` is 15, ``yes`` is true, unknown tags are ignored, and keys become text. Depth
and aliases are limited before memory grows. PyYAML is imported on the first call.
"""

import base64
import re
from collections.abc import Iterator
from typing import Any, Final

MAX_DEPTH: Final = 100
MAX_ALIASED: Final = 1_000_000
"""Values of a text with aliases written out; text without aliases has no limit."""
_TAG: Final = "tag:yaml.org,2002:"
_INT: Final = re.compile(r"([-+]?)(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|0|[1-9][0-9]*)")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt ][0-9:.]+(?:Z|[-+][0-9:]+)?)?")
_NOT_JSON: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NUMERIC: Final = frozenset("+-.0123456789")
_LONGEST_INT: Final = 70  # 64 binary digits, their prefix and a sign
_WORDS: Final[dict[str, bool | None]] = {
    **{form: None for word in ("null", "~", "") for form in (word, word.upper(), word.capitalize())},
    **{form: True for word in ("true", "yes", "on", "y") for form in (word, word.upper(), word.capitalize())},
    **{form: False for word in ("false", "no", "off", "n") for form in (word, word.upper(), word.capitalize())},
}
Scalar = None | bool | int | float | str


def scalar(text: str, tag: str | None = None, *, plain: bool = True) -> Scalar:
    """Return the value of a scalar; ``plain`` is without quotes. Raises ValueError for values that Kubernetes
    refuses: infinity, text that is not a number, a value that its tag does not allow."""
    kind = tag.removeprefix(_TAG) if tag else ""
    if kind == "binary":
        return _binary(text)
    if kind not in {"", "null", "bool", "int", "float", "timestamp"} or not (plain or kind):
        return text
    if _NOT_JSON.fullmatch(text):
        raise ValueError(f"{text} is not a JSON value; quote it if it is text")
    value = _number(text) if text[:1] in _NUMERIC else _WORDS.get(text, text)
    if kind == "timestamp":
        fits = _TIME.fullmatch(text) is not None
        value = text
    else:
        found = {type(None): "null", bool: "bool", int: "int", float: "float"}.get(type(value), "str")
        fits = kind in {"", found} or (kind, found) == ("float", "int")
    if not fits:
        raise ValueError(f"{text[:40]!r} does not have the type that its tag !!{kind} says")
    return value


def _number(text: str) -> int | float | str:
    digits = text.replace("_", "")
    if len(digits) <= _LONGEST_INT and (found := _INT.fullmatch(digits)):
        number = found[2].lower()
        base = {"0x": 16, "0b": 2}.get(number[:2], 8 if number[:1] == "0" else 10)
        value = int(found[1] + number.removeprefix("0o"), base)
        if -(2**63) <= value < 2**64:
            return value
    if not _FLOAT.fullmatch(digits):
        return text
    as_float = float(digits)
    if as_float in (float("inf"), float("-inf")):
        return text
    return int(as_float) if as_float.is_integer() and abs(as_float) < 2**53 else as_float  # JSON has 3 for 3.0


def _binary(text: str) -> str:
    try:
        return base64.b64decode(text.replace("\n", ""), validate=True).decode(errors="replace")
    except ValueError as error:
        raise ValueError("!!binary is not base64") from error


def load(text: str | bytes) -> object:
    """Return the first document; None if there is none. Raises ValueError as `load_all`."""
    return next(load_all(text), None)


def load_all(text: str | bytes) -> Iterator[object]:
    """Yield the documents, also empty ones, as JSON values. Raises ValueError that names the line."""
    import yaml  # noqa: PLC0415 - a node with real GPUs never needs YAML

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    reader = _Reader()
    try:
        for event in yaml.parse(text, Loader=loader):
            kind = type(event).__name__
            if kind == "DocumentStartEvent":
                reader = _Reader()
            elif kind == "DocumentEndEvent":
                yield reader.document
            elif kind not in {"StreamStartEvent", "StreamEndEvent"}:
                try:
                    reader.take(kind, event)
                except ValueError as error:
                    line = event.start_mark.line + 1 if event.start_mark is not None else 0
                    raise ValueError(f"line {line}: {error}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
        raise ValueError(f"line {mark.line + 1}: {problem}" if mark else f"not YAML: {problem}") from error


_MERGE: Final = object()
_NO_KEY: Final = object()


class _Open:
    """A list or mapping whose end is not read yet; ``size`` counts its values with aliases written out."""

    __slots__ = ("anchor", "key", "size", "value")

    def __init__(self, value: Any, anchor: str | None) -> None:
        self.value, self.anchor, self.size, self.key = value, anchor, 1, _NO_KEY


class _Reader:
    """Builds one document from events, without recursion."""

    def __init__(self) -> None:
        self.document: object = None
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[object, int]] = {}

    def take(self, kind: str, event: Any) -> None:
        if kind == "ScalarEvent":
            value: object = scalar(event.value, event.tag, plain=event.implicit[0])
            if event.value == "<<" and event.implicit[0] and self._is_key:
                value = _MERGE
            self._put(event.anchor, value, 1)
        elif kind == "AliasEvent":
            if any(each.anchor == event.anchor for each in self._stack):
                raise ValueError(f"the alias *{event.anchor[:60]} contains itself")
            if event.anchor not in self._anchors:
                raise ValueError(f"no anchor &{event.anchor[:60]} before this alias")
            self._put(None, *self._anchors[event.anchor], aliased=True)
        elif kind in {"MappingStartEvent", "SequenceStartEvent"}:
            if len(self._stack) >= MAX_DEPTH:
                raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
            self._stack.append(_Open({} if kind == "MappingStartEvent" else [], event.anchor))
        else:
            ended = self._stack.pop()
            self._put(ended.anchor, ended.value, ended.size)

    @property
    def _is_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1].value, dict) and self._stack[-1].key is _NO_KEY

    def _put(self, anchor: str | None, value: object, size: int, *, aliased: bool = False) -> None:
        if anchor is not None:
            self._anchors[anchor] = value, size
        if not self._stack:
            self.document = value
            return
        parent = self._stack[-1]
        parent.size += size
        if aliased and parent.size > MAX_ALIASED:
            raise ValueError(f"its aliases (*name) stand for more than {MAX_ALIASED} values")
        if isinstance(parent.value, list):
            parent.value.append(value)
        elif parent.key is _NO_KEY:
            parent.key = value if value is _MERGE else _key(value)
        else:
            key, parent.key = parent.key, _NO_KEY
            if key is _MERGE:
                _merge(parent.value, value)
            else:
                parent.value[key] = value


def _key(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None or isinstance(value, dict | list):
        shown = "nothing" if value is None else "a mapping" if isinstance(value, dict) else "a list"
        raise ValueError(f"a key must be text, this is {shown}")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _merge(into: dict[str, object], value: object) -> None:
    """As go-yaml v2: in the order of the text, of a list the first one wins."""
    sources = value if isinstance(value, list) else [value]
    if not all(isinstance(each, dict) for each in sources):
        raise ValueError("a merge key (<<) takes a mapping or a list of mappings")
    for each in reversed(sources):
        into.update(each)


def dump(value: object, *, width: int = 120) -> str:
    """Return YAML without aliases. Text that Kubernetes would read as another value is quoted (``"y"``, ``"1e3"``)."""
    import yaml  # noqa: PLC0415 - see above

    base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Dumper(base):  # type: ignore[misc]
        def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  the name is PyYAML's
            return True

    Dumper.add_representer(str, _represent)
    return str(yaml.dump(value, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=width))


def _represent(dumper: Any, text: str) -> Any:
    try:
        quote = not isinstance(scalar(text), str)
    except ValueError:
        quote = True
    return dumper.represent_scalar(f"{_TAG}str", text, style="'" if quote else None)
