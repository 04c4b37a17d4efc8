"""Checks the fields of DRA objects: unknown fields, missing fields and wrong types.

The table follows k8s.io/api resource/v1 (1.36, with alpha fields of 1.37) and v1beta1 where it differs. Of pods it has
only the fields that name claims.
"""

import difflib
from collections.abc import Mapping
from functools import cache
from typing import Final

from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.lint.manifest import Manifest
from dra_driver.kubectl.lint.reading import Spot
from dra_driver.kubectl.lint.reporter import Reporter

_TOP: Final = "apiVersion:str kind:str metadata!:Meta"
_REQUESTED: Final = (
    "deviceClassName!:str selectors:[]Selector allocationMode:str count:int tolerations:[]Toleration"
    " capacity:Capacity derivedAttributes:[]any"
)
_TYPES: Final[Mapping[str, str]] = {
    "DeviceClass": f"{_TOP} spec:ClassSpec",
    "ResourceClaim": f"{_TOP} spec!:ClaimSpec status:any",
    "ResourceClaimTemplate": f"{_TOP} spec!:TemplateSpec",
    "Meta": (
        "name:str generateName:str namespace:str labels:map annotations:map uid:str resourceVersion:any generation:int"
        " creationTimestamp:any deletionTimestamp:any deletionGracePeriodSeconds:int finalizers:[]str"
        " ownerReferences:[]any managedFields:[]any selfLink:str"
    ),
    "ClassSpec": "selectors:[]Selector config:[]ClassConfig extendedResourceName:str",
    "TemplateSpec": "metadata:Meta spec!:ClaimSpec",
    "ClaimSpec": "devices:DeviceClaim",
    "DeviceClaim": "requests:[]Request constraints:[]Constraint config:[]ClaimConfig",
    "Request": "name!:str exactly:Exact firstAvailable:[]Subrequest",
    "FlatRequest": f"name!:str adminAccess:bool firstAvailable:[]Subrequest {_REQUESTED.replace('!', '')}",
    "Exact": f"adminAccess:bool {_REQUESTED}",
    "Subrequest": f"name!:str {_REQUESTED}",
    "Selector": "cel!:Cel",
    "Cel": "expression!:str",
    "Toleration": "key:str operator:str value:str effect:str tolerationSeconds:int",
    "Capacity": "requests:quantities",
    "Constraint": "requests:[]str matchAttribute:str distinctAttribute:str",
    "ClaimConfig": "requests:[]str opaque!:Opaque",
    "ClassConfig": "opaque!:Opaque",
    "Opaque": "driver!:str parameters!:any",
    "PodClaim": "name!:str resourceClaimName:str resourceClaimTemplateName:str",
    "ContainerClaim": "name!:str request:str",
}
_WORDS: Final = {"str": "text", "int": "a whole number", "bool": "true or false", "map": "a mapping"}


@cache
def _fields(type_name: str) -> Mapping[str, tuple[str, bool]]:
    """Maps each field to its type and whether it is required."""
    found = {}
    for word in _TYPES[type_name].split():
        name, _, kind = word.partition(":")
        found[name.removesuffix("!")] = (kind, name.endswith("!"))
    return found


class FieldChecker:
    """Checks one object against the table."""

    def __init__(self, reporter: Reporter, manifest: Manifest) -> None:
        self._reporter = reporter
        self._manifest = manifest
        self._flat = manifest.is_dra and manifest.version == "v1beta1"

    def check(self, spot: Spot, type_name: str) -> None:
        """Reports every invalid field of a value of this type, at any depth."""
        if type_name == "Request" and self._flat:
            type_name = "FlatRequest"
        if spot.node.kind != "map":
            self._invalid(spot, f"expected a mapping, got {spot.node.description}")
            return
        known = _fields(type_name)
        for key, value in spot.pairs():
            if key.text not in known:
                message = f"unknown field {key.text[:80]!r}"
                hint = self._hint(key.text, known, type_name)
                self._reporter.add("DRA003", self._manifest, value, message, hint=hint, at=key)
            elif not value.node.is_null:
                self._value(value, known[key.text][0])
        for name, (_, required) in known.items():
            if required and spot.get(name) is None:
                self._invalid(spot, f"{name} is required")

    def _value(self, spot: Spot, kind: str) -> None:
        node = spot.node
        if kind.startswith("[]"):
            if node.kind != "list":
                self._invalid(spot, f"expected a list, got {node.description}")
            for item in spot.each():
                self._value(item, kind[2:])
        elif kind == "quantities":
            self._quantities(spot)
        elif kind in _WORDS:
            right = {
                "str": isinstance(node.value, str),
                "int": isinstance(node.value, int) and not isinstance(node.value, bool),
                "bool": isinstance(node.value, bool),
                "map": node.kind == "map",
            }[kind]
            if not right:
                quoting = "; put it in quotes" if kind == "str" and node.kind == "scalar" and node.text else ""
                self._invalid(spot, f"expected {_WORDS[kind]}, got {node.description}{quoting}")
        elif kind != "any":
            self.check(spot, kind)

    def _quantities(self, spot: Spot) -> None:
        if spot.node.kind != "map":
            self._invalid(spot, f"expected a mapping, got {spot.node.description}")
        for _, value in spot.pairs():
            try:
                if value.node.kind != "scalar":
                    raise ValueError(f"expected a quantity such as 10Gi, got {value.node.description}")  # noqa: TRY301
                Quantity.parse(value.node.text)
            except ValueError as error:
                self._invalid(value, str(error))

    def _invalid(self, spot: Spot, message: str) -> None:
        self._reporter.add("DRA004", self._manifest, spot, message)

    def _hint(self, name: str, known: Mapping[str, object], type_name: str) -> str:
        if type_name == "Request" and name in _fields("Exact"):
            return "in resource.k8s.io/v1 it is one level deeper: put it under `exactly:`"
        if type_name == "FlatRequest" and name == "exactly":
            return "resource.k8s.io/v1beta1 has no `exactly`; set apiVersion: resource.k8s.io/v1"
        if type_name == "Subrequest" and name == "adminAccess":
            return "a subrequest cannot have admin access; use `exactly`"
        if type_name in {"DeviceClaim", "ClaimSpec"} and name in {"deviceClassName", "exactly", "resourceClassName"}:
            return "devices are requested under spec.devices.requests[].exactly"
        if type_name == "PodClaim" and name == "source":
            return "write resourceClaimName or resourceClaimTemplateName without `source:` (since Kubernetes 1.31)"
        if type_name == "Selector" and name == "expression":
            return "indent it: `expression:` belongs below `cel:`"
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
        return f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known)}"
