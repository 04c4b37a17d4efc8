"""Base of the JSON documents that commands print. docs/json.md lists their fields (scripts/json_docs.py)."""

from typing import Any, Final

from msgspec import Struct, to_builtins

API_VERSION: Final = "cli.dra-driver.io/v1"
"""Version of all documents. A version can add fields, but never renames or removes one."""
_UNITS: Final = {"s": "Seconds", "mib": "MiB"}


def camel(name: str) -> str:
    """Return the key in JSON: ``idleSeconds`` for ``idle_s``."""
    first, *rest = name.split("_")
    return first + "".join(_UNITS.get(part, part.capitalize()) for part in rest)


class JsonDocument(Struct, frozen=True, kw_only=True, rename=camel, tag_field="kind", tag=True):
    """One document; the name of the subclass is its ``kind``. Lists have ``items``. Keys end with their unit: a number
    of bytes is ``usedBytes``, a time span ``idleSeconds``, a share of one ``smRatio``. A time is RFC 3339 and its key
    ends with ``At``. null is unknown, never zero."""

    api_version: str = API_VERSION


def to_wire(document: JsonDocument) -> dict[str, Any]:
    """Return the document as JSON has it, its version first."""
    wire = to_builtins(document)
    return {"apiVersion": wire.pop("apiVersion"), **wire}
