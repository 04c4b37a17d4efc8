"""Distil Kubernetes' OpenAPI document into the field table that the embedded API server checks and merges by.

    kubectl get --raw /openapi/v2 > openapi.json
    python scripts/distill_openapi.py openapi.json > dra_driver/sim/apiserver/schema.json
    python scripts/distill_openapi.py openapi.json apps/v1/StatefulSet ... > tests/golden/openapi/practice.json

Kept per field: its type, and how lists and maps merge (x-kubernetes-list-type, -list-map-keys, -map-type, -patch-
strategy, -patch-merge-key), and whether it is required. Descriptions are left out. A field reads ``TYPE[ option=value
...]`` where TYPE is ``string``, ``integer``, ``number``, ``boolean``, ``any``, ``Quantity``, ``Time``, ``MicroTime``,
``IntOrString`` or the name of a type, behind ``[]`` for a list and ``{}`` for a map of it.
"""

import json
import sys
from pathlib import Path
from typing import Any

from dra_driver.sim.apiserver.kinds import ALL_KINDS

PREFIXES = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", "io.k8s.apiextensions-apiserver.pkg.apis.")
SCALARS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "Quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "Time",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "MicroTime",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "IntOrString",
}
READ_ONLY = ("resource.k8s.io/v1beta2/DeviceTaintRule", "v1/PersistentVolumeClaim", "storage.k8s.io/v1/StorageClass")
"""Kinds that the embedded API server does not serve, and of which ``kube_objects.py`` makes structs."""
OPTIONS = {
    "x-kubernetes-list-type": "list",
    "x-kubernetes-list-map-keys": "keys",
    "x-kubernetes-map-type": "map",
    "x-kubernetes-patch-strategy": "patch",
    "x-kubernetes-patch-merge-key": "patchKey",
}


class Distiller:
    """Walks the definitions from the served kinds and keeps every type on the way."""

    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self.types: dict[str, dict[str, str]] = {}

    def short(self, full: str) -> str:
        """The type's name without its package; distils the type on first sight."""
        if full in SCALARS:
            return SCALARS[full]
        definition = self._definitions[full]
        if not definition.get("properties"):
            return "any"
        name = next((full.removeprefix(prefix) for prefix in PREFIXES if full.startswith(prefix)), full)
        if name not in self.types:
            self.types[name] = {}
            self.types[name].update(
                (field, self.field(schema, required=field in definition.get("required", ())))
                for field, schema in sorted(definition["properties"].items())
            )
        return name

    def field(self, schema: dict[str, Any], *, required: bool = False) -> str:
        """One field's type and merge options."""
        options = [
            f"{short}={','.join(value) if isinstance(value, list) else value}"
            for key, short in OPTIONS.items()
            if (value := schema.get(key))
        ]
        if "$ref" in schema and "map" not in schema:
            target = self._definitions[schema["$ref"].rpartition("/")[2]]
            if kind := target.get("x-kubernetes-map-type"):
                options.append(f"map={kind}")
        if required:
            options.append("required=true")
        return " ".join([self.type_of(schema), *options])

    def type_of(self, schema: dict[str, Any]) -> str:
        """The type alone."""
        if "$ref" in schema:
            return self.short(schema["$ref"].rpartition("/")[2])
        if schema.get("type") == "array":
            return "[]" + self.type_of(schema["items"])
        if "additionalProperties" in schema:
            return "{}" + self.type_of(schema["additionalProperties"])
        return "any" if schema.get("type", "object") == "object" else str(schema["type"])


def split(name: str) -> tuple[str, str, str]:
    """Group, version and kind of ``apps/v1/Deployment`` or ``v1/Pod``."""
    *group, version, kind = name.split("/")
    return (group or [""])[0], version, kind


def main() -> None:
    """Read the document named on the command line, print the table of these kinds, by default of all served ones."""
    definitions = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["definitions"]
    by_kind = {
        (each["group"], each["version"], each["kind"]): name
        for name, definition in definitions.items()
        for each in definition.get("x-kubernetes-group-version-kind", ())
    }
    distiller = Distiller(definitions)
    served = (kind for kind in ALL_KINDS if (kind.group, kind.version, kind.kind) in by_kind)  # not this project's own
    wanted = sys.argv[2:] or [*(f"{kind.api_version}/{kind.kind}" for kind in served), *READ_ONLY]
    kinds = {name: distiller.short(by_kind[split(name)]) for name in wanted}
    lines = [f"{json.dumps(name)}: {json.dumps(fields)}" for name, fields in sorted(distiller.types.items())]
    print('{"kinds": ' + json.dumps(kinds, indent=1) + ',\n"types": {\n' + ",\n".join(lines) + "\n}}")


if __name__ == "__main__":
    main()
