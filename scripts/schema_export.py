"""Translate the models to the node's compact schemas and to CustomResourceDefinitions, for ``scripts/gen.py``.

``config/schema.py`` describes the compact form. The structural schema follows apiextensions.k8s.io/v1: no references,
no ``additionalProperties: false`` with properties (the API server prunes or refuses unknown fields), no null
alternatives.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.json import schema_components
from pydantic import BaseModel

from dra_driver.config.rules import RULES
from dra_driver.config.schemas.device_config import GpuConfig, MigDeviceConfig
from dra_driver.config.schemas.gpu_policy import GpuPolicy
from dra_driver.config.status import NODE_COLUMNS, NODE_WIDE, POLICY_COLUMNS, POLICY_WIDE, ShownField
from dra_driver.core.model.gpu_node import GpuNodeStatus, PolicyStatus
from dra_driver.core.quantity import Quantity

Json = dict[str, Any]

KINDS: Final[tuple[type[BaseModel], ...]] = (GpuConfig, MigDeviceConfig, GpuPolicy)
GROUP: Final = "gpu.dra-driver.io"
_QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)
_CONDITION: Final[Json] = {
    "type": "object",
    "required": ["type", "status", "lastTransitionTime", "reason", "message"],
    "properties": {
        "type": {"type": "string", "maxLength": 316},
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
        "lastTransitionTime": {"type": "string", "format": "date-time"},
        "reason": {"type": "string", "minLength": 1, "maxLength": 1024},
        "message": {"type": "string", "maxLength": 32768},
    },
}
_CONDITIONS: Final[Json] = {
    "description": "Standard conditions, one of each type.",
    "type": "array",
    "maxItems": 16,
    "x-kubernetes-list-type": "map",
    "x-kubernetes-list-map-keys": ["type"],
    "items": _CONDITION,
}


def compact() -> Json:
    """The compact schema of each kind."""
    return {model.__name__: _compact(*_generated(model)) for model in KINDS}


def gpu_policy_crd() -> Json:
    schema, definitions = _generated(GpuPolicy)
    root = _structural(schema, definitions)
    longest = definitions["Metadata"]["properties"]["name"]["maxLength"]
    status = _structural(*_of_struct(PolicyStatus))
    status["properties"]["conditions"] = _CONDITIONS
    root["properties"]["status"] = status
    root["required"] = ["spec"]
    root["x-kubernetes-validations"] = [
        {"rule": f"size(self.metadata.name) <= {longest}", "message": f"names have at most {longest} characters"}
    ]
    return _crd("GpuPolicy", "gpupolicies", "gpupol", root, (POLICY_COLUMNS, POLICY_WIDE))


def gpu_node_crd() -> Json:
    root = {
        "description": "GPUs of one node, as its node process reports them. The object has the name of the node. Only"
        " the node process writes it and overwrites other changes.",
        "type": "object",
        "properties": {"status": _structural(*_of_struct(GpuNodeStatus))},
    }
    return _crd("GpuNode", "gpunodes", "gpuno", root, (NODE_COLUMNS, NODE_WIDE))


def _crd(
    kind: str, plural: str, short: str, root: Json, columns: tuple[Sequence[ShownField], Sequence[ShownField]]
) -> Json:
    """A cluster-scoped kind with one version and the status subresource; its columns, also for ``-o wide``."""
    meta = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    shown = [{"name": name, "type": of_type, "jsonPath": path} for name, of_type, path in columns[0]]
    more = [{"name": name, "type": of_type, "jsonPath": path, "priority": 1} for name, of_type, path in columns[1]]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": plural,
                "singular": kind.lower(),
                "shortNames": [short],
            },
            "scope": "Cluster",
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [*shown[:-1], *more, shown[-1]],
                    "schema": {"openAPIV3Schema": root | {"properties": meta | {**root["properties"], **meta}}},
                }
            ],
        },
    }


def _generated(model: type[BaseModel]) -> tuple[Json, Json]:
    schema = model.model_json_schema(by_alias=True)
    return schema, schema.pop("$defs", {})


def _of_struct(kind: type[Struct]) -> tuple[Json, Json]:
    """As `_generated`: without defaults, which the API server would write, and with `ALWAYS` as required."""
    _, definitions = schema_components((kind,), ref_template="#/$defs/{name}")
    for schema in definitions.values():
        fields = schema.get("properties")
        if fields is None:  # an enum, whose docstring is for readers of the code
            schema.pop("description", None)
            continue
        schema["description"] = schema["description"].partition("\n\n")[0]
        for name, field in fields.items():
            field.pop("default", None)
            if field.pop("x-always", False):
                schema["required"].append(name)
        schema["required"] = [name for name in fields if name in schema["required"]]
    return definitions[kind.__name__], definitions


def _resolved(schema: Json, definitions: Json) -> Json:
    """The schema with references resolved and without null alternatives; keys next to a reference override it."""
    own = {key: value for key, value in schema.items() if key not in {"anyOf", "$ref"}}
    if "$ref" in schema:
        return _resolved(definitions[schema["$ref"].rpartition("/")[2]], definitions) | own
    if "anyOf" in schema:
        (only,) = [option for option in schema["anyOf"] if option.get("type") != "null"]
        return _resolved(only, definitions) | own
    return own


def _compact(written: Json, definitions: Json) -> Json:
    schema = _resolved(written, definitions)
    if "x-quantity" in schema:
        return {"type": "quantity", **schema["x-quantity"]}
    if schema.get("x-any"):
        return {"type": "any"}
    if (values := _enum(schema)) is not None:
        return {"type": "enum", "values": values}
    match schema["type"]:
        case "object" if "properties" in schema:
            return _compact_object(schema, definitions)
        case "object":
            inner = _compact(schema["additionalProperties"], definitions)
            return {"type": "map", "max": schema["maxProperties"], "values": inner}
        case "array":
            found = {"type": "list", "max": schema["maxItems"], "items": _compact(schema["items"], definitions)}
            return found | ({"unique": schema["x-unique"]} if "x-unique" in schema else {})
        case "string":
            found = {"type": "string", "min": schema["minLength"], "max": schema["maxLength"]}
            return found | {
                key: schema[name] for key, name in (("pattern", "pattern"), ("says", "x-says")) if name in schema
            }
        case "integer":
            return {"type": "integer", "min": schema["minimum"], "max": schema["maximum"]}
        case "boolean":
            return {"type": "boolean"}
        case other:
            raise ValueError(f"the compact schema has no type {other}")


def _compact_object(schema: Json, definitions: Json) -> Json:
    fields = {name: _compact(field, definitions) for name, field in schema["properties"].items()}
    extra = {"required": schema.get("required"), "rules": schema.get("x-rules"), "open": schema.get("x-open")}
    return {"type": "object", "fields": fields} | {key: value for key, value in extra.items() if value}


def _structural(written: Json, definitions: Json) -> Json:
    schema = _resolved(written, definitions)
    found: Json = {}
    if text := schema.get("description"):
        found["description"] = " ".join(text.split())
    if schema.get("default") is not None:
        found["default"] = schema["default"]
    if "x-quantity" in schema:
        return found | {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": _QUANTITY,
            "x-kubernetes-int-or-string": True,
            "x-kubernetes-validations": [_quantity_bounds(schema["x-quantity"])],
        }
    if (values := _enum(schema)) is not None:
        return found | {"type": "string", "enum": values}
    found["type"] = schema["type"]
    for name in ("minLength", "maxLength", "pattern", "minimum", "maximum", "maxItems", "required", "format"):
        if schema.get(name) not in (None, []):
            found[name] = schema[name]
    if schema["type"] == "integer":
        found["format"] = "int64"
    if "properties" in schema:
        found["properties"] = {
            name: _structural(field, definitions) for name, field in schema["properties"].items() if name != "status"
        }
    if "items" in schema:
        found["items"] = _structural(schema["items"], definitions)
    if field := schema.get("x-unique"):
        found |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}
    if rules := schema.get("x-rules"):
        found["x-kubernetes-validations"] = [
            {"rule": RULES[name].cel, "message": RULES[name].message} for name in rules
        ]
    return found


def _quantity_bounds(bounds: Mapping[str, int]) -> Json:
    """A rule for ``minimum`` and ``maximum``, which Kubernetes ignores in a quantity. Nodes round fractions of a byte
    away from zero before they compare (``Quantity.Value()``)."""
    low, high = (str(Quantity.from_bytes(bounds[name])) for name in ("min", "max"))
    least = f"isGreaterThan(quantity('{bounds['min'] - 1}'))" if bounds["min"] else "compareTo(quantity('0')) >= 0"
    return {
        "rule": f"quantity(string(self)).{least} && quantity(string(self)).compareTo(quantity('{high}')) <= 0",
        "message": f"expected at least {low}, and at most {high}",
    }


def _enum(schema: Mapping[str, Any]) -> list[str] | None:
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return list(values) if values is not None else None
