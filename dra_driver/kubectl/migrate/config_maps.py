"""ConfigMaps with configs of the device plugin or of mig-parted, and the same within values of a chart. Pure.

The device plugin's ConfigMap has a config for each key; the node label nvidia.com/device-plugin.config names the key.
mig-parted's has one file with all layouts; the node label nvidia.com/mig.config names the layout.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Final

from msgspec.structs import replace

from dra_driver.kubectl.migrate import mig_parted, plugin_config
from dra_driver.kubectl.migrate.gathered import Gathered
from dra_driver.kubectl.migrate.input import InputDocument, mapping_at
from dra_driver.kubectl.migrate.ledger import FieldOutcome, Ledger, MigrationNote
from dra_driver.kubectl.migrate.objects_left import untouched

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
    return found, ledger.close(FieldOutcome.CARRIED, "stays as it is, for the nodes of the device plugin")


def inline(document: InputDocument, read_text: ReadText) -> list[tuple[str, InputDocument]]:
    """The configs that values of a chart contain, by their keys. Raises ConfigurationError."""
    return [each for path in _INLINE for each in _read(document, path, read_text)]


def translate(document: InputDocument, key: str, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """A config that was in a ConfigMap under ``key``."""
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
        if isinstance(text, Mapping):  # values may have a mapping in place of a text
            found.append((key, replace(document, value=text, lines={}, inside=f"{'.'.join(path)}.{key}")))
            continue
        if not isinstance(text, str) or not any(mark in text for mark in _MARKS):
            continue
        where = f"{document.source}:{document.line_of((*path, key))}: {document.label}, {'.'.join(path)}.{key}"
        for each in read_text(text, where):
            if mig_parted.is_mig_parted(each.value) or plugin_config.is_plugin_config(each.value):
                found.append((key, replace(each, number=document.number, inside=where)))
    return found
