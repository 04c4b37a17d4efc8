"""Which format a document has. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate import dra_driver_fields, operator_fields, plugin_fields
from dra_driver.kubectl.migrate.input import InputDocument, Path, list_at
from dra_driver.kubectl.migrate.mig_parted import is_mig_parted
from dra_driver.kubectl.migrate.plugin_config import is_plugin_config

_MOST_ITEMS: Final = 20_000
_OPERATOR_GROUP: Final = "nvidia.com/"


def format_of(document: InputDocument) -> str:
    """The format's name. Raises ConfigurationError for what no translator can read."""
    value = document.value
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{document.place}: expected an object or a configuration, got {_kind(value)}")
    if document.kind:
        return _format_of_object(document)
    if "{{" in str(value.get("kind")) or any("{{" in str(key) for key in value):
        raise ConfigurationError(f"{document.place}: a Helm template; render it first (helm template RELEASE CHART)")
    if is_mig_parted(value):
        return "mig-parted"
    if is_plugin_config(value):
        return "plugin-config"
    keys = set(value)
    if keys & dra_driver_fields.OWN_KEYS:
        return "dra-driver-values"
    if len(keys & operator_fields.OWN_KEYS) >= 1 and keys <= operator_fields.VALUE_KEYS | {"daemonsets"}:
        return "operator-values"
    if keys & plugin_fields.OWN_KEYS and len(keys & plugin_fields.VALUE_KEYS) * 2 > len(keys):
        return "plugin-values"
    if len(keys & operator_fields.VALUE_KEYS) * 2 > len(keys):
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
    if plugin_fields.is_plugin_daemonset(document.value):
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
        inside = list_at(each.value, "items")
        if not each.kind.endswith("List") or not isinstance(each.value.get("items"), list):
            yield each
            continue
        count += len(inside)
        if count > _MOST_ITEMS:
            raise ConfigurationError(f"{document.place}: a list of more than {_MOST_ITEMS} objects; split it")
        kind = each.kind.removesuffix("List")
        lines = _lines_of_items(each)
        found = [_item(each, index, item, kind, lines.get(index, {})) for index, item in enumerate(inside)]
        waiting += reversed(found)


def _lines_of_items(document: InputDocument) -> Mapping[int, Mapping[Path, int]]:
    """The lines of each item's values, by the item's index; in one pass, as lists have thousands of items."""
    found: dict[int, dict[Path, int]] = {}
    for path, line in document.lines.items():
        if len(path) > 1 and path[0] == "items" and isinstance(path[1], int):
            found.setdefault(path[1], {})[path[2:]] = line
    return found


def _item(document: InputDocument, index: int, value: Any, kind: str, lines: Mapping[Path, int]) -> InputDocument:
    # A typed list has kind and version once; in a plain List every item has them.
    if isinstance(value, Mapping) and kind and "kind" not in value:
        value = {"apiVersion": document.api_version, "kind": kind, **value}
    return InputDocument(
        source=document.source,
        number=document.number,
        value=value,
        line=document.line_of(("items", index)),
        lines=lines,
        inside=document.inside,
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else "a list" if isinstance(value, list) else f"the text {str(value)[:40]!r}"
