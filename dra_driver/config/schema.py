"""Check a value against a compact schema, and name the path of every wrong field.

``scripts/gen.py`` generates ``schema.json`` from the models in ``config/schemas``, which would take 9 MiB in every node
process. The recursion is as deep as the schema. Messages end in events and logs, so they quote only short, escaped
pieces of the input. JSON null in an optional field means that it is absent, as in Kubernetes. Booleans are not numbers,
numbers are not text, and fractions are not supported.

A schema is a mapping with ``type`` and, by type:

    object    fields, required, rules (names); ``open`` when other fields are allowed
    map       values, max (number of entries)
    list      items, max, unique (the field of an item that must not repeat)
    string    min, max (characters), pattern (of all of it), says (the expected form, in words)
    enum      values
    integer   min, max
    quantity  min, max (whole units)
    boolean
    any       an object that is not checked further
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from msgspec import Struct

from dra_driver.config.rules import RULES
from dra_driver.core.quantity import Quantity
from dra_driver.core.text import cut, printable, quoted

Schema: TypeAlias = Mapping[str, Any]
Step: TypeAlias = str | int

MAX_SHOWN_PROBLEMS: Final = 5
_MAX_SHOWN: Final = 60
_FILE: Final = Path(__file__).with_name("schema.json")


class FieldProblem(Struct, frozen=True):
    """One wrong field: its path (empty for the value) and the problem in words."""

    path: tuple[Step, ...]
    text: str

    def __str__(self) -> str:
        return printable(f"{path_text(self.path)}: {self.text}" if self.path else self.text)


@functools.cache
def schemas() -> Mapping[str, Schema]:
    """The generated schemas by kind. Do not change them."""
    loaded: Mapping[str, Schema] = json.loads(_FILE.read_text(encoding="utf-8"))
    return loaded


def problems(value: object, schema: Schema) -> list[FieldProblem]:
    """All problems of ``value``, in the schema's order; empty when it is valid."""
    return list(_value(value, schema, ()))


def size_problem(value: object, *, max_bytes: int, max_depth: int) -> str | None:
    """The exceeded limit of size or depth of its JSON; None if there is none. Does not recurse."""
    level: list[object] = [value]
    size = 0
    for _ in range(max_depth):
        below: list[object] = []
        for node in level:
            size += _own_size(node)
            below.extend(node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ())
        if size > max_bytes:
            return f"larger than {max_bytes} bytes"
        if not below:
            return None
        level = below
    return f"nested more than {max_depth} levels deep"


def sentence(found: Sequence[FieldProblem]) -> str:
    """Return the first problems in one line, and the number of further problems."""
    shown = [str(problem) for problem in found[:MAX_SHOWN_PROBLEMS]]
    more = len(found) - len(shown)
    return "; ".join([*shown, *([f"and {more} more"] if more else [])])


def path_text(path: Sequence[Step]) -> str:
    """``spec.taints[0].key``; long keys are shortened."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f"{'.' if text else ''}{cut(printable(step), _MAX_SHOWN)}"
    return text


def shown(value: object) -> str:
    """A value, short enough for an event; objects and lists only by type."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and value.bit_length() > 128:
        return "a huge number"  # Python refuses to print numbers beyond some thousand digits
    return quoted(value, _MAX_SHOWN)


def _own_size(node: object) -> int:
    """About how many characters the node has in JSON without its children."""
    if isinstance(node, Mapping):
        return 2 + sum(len(str(key)) + 4 for key in node)
    if isinstance(node, int):
        return 1 + node.bit_length() // 4  # a number may be as long as a text
    return len(node) + 2 if isinstance(node, str | list) else 4


