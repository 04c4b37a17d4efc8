"""Record the outcome of each field of the input documents, with its reason.

A note covers its path and everything below. `Ledger.close` adds a note for every field without one.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct, field

from dra_driver.core.document import camel
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import cut

Path = tuple[str | int, ...]
"""Keys and indexes from the top of a document."""

_PLAIN_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class InputDocument(Struct, frozen=True, kw_only=True):
    """A document of a file, as plain values. ``number`` counts the file's documents from 1.

    ``lines`` has the known line of each value. ``inside`` is the place in another document, such as a ConfigMap, that
    contains this one as text.
    """

    source: str
    number: int
    value: object
    line: int = 1
    lines: Mapping[Path, int] = field(default_factory=dict)
    inside: str = ""

    @property
    def kind(self) -> str:
        return text_at(self.value, "kind")

    @property
    def api_version(self) -> str:
        return text_at(self.value, "apiVersion")

    @property
    def name(self) -> str:
        return text_at(self.value, "metadata", "name") or text_at(self.value, "metadata", "generateName")

    @property
    def namespace(self) -> str:
        return text_at(self.value, "metadata", "namespace")

    @property
    def label(self) -> str:
        """``Deployment team-a/train`` for messages; for a document that is not an object, its number."""
        if not self.kind:
            return f"document {self.number}{f' in {self.inside}' if self.inside else ''}"
        return f"{self.kind} {self.namespace + '/' if self.namespace else ''}{self.name or '(no name)'}"

    @property
    def place(self) -> str:
        return f"{self.source}:{self.line}: document {self.number}"

    def line_of(self, path: Path) -> int:
        """Return the line of the value, or of the nearest value above it."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return self.line

    def error(self, path: Path, text: str) -> ConfigurationError:
        """Return an error with the value's place in the file and its path."""
        place = f"{self.source}:{self.line_of(path)}: document {self.number}"
        return ConfigurationError(f"{place}: {path_text(path)}: {text}")


def at(value: object, *path: str | int) -> object:
    """Return the value below ``path``, or None."""
    for step in path:
        if isinstance(step, str):
            value = value.get(step) if isinstance(value, dict) else None
        else:
            value = value[step] if isinstance(value, list) and 0 <= step < len(value) else None
    return value


def text_at(value: object, *path: str | int) -> str:
    """Return the text below ``path``, or ""."""
    found = at(value, *path)
    return found if isinstance(found, str) else ""


def mapping_at(value: object, *path: str | int) -> dict[str, object]:
    """Return the mapping below ``path``, not a copy; an empty one if there is none."""
    found = at(value, *path)
    return found if isinstance(found, dict) else {}


def list_at(value: object, *path: str | int) -> list[object]:
    """Return the list below ``path``, not a copy; an empty one if there is none."""
    found = at(value, *path)
    return found if isinstance(found, list) else []


def list_in(parent: dict[str, object], key: str) -> list[object]:
    """Return the list under ``key``, created if missing. Raises TypeError for other values."""
    found = parent.setdefault(key, [])
    if not isinstance(found, list):
        raise TypeError(f"{key} is not a list")
    return found


def children(value: object) -> list[tuple[str | int, object]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, list) else []


def path_text(path: Path) -> str:
    """``spec.containers[0].resources.limits["nvidia.com/gpu"]``."""
    parts = []
    for step in path:
        if isinstance(step, int):
            parts.append(f"[{step}]")
        elif _PLAIN_KEY.fullmatch(step):
            parts.append(f".{step}" if parts else step)
        else:
            parts.append(f'["{step}"]')
    return "".join(parts) or "(all)"


PLUGIN_LABEL = "nvidia.com/device-plugin.config"
MIG_LABEL = "nvidia.com/mig.config"


class ReplicatedResource(Struct, frozen=True, kw_only=True):
    """A resource that the device plugin replicates, under the name ``renamed`` if set."""

    name: str
    replicas: int
    renamed: str = ""


