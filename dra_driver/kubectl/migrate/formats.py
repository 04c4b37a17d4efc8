"""Which format a document has. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate import mig_parted, plugin_config
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    Gathered,
    InputDocument,
    Ledger,
    MigrationNote,
    Path,
    at,
    mapping_at,
)
from dra_driver.kubectl.migrate.mig_parted import is_mig_parted
from dra_driver.kubectl.migrate.operator_fields import DRA_DRIVER_KEYS, OWN_KEYS, VALUE_KEYS
from dra_driver.kubectl.migrate.plugin_config import (
    CHART_OWN_KEYS,
    CHART_VALUE_KEYS,
    is_plugin_config,
    is_plugin_daemonset,
)

# --- ConfigMaps with configs of the device plugin or of mig-parted, and the same within values of a chart.
#
# The device plugin's ConfigMap has a config for each key; the node label nvidia.com/device-plugin.config names the key.
# mig-parted's has one file with all layouts; the node label nvidia.com/mig.config names the layout.

ReadText = Callable[[str, str], Sequence[InputDocument]]
"""Reads the documents of a text that is in another document; the second argument says where."""
_INLINE: Final = (("config", "map"), ("devicePlugin", "config", "data"), ("migManager", "config", "data"))
_MARKS: Final = ("mig-configs:", "sharing:", "migStrategy", "flags:", '"sharing"', '"mig-configs"', '"flags"')


def contents(
    document: InputDocument, read_text: ReadText
) -> tuple[list[tuple[str, InputDocument]], tuple[MigrationNote, ...]]:
    """The configs in a ConfigMap by their keys, and notes about the ConfigMap. Raises ConfigurationError."""
    found = _read(document, ("data",), read_text)
    if not found:
        return [], untouched(document)
    ledger = Ledger(document)
    for key, _ in found:
        ledger.carried(("data", key), "read as a configuration; its fields follow")
    return found, ledger.close(CARRIED, "stays as it is, for the nodes of the device plugin")


def untouched(document: InputDocument) -> tuple[MigrationNote, ...]:
    return Ledger(document).close(CARRIED, "stays as it is and is not printed: it asks for no GPU")


def inline(document: InputDocument, read_text: ReadText) -> list[tuple[str, InputDocument]]:
    """The configs that values of a chart contain, by their keys. Raises ConfigurationError."""
    return [each for path in _INLINE for each in _read(document, path, read_text)]


def translate_config(document: InputDocument, key: str, gathered: Gathered) -> tuple[MigrationNote, ...]:
    if mig_parted.is_mig_parted(document.value):
        return mig_parted.translate(document, gathered)
    return plugin_config.translate(document, key, gathered)


def translate_file(document: InputDocument, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """A config of the device plugin that is a file of its own: no label chooses it, so it is for all nodes."""
    stem = PurePath(document.source).stem
    name = stem if stem.isprintable() and stem not in {"", "-", "<stdin>"} else "config"
    gathered.standalone.add(name)
    return plugin_config.translate(document, name, gathered)


def _read(document: InputDocument, path: Sequence[str], read_text: ReadText) -> list[tuple[str, InputDocument]]:
    found = []
    for key, text in mapping_at(document.value, *path).items():
        if isinstance(text, dict):  # values may have a mapping in place of a text
            found.append((key, replace(document, value=text, lines={}, inside=f"{'.'.join(path)}.{key}")))
            continue
        if not isinstance(text, str) or not any(mark in text for mark in _MARKS):
            continue
        where = f"{document.source}:{document.line_of((*path, key))}: {document.label}, {'.'.join(path)}.{key}"
        for each in read_text(text, where):
            if mig_parted.is_mig_parted(each.value) or plugin_config.is_plugin_config(each.value):
                found.append((key, replace(each, number=document.number, inside=where)))
    return found


_MOST_ITEMS: Final = 20_000
_OPERATOR_GROUP: Final = "nvidia.com/"


def format_of(document: InputDocument) -> str:
    """The format's name. Raises ConfigurationError for what no translator can read."""
    value = document.value
    if not isinstance(value, dict):
        seen = "nothing" if value is None else "a list" if isinstance(value, list) else f"the text {str(value)[:40]!r}"
        raise ConfigurationError(f"{document.place}: expected an object or a configuration, got {seen}")
    if document.kind:
        return _format_of_object(document)
    if "{{" in str(value.get("kind")) or any("{{" in str(key) for key in value):
        raise ConfigurationError(f"{document.place}: a Helm template; render it first (helm template RELEASE CHART)")
    if is_mig_parted(value):
        return "mig-parted"
    if is_plugin_config(value):
        return "plugin-config"
    keys = set(value)
    if keys & DRA_DRIVER_KEYS:
        return "dra-driver-values"
    if len(keys & OWN_KEYS) >= 1 and keys <= VALUE_KEYS | {"daemonsets"}:
        return "operator-values"
    if keys & CHART_OWN_KEYS and len(keys & CHART_VALUE_KEYS) * 2 > len(keys):
        return "plugin-values"
    if len(keys & VALUE_KEYS) * 2 > len(keys):
        return "operator-values"
    shown = ", ".join(str(key)[:30] for key in list(value)[:5])
    raise ConfigurationError(
        f"{document.place}: a format that is not known (it begins with {shown}); expected Kubernetes objects, a config"
        " of the device plugin or of mig-parted, or the values of the device plugin's or the GPU Operator's chart"
    )


def _format_of_object(document: InputDocument) -> str:
    version = document.api_version
    if document.kind == "ClusterPolicy" and version.startswith(_OPERATOR_GROUP):
        if version != "nvidia.com/v1":
            raise ConfigurationError(
                f"{document.place}: ClusterPolicy of {version[:40]} is not known; expected nvidia.com/v1"
            )
        return "cluster-policy"
    if version.startswith(_OPERATOR_GROUP):
        return "operator-object"
    if "{{" in document.name or "{{" in document.kind or "{{" in version:
        raise ConfigurationError(f"{document.place}: a Helm template; render it first (helm template RELEASE CHART)")
    if is_plugin_daemonset(document.value):
        return "plugin-daemonset"
    return {"ConfigMap": "config-map", "Node": "node", "ResourceQuota": "quota", "LimitRange": "limit-range"}.get(
        document.kind, "object"
    )


def items(document: InputDocument) -> Iterator[InputDocument]:
    """The document, or the items of a list."""
    waiting = [document]
    count = 0
    while waiting:
        each = waiting.pop()
        inside = at(each.value, "items")
        if not each.kind.endswith("List") or not isinstance(inside, list):
            yield each
            continue
        count += len(inside)
        if count > _MOST_ITEMS:
            raise ConfigurationError(f"{document.place}: a list of more than {_MOST_ITEMS} objects; split it")
        # One pass over the lines, as lists have thousands of items.
        lines: defaultdict[object, dict[Path, int]] = defaultdict(dict)
        for path, line in each.lines.items():
            if path[:1] == ("items",) and path[1:]:
                lines[path[1]][path[2:]] = line
        # A typed list has kind and version once; in a plain List every item has them.
        usual = {"apiVersion": each.api_version, "kind": kind} if (kind := each.kind.removesuffix("List")) else {}
        for index, item in reversed(list(enumerate(inside))):
            value = {**usual, **item} if isinstance(item, dict) and "kind" not in item else item
            line = each.line_of(("items", index))
            waiting.append(replace(each, value=value, line=line, lines=lines[index]))
