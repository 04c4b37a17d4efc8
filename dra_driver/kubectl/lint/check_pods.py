"""Rules DRA050 to DRA054 for pods in objects of any kind: the claims that they name, and those that containers use.

Source: k8s.io/api core/v1 PodSpec.resourceClaims and ResourceRequirements.claims; extended resources as in KEP-5004.
"""

from collections.abc import Iterator
from typing import Final

from dra_driver.kubectl.lint.check_claims import request_names
from dra_driver.kubectl.lint.check_configs import parts_of
from dra_driver.kubectl.lint.fields import FieldChecker
from dra_driver.kubectl.lint.manifest import Spot, claim_devices
from dra_driver.kubectl.lint.reporter import Reporter
from dra_driver.kubectl.lint.scope import Scope, did_you_mean

_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
_USUAL: Final = {"nvidia.com/gpu": "gpu.nvidia.com"}
_KINDS: Final = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}


class PodChecker:
    """Checks one pod specification at a time."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope

    def check(self, pod: Spot) -> None:
        fields = FieldChecker(self._reporter)
        declared: dict[str, Spot | None] = {}
        classes: set[str] = set()
        for entry in pod.each("resourceClaims"):
            fields.check(entry, "PodResourceClaim")
            name = entry.string("name")
            if name and name in declared:
                message = f"two claims of the pod are named {name[:80]!r}"
                self._reporter.add("DRA006", entry.get("name") or entry, message)
            declared[name] = devices = self._target(entry)
            classes |= (
                {part.string("deviceClassName") for _, part in parts_of(devices)} if devices is not None else set()
            )
        used = {name for container in _containers(pod) for name in self._uses(container, declared, fields)}
        for entry in pod.each("resourceClaims"):
            name = entry.string("name")
            if name and name not in used:
                message = f"no container uses the pod's claim {name[:80]!r}, so no container gets its devices"
                hint = f"add `claims: [{{name: {name[:60]}}}]` to the resources of a container"
                self._reporter.add("DRA053", entry, message, hint=hint)
        self._extended(pod, classes - {""})

    def _target(self, entry: Spot) -> Spot | None:
        """Returns ``devices`` of the claim or template that an entry names; None when it is not found."""
        given = [field for field in _KINDS if entry.get(field) is not None]
        if len(given) != 1:
            message = "needs exactly one of resourceClaimName and resourceClaimTemplateName"
            self._reporter.add("DRA004", entry, message)
            return None
        kind, name = _KINDS[given[0]], entry.string(given[0])
        spot = entry.get(given[0])
        if spot is None or not name:
            return None
        found = self._scope.find(kind, entry.manifest.namespace, name)
        if found is None:
            self._missing(spot, kind, name)
            return None
        return claim_devices(found)

    def _missing(self, spot: Spot, kind: str, name: str) -> None:
        namespace, complete = spot.manifest.namespace, kind in self._scope.known.complete
        close = did_you_mean(name, self._scope.names(kind, namespace))
        message = f"{kind} {name[:80]!r} is not defined in namespace {namespace}"
        message += ", neither in the input nor in the cluster" if complete else " in the input"
        hint = close
        other = "ResourceClaim" if kind == "ResourceClaimTemplate" else "ResourceClaimTemplate"
        elsewhere = sorted({m.namespace for m in self._scope.of_kind(kind) if m.name == name})
        if self._scope.find(other, namespace, name) is not None:
            field = next(field for field, target in _KINDS.items() if target == other)
            hint = f"a {other} has this name: use {field}"
        elif elsewhere:
            hint = f"it exists in namespace {', '.join(elsewhere[:3])}; pods can only use claims of their own namespace"
        is_error = complete or bool(hint)
        hint = hint or "it has to exist before the pod can start"
        self._reporter.add("DRA050", spot, message, hint=hint, severity="error" if is_error else "warning")

    def _uses(self, container: Spot, declared: dict[str, Spot | None], fields: FieldChecker) -> Iterator[str]:
        for use in container.each("resources", "claims"):
            fields.check(use, "ContainerClaim")
            name, request = use.string("name"), use.string("request")
            yield name
            if not name:
                continue
            if name not in declared:
                message = f"the pod has no claim {name[:80]!r}"
                hint = did_you_mean(name, declared) or "declare it in the pod's resourceClaims"
                self._reporter.add("DRA051", use.get("name") or use, message, hint=hint)
                continue
            devices = declared[name]
            if request and devices is not None and request not in (names := request_names(devices)):
                message = f"claim {name[:80]!r} has no request {request[:80]!r}"
                hint = did_you_mean(request, names) or f"its requests are {', '.join(names)}"
                if "/" in request:
                    hint = "use the name of the request without the subrequest"
                self._reporter.add("DRA052", use.get("request") or use, message, hint=hint)

    def _extended(self, pod: Spot, classes: set[str]) -> None:
        resources = {
            info.extended_resource: name
            for name in self._scope.names("DeviceClass")
            if (info := self._scope.class_info(name)) is not None and info.extended_resource
        }
        for container in _containers(pod):
            parts = [
                part for field in ("limits", "requests") if (part := container.get("resources", field)) is not None
            ]
            for name, value in {key.text: value for part in parts for key, value in part.pairs()}.items():
                implied = name.removeprefix(_IMPLICIT) if name.startswith(_IMPLICIT) else ""
                target = implied or resources.get(name) or _USUAL.get(name, "")
                if target in classes and value.node.value not in {0, "0"}:
                    message = f"the pod requests {name} and has a claim for DeviceClass {target}: it gets both"
                    hint = "remove either the extended resource or the claim"
                    self._reporter.add("DRA054", value, message, hint=hint)


def _containers(pod: Spot) -> list[Spot]:
    return [*pod.each("initContainers"), *pod.each("containers")]