class PluginConfig(Struct, frozen=True, kw_only=True):
    """Subset of a device plugin's config for policies. ``strategy`` is MPS, TimeSlicing or ""."""

    name: str
    mig_strategy: str = ""
    strategy: str = ""
    several_refused: bool = False
    replicated: Sequence[ReplicatedResource] = ()


class GpuLayout(Struct, frozen=True, kw_only=True):
    """An entry of a mig-parted config. ``minors`` None: all GPUs; ``products`` empty: any product; ``profiles`` None:
    MIG is off. ``pinned``: ``mig.layout`` has the counts.
    """

    minors: tuple[int, ...] | None
    products: tuple[str, ...]
    profiles: Mapping[str, int] | None
    pinned: bool = False


class Gathered(Struct):
    """Results of the configuration translators.

    ``values`` are the chart's, by key. ``plugin_default`` and ``mig_default`` are the configs of nodes without a label.
    ``standalone`` are plugin configs from files, which no label selects.
    """

    values: dict[tuple[str, ...], object] = field(default_factory=dict)
    value_conflicts: list[str] = field(default_factory=list)
    plugin_configs: dict[str, PluginConfig] = field(default_factory=dict)
    standalone: set[str] = field(default_factory=set)
    plugin_default: str = ""
    layouts: dict[str, Sequence[GpuLayout]] = field(default_factory=dict)
    mig_default: str = ""
    mig_strategy: str = ""
    node_labels: dict[str, Mapping[str, str]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)

    def set_value(self, keys: Sequence[str], value: object) -> None:
        """Set a value of the chart. The first value of a key applies; a different one is a conflict."""
        first = self.values.setdefault(tuple(keys), value)
        if first != value:
            self.value_conflicts.append(f"{'.'.join(keys)}: {first!r} applies; another input has {value!r}")

    @property
    def default_config(self) -> str:
        """Config of nodes without a label, selected as by the plugin's config-manager ("named", then "single")."""
        if self.plugin_default:
            return self.plugin_default
        if "default" in self.plugin_configs:
            return "default"
        return next(iter(self.plugin_configs)) if len(self.plugin_configs) == 1 else ""

    def nodes_with(self, label: str, value: str) -> tuple[str, ...]:
        """Return the names of the nodes among the inputs whose label has the value."""
        return tuple(sorted(name for name, labels in self.node_labels.items() if labels.get(label) == value))


UNKNOWN: Final = "unknown field"
UNCHANGED: Final = "unchanged"


class FieldOutcome(StrEnum):
    """``CARRIED``: equivalent. ``CHANGED``: similar. ``NOT_CARRIED``: no counterpart."""

    CARRIED = "carried over"
    CHANGED = "changed meaning"
    NOT_CARRIED = "not carried over"


CARRIED: Final = FieldOutcome.CARRIED
CHANGED: Final = FieldOutcome.CHANGED
LOST: Final = FieldOutcome.NOT_CARRIED


class FieldNote(Struct, frozen=True, kw_only=True, rename=camel):
    """The outcome of one field of an input, or of all fields below it: ``outcome`` is a `FieldOutcome`."""

    outcome: str
    file: str
    document: int
    line: int
    object: str
    field: str
    value: str
    message: str


