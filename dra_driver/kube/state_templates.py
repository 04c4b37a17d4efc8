"""Store equal contents of ResourceSlices once in a state file, and fill them in only where they are read.

Slices of equal nodes differ only in the UUIDs of their GPUs, so templates save most of a file: 2 MiB instead of 190 for
a thousand nodes with eight GPUs in every MIG form. `pull_out` finds templates when a file is written; `TemplatedList`
replaces them after it is read. ``${0}`` in a template is the first value of a slice, ``${1}`` the second.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, overload

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError

Wire = Mapping[str, Any]

FIELDS: Final = ("devices", "sharedCounters")  # the fields of a ResourceSlice's spec that can be templated

USE_FIELD: Final = "like"
"""In the spec of a slice in a file: for each templated field its template's number and its values."""

MAX_VALUES: Final = 512
MAX_DEVICES: Final = 20_000_000
"""Limit of the devices that the templates of one file stand for; a hostile file could name any number."""

_MAX_VALUE_LENGTH: Final = 253
_UUID: Final = re.compile(r'"((?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})"')
_MARK: Final = "${"
_PLACE: Final = re.compile(r"\$\{(\d{1,3})\}")


class Template(Struct, frozen=True, eq=False):
    """The items of a templated field. ``varying`` are the attributes whose values differ between slices, None when
    another value differs, such as the name of a device."""

    items: list[object]
    values: int
    varying: frozenset[str] | None
    with_values: frozenset[int]
    """``id`` of every list and dict that contains a value; all slices share the remaining ones."""

    @classmethod
    def read(cls, items: list[object]) -> "Template":
        """The template with these items. Raises ValueError when its values are not numbered from 0."""
        places: set[int] = set()
        inside: set[int] = set()
        names: set[str] = set()
        clear = _find_values(items, (), places, inside, names)
        if places != set(range(len(places))) or len(places) > MAX_VALUES:
            raise ValueError(f"its values are not numbered from 0 to at most {MAX_VALUES - 1}")
        return cls(items, len(places), frozenset(names) if clear else None, frozenset(inside))


class TemplatedList(Sequence[object]):
    """The items of a template with the values of one slice, filled in on first use. Thread-safe: twice is harmless."""

    __slots__ = ("_filled", "_values", "template")

    def __init__(self, template: Template, values: Sequence[str]) -> None:
        self.template = template
        self._values = values
        self._filled: list[object] | None = None

    def __len__(self) -> int:
        return len(self.template.items)

    def __iter__(self) -> Iterator[object]:
        return iter(self._items())

    @overload
    def __getitem__(self, index: int) -> object: ...
    @overload
    def __getitem__(self, index: slice) -> list[object]: ...
    def __getitem__(self, index: int | slice) -> object:
        return self._items()[index]

    def _items(self) -> list[object]:
        if self._filled is None:
            filled: list[object] = _fill(self.template.items, self.template.with_values, self._values)
            self._filled = filled
        return self._filled


def pull_out(slices: Sequence[Wire]) -> tuple[list[object], list[Wire]]:
    """The templates of these ResourceSlices and the slices that use them; contents that occur once stay. The arguments
    are not changed."""
    found = [{name: _split(item["spec"], name) for name in FIELDS if item["spec"].get(name)} for item in slices]
    often = Counter((name, text) for parts in found for name, (text, _) in parts.items() if text)
    numbers: dict[tuple[str, str], int] = {}
    templates: list[object] = []
    written: list[Wire] = []
    for item, parts in zip(slices, found, strict=True):
        spec = {name: plain(value) for name, value in item["spec"].items()}
        uses = {}
        for name, (text, values) in parts.items():
            if often[name, text] < 2:
                continue
            number = numbers.setdefault((name, text), len(templates))
            if number == len(templates):
                templates.append({"field": name, "items": json.loads(text)})
            uses[name] = [number, values]
            del spec[name]
        written.append({**item, "spec": {**spec, USE_FIELD: uses} if uses else spec})
    return templates, written


