"""Check the fields of DRA objects: unknown fields, missing fields and wrong types.

Types are the structs of ``kube/objects/`` (1.36), with alpha fields of 1.37, and v1beta1 where it differs. Of pods only
the fields that name claims are checked.
"""

import difflib
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin

from msgspec import Struct

from dra_driver.core.quantity import Quantity
from dra_driver.kube.objects import core, meta, resource
from dra_driver.kube.shapes import described
from dra_driver.kubectl.lint.finding import Reporter
from dra_driver.kubectl.lint.manifest import Spot

_ALPHA: Final = {"derivedAttributes": ("[]any", False)}
"""Fields of Kubernetes 1.37."""
_MORE: Final[Mapping[str, Mapping[str, tuple[str, bool]]]] = {
    "ExactDeviceRequest": _ALPHA,
    "DeviceSubRequest": _ALPHA,
    "ResourceClaim": {"status": ("any", False)},
    "ObjectMeta": {
        "managedFields": ("[]any", False),
        "ownerReferences": ("[]any", False),
        "deletionGracePeriodSeconds": ("int", False),
        "selfLink": ("str", False),
        **dict.fromkeys(("resourceVersion", "creationTimestamp", "deletionTimestamp"), ("any", False)),
    },
    "DeviceSelector": {"cel": ("CELDeviceSelector", True)},
    "DeviceClaimConfiguration": {"opaque": ("OpaqueDeviceConfiguration", True)},
    "DeviceClassConfiguration": {"opaque": ("OpaqueDeviceConfiguration", True)},
}
"""Fields that the structs lack, and stricter checks: ``cel`` and ``opaque`` are required."""
_WORDS: Final = {"str": "text", "int": "a whole number", "bool": "true or false", "map": "a mapping"}
_KINDS: Final = {str: "str", int: "int", bool: "bool", dict[str, str]: "map", dict[str, meta.Quantity]: "quantities"}


@cache
def _fields(type_name: str) -> Mapping[str, tuple[str, bool]]:
    """Map each field to its type and whether it is required."""
    if type_name == "FlatRequest":  # of v1beta1
        flat = {name: (kind, False) for name, (kind, _) in _fields("ExactDeviceRequest").items()}
        return {name: found for name, found in _fields("DeviceRequest").items() if name != "exactly"} | flat
    kind = getattr(resource, type_name, None) or getattr(core, type_name, None) or getattr(meta, type_name)
    found = {field.encode_name: (_kind(hint), field.required) for field, hint in described(kind)}
    return found | dict(_MORE.get(type_name, {}))


def _kind(hint: Any) -> str:
    arguments = [each for each in get_args(hint) if each not in (types.NoneType, Ellipsis)]
    if get_origin(hint) is tuple:
        return f"[]{_kind(arguments[0])}"
    if type(None) in get_args(hint):
        (hint,) = arguments
    if isinstance(hint, type) and issubclass(hint, Struct):
        return hint.__name__
    return _KINDS.get(hint, "any")


class FieldChecker:
    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    def check(self, spot: Spot, type_name: str) -> None:
        """Report every invalid field of a value of this type, at any depth."""
        if type_name == "DeviceRequest" and spot.manifest.version == "v1beta1":
            type_name = "FlatRequest"
        if spot.node.kind != "map":
            self._invalid(spot, f"expected a mapping, got {spot.node.description}")
            return
        known = _fields(type_name)
        for key, value in spot.pairs():
            if key.text not in known:
                message = f"unknown field {key.text[:80]!r}"
                hint = _hint(key.text, known, type_name)
                self._reporter.add("DRA003", value, message, hint=hint, at=key)
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
        self._reporter.add("DRA004", spot, message)


_NO_REQUEST: Final = "devices are requested under spec.devices.requests[].exactly"
_HINTS: Final[Mapping[tuple[str, str], str]] = {
    **{
        ("DeviceRequest", name): "in resource.k8s.io/v1 it is one level deeper: put it under `exactly:`"
        for name in _fields("ExactDeviceRequest")
    },
    ("FlatRequest", "exactly"): "resource.k8s.io/v1beta1 has no `exactly`; set apiVersion: resource.k8s.io/v1",
    ("DeviceSubRequest", "adminAccess"): "a subrequest cannot have admin access; use `exactly`",
    **{
        (kind, name): _NO_REQUEST
        for kind in ("DeviceClaim", "ResourceClaimSpec")
        for name in ("deviceClassName", "exactly", "resourceClassName")
    },
    ("PodResourceClaim", "source"): (
        "write resourceClaimName or resourceClaimTemplateName without `source:` (since Kubernetes 1.31)"
    ),
    ("DeviceSelector", "expression"): "indent it: `expression:` belongs below `cel:`",
}
"""Hints for common mistakes, by type and field."""


def _hint(name: str, known: Mapping[str, object], type_name: str) -> str:
    if hint := _HINTS.get((type_name, name)):
        return hint
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"known fields: {', '.join(known)}"