class Ledger:
    """Notes about one document."""

    def __init__(self, document: InputDocument) -> None:
        self._document = document
        self._notes: list[tuple[Path, FieldNote]] = []

    def carried(self, path: Path, text: str) -> None:
        self.note(CARRIED, path, text)

    def changed(self, path: Path, text: str) -> None:
        self.note(CHANGED, path, text)

    def lost(self, path: Path, text: str) -> None:
        self.note(LOST, path, text)

    def close(self, rest: FieldOutcome = LOST, text: str = UNKNOWN) -> tuple[FieldNote, ...]:
        """Return all notes in the order of paths; fields without one get ``rest`` and ``text``."""
        noted = {path for path, _ in self._notes}
        above = {path[:length] for path in noted for length in range(len(path))}
        waiting: list[tuple[Path, object]] = [((), self._document.value)]
        while waiting:
            path, value = waiting.pop()
            if path in noted:
                continue
            if path in above:
                waiting += [((*path, step), item) for step, item in children(value)]
            else:
                self.note(rest, path, text)
        ordered = sorted(self._notes, key=lambda item: (item[1].line, [str(step) for step in item[0]]))
        return tuple(note for _, note in ordered)

    def note(self, outcome: FieldOutcome, path: Path, text: str) -> None:
        document = self._document
        note = FieldNote(
            outcome=outcome,
            file=document.source,
            document=document.number,
            line=document.line_of(path),
            object=document.label,
            field=path_text(path),
            value=_shown(at(document.value, *path)),
            message=text,
        )
        self._notes.append((path, note))


def _shown(value: object) -> str:
    if isinstance(value, dict | list) or value is None:
        return ""
    text = str(value).lower() if isinstance(value, bool) else " ".join(str(value).split())
    return cut(text, 60)


# --- Tables of fields. A rule is found by the field's path ("*" is any key or index) and holds for everything below it.

Act = Callable[[object, Path, Ledger, Gathered], None]
Rule = tuple[FieldOutcome, str] | Act
Rules = Mapping[str, Rule]

NOTHING: Final[Rule] = (CARRIED, "empty")
OFF: Final[Rule] = (CARRIED, "disabled")
_EMPTY: Final[tuple[object, ...]] = (None, "", {}, [])


def apply(value: object, rules: Rules, ledger: Ledger, gathered: Gathered, base: Path = ()) -> None:
    """Apply the rule of each field of ``value``; fields without a rule are left to `Ledger.close`."""
    split = [(tuple(pattern.split(".")), rule) for pattern, rule in rules.items()]
    waiting: list[tuple[Path, object]] = [((), value)]
    while waiting:
        path, found = waiting.pop()
        rule = next((rule for pattern, rule in split if _fits(pattern, path)), None) if path else None
        # A longer rule cannot match below an empty mapping.
        deeper = bool(children(found)) and any(
            len(pattern) > len(path) and _fits(pattern[: len(path)], path) for pattern, _ in split
        )
        if rule is not None and not deeper:
            use(rule, found, (*base, *path), ledger, gathered)
        else:
            waiting += [((*path, step), item) for step, item in reversed(children(found))]


def to_value(*keys: str, text: str = "") -> Act:
    """Return a rule: the value becomes ``keys`` of the chart; a key ``{key}`` is the field's own name."""

    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        if value in _EMPTY:
            ledger.carried(path, "empty: the chart's default applies")
            return
        place = [str(path[-1]) if key == "{key}" else key for key in keys]
        gathered.set_value(place, value)
        ledger.carried(path, text or f"became {'.'.join(place)} of the chart's values")

    return act


def switch(when_on: Rule, when_off: Rule | None = None) -> Act:
    """Return ``when_on`` for a field that is true, else ``when_off`` or "disabled"."""

    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        on = value is True or str(value).lower() == "true"
        rule = when_on if on else when_off or OFF
        use(rule, value, path, ledger, gathered)

    return act


def when(values: Collection[object], rule: Rule, otherwise: Rule) -> Act:
    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        use(rule if value in values else otherwise, value, path, ledger, gathered)

    return act


def unless_empty(rule: Rule) -> Act:
    return when(_EMPTY, NOTHING, rule)


def use(rule: Rule, value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if isinstance(rule, tuple):
        ledger.note(rule[0], path, rule[1])
    else:
        rule(value, path, ledger, gathered)


def _fits(pattern: tuple[str, ...], path: Path) -> bool:
    return len(pattern) == len(path) and all(part in {"*", str(step)} for part, step in zip(pattern, path, strict=True))