def _value(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    yield from _CHECKS[schema["type"]](value, schema, path)


def _object(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    if not isinstance(value, Mapping):
        yield FieldProblem(path, f"expected an object, got {shown(value)}")
        return
    fields: Mapping[str, Schema] = schema["fields"]
    found: list[FieldProblem] = []
    for name, field in fields.items():
        if (inner := value.get(name)) is not None:
            found.extend(_value(inner, field, (*path, name)))
        elif name in schema.get("required", ()):
            found.append(FieldProblem((*path, name), "is required"))
    if not schema.get("open"):
        found.extend(FieldProblem((*path, str(name)), "unknown field") for name in value if name not in fields)
    if not found:  # rules are evaluated only on valid fields
        rules = (RULES[name] for name in schema.get("rules", ()))
        found.extend(FieldProblem(path, rule.message) for rule in rules if rule.broken(value))
    yield from found


def _any(value: object, _schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    if not isinstance(value, Mapping):
        yield FieldProblem(path, f"expected an object, got {shown(value)}")


def _map(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    if not isinstance(value, Mapping):
        yield FieldProblem(path, f"expected an object, got {shown(value)}")
    elif len(value) > schema["max"]:
        yield FieldProblem(path, f"expected at most {schema['max']} entries, got {len(value)}")
    else:
        for key, inner in value.items():
            yield from _value(inner, schema["values"], (*path, str(key)))


def _list(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    if not isinstance(value, list):
        yield FieldProblem(path, f"expected a list, got {shown(value)}")
        return
    if len(value) > schema["max"]:
        yield FieldProblem(path, f"expected at most {schema['max']} entries, got {len(value)}")
        return
    found = [problem for at, item in enumerate(value) for problem in _value(item, schema["items"], (*path, at))]
    if not found and (field := schema.get("unique")) and (twice := repeated(value, field)) is not None:
        found.append(FieldProblem(path, f"two entries have {field} {shown(twice)}"))
    yield from found


def repeated(items: Sequence[Mapping[str, object]], field: str) -> object:
    """The first value of ``field`` that two items have, or None."""
    seen = set()
    for item in items:
        if item[field] in seen:
            return item[field]
        seen.add(item[field])
    return None


def _string(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    expected = schema.get("says", "text")
    shortest, longest = schema.get("min", 0), schema["max"]
    if not isinstance(value, str) or not _is_unicode(value):
        yield FieldProblem(path, f"expected {expected}, got {shown(value)}")
    elif not shortest <= len(value) <= longest:
        yield FieldProblem(path, f"expected {expected} of {shortest} to {longest} characters, got {len(value)}")
    elif "pattern" in schema and not re.fullmatch(schema["pattern"], value):
        yield FieldProblem(path, f"expected {expected}, got {shown(value)}")


def _is_unicode(text: str) -> bool:
    """JSON can escape half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _enum(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    values: Sequence[str] = schema["values"]
    if not isinstance(value, str) or value not in values:
        *most, last = map(repr, values)
        expected = f"{', '.join(most)} or {last}" if most else last
        yield FieldProblem(path, f"expected {expected}, got {shown(value)}")


def _integer(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    low, high = schema["min"], schema["max"]
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        yield FieldProblem(path, f"expected a whole number from {low} to {high}, got {shown(value)}")


def _boolean(value: object, _schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    if not isinstance(value, bool):
        yield FieldProblem(path, f"expected true or false, got {shown(value)}")


def _quantity(value: object, schema: Schema, path: tuple[Step, ...]) -> Iterator[FieldProblem]:
    try:
        quantity_of(value, schema["min"], schema["max"])
    except ValueError as error:
        yield FieldProblem(path, str(error))


def quantity_of(value: object, low: int, high: int) -> Quantity:
    """The quantity of a text or a whole number. Raises ValueError for other values and outside the bounds."""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise ValueError(f"expected a quantity such as 10Gi, got {shown(value)}")  # noqa: TRY004 - one kind of error
    if isinstance(value, int) and value.bit_length() > 128:
        raise ValueError(f"expected at most {Quantity.from_bytes(high)}, got {shown(value)}")
    amount = Quantity.parse(str(value))
    if amount.as_int() < low:
        raise ValueError(f"expected at least {Quantity.from_bytes(low)}, got {shown(value)}")
    if amount.as_int() > high:
        raise ValueError(f"expected at most {Quantity.from_bytes(high)}, got {shown(value)}")
    return amount


_CHECKS: Final[Mapping[str, Callable[[object, Schema, tuple[Step, ...]], Iterator[FieldProblem]]]] = {
    "object": _object,
    "any": _any,
    "map": _map,
    "list": _list,
    "string": _string,
    "enum": _enum,
    "integer": _integer,
    "boolean": _boolean,
    "quantity": _quantity,
}