def plain(value: object) -> object:
    return list(value) if isinstance(value, TemplatedList) else value


def read_templates(found: object, where: str) -> list[tuple[str, Template]]:
    """The templates of a file's header, each with the field that it is for. Raises ConfigurationError."""
    if not isinstance(found, list):
        raise ConfigurationError(f"{where}: draState.templates is not a list")
    read = []
    for number, entry in enumerate(found):
        name, items = (entry.get("field"), entry.get("items")) if isinstance(entry, dict) else (None, None)
        if name not in FIELDS or not isinstance(items, list):
            raise ConfigurationError(f"{where}: draState.templates[{number}]: expected field and items")
        try:
            read.append((str(name), Template.read(items)))
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"{where}: draState.templates[{number}]: {error or 'nested too deeply'}"
            ) from error
    return read


def use_templates(spec: Wire, templates: Sequence[tuple[str, Template]]) -> dict[str, Any]:
    """Return the spec with its templated fields. Raises ValueError with the reason."""
    uses = spec[USE_FIELD]
    if not isinstance(uses, dict):
        raise ValueError(f"spec.{USE_FIELD}: expected an object")  # noqa: TRY004  as every other misfit
    found = {name: value for name, value in spec.items() if name != USE_FIELD}
    for name, use in uses.items():
        if not (isinstance(use, list) and len(use) == 2 and type(use[0]) is int and isinstance(use[1], list)):
            raise ValueError(f"spec.{USE_FIELD}.{str(name)[:40]}: expected the number of a template and its values")
        number, values = use
        if not 0 <= number < len(templates) or templates[number][0] != name or name in found:
            raise ValueError(f"spec.{USE_FIELD}.{str(name)[:40]}: the file has no template {number} for it")
        template = templates[number][1]
        if len(values) != template.values or not all(
            isinstance(value, str) and len(value) <= _MAX_VALUE_LENGTH for value in values
        ):
            raise ValueError(f"spec.{USE_FIELD}.{name}: expected {template.values} texts as values")
        found[name] = TemplatedList(template, values) if values else template.items
    return found


def _split(spec: Wire, name: str) -> tuple[str, list[str]]:
    text = json.dumps(plain(spec[name]), separators=(",", ":"), ensure_ascii=False)
    if _MARK in text:
        return "", []
    values = list(dict.fromkeys(_UUID.findall(text)))
    if len(values) > MAX_VALUES:
        return "", []
    for place, value in enumerate(values):
        text = text.replace(f'"{value}"', f'"{_MARK}{place}}}"')
    return text, values


def _find_values(part: Any, path: tuple[str, ...], places: set[int], inside: set[int], names: set[str]) -> bool:
    """Collects where values stand below ``part``; returns whether all of them are values of attributes."""
    clear = True
    entries = part.items() if isinstance(part, dict) else enumerate(part)
    hit = False
    for key, value in entries:
        if isinstance(value, dict | list):
            known = len(inside)
            clear &= _find_values(value, (*path, str(key)), places, inside, names)
            hit |= len(inside) > known
        elif isinstance(value, str) and _MARK in value:
            match = _PLACE.fullmatch(value)
            if match is None:
                raise ValueError(f"the text {value[:40]!r} is not a value")
            places.add(int(match[1]))
            hit = True
            is_attribute = len(path) == 3 and path[1] == "attributes" and key == "string"
            names.add(path[2].rpartition("/")[2] if is_attribute else "")
            clear &= is_attribute
    if hit:
        inside.add(id(part))
    return clear


def _fill(part: Any, with_values: frozenset[int], values: Sequence[str]) -> Any:
    if id(part) in with_values:
        if isinstance(part, dict):
            return {key: _fill(value, with_values, values) for key, value in part.items()}
        return [_fill(value, with_values, values) for value in part]
    if isinstance(part, str) and part.startswith(_MARK):
        return values[int(part[2:-1])]
    return part
