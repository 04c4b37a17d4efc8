"""Rules for DeviceClasses, claims, templates and pods, except expressions and parameters.

Limits of the API: k8s.io/api resource/v1, kubernetes/kubernetes pkg/apis/resource/validation. Pods: core/v1
PodSpec.resourceClaims and ResourceRequirements.claims; extended resources as in KEP-5004."""

from collections.abc import Iterator, Sequence
from typing import Final

from dra_driver.core.model.mig import no_compute_instance
from dra_driver.kube.published import names
from dra_driver.kube.shapes import is_label
from dra_driver.kubectl.lint.catalog_devices import DRIVER
from dra_driver.kubectl.lint.check_configs import CapacityChecker, ConfigChecker, exact_part, parts_of
from dra_driver.kubectl.lint.check_cuda import CudaChecker
from dra_driver.kubectl.lint.check_selectors import MAX_RESULTS, MatchChecker, SelectorChecker
from dra_driver.kubectl.lint.expressions import ParsedSelector, matching_devices
from dra_driver.kubectl.lint.fields import FieldChecker
from dra_driver.kubectl.lint.finding import Reporter, Severity
from dra_driver.kubectl.lint.manifest import DEFAULT_NAMESPACE, Manifest, Spot, claim_devices
from dra_driver.kubectl.lint.scope import WELL_KNOWN, ClassInfo, Scope, compiled, did_you_mean

ADMIN_LABEL: Final = "resource.kubernetes.io/admin-access"
_LIMITS: Final = {"requests": 32, "constraints": 32, "config": 32, "selectors": 32, "firstAvailable": 8}
_MAX_TOLERATIONS: Final = 16

Requests = dict[str, set[str]]


class ClaimChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope
        self._selectors = SelectorChecker(reporter, scope)
        self._matches = MatchChecker(reporter, scope)
        self._capacity = CapacityChecker(reporter, scope)
        self._configs = ConfigChecker(reporter, scope)

    def device_class(self, manifest: Manifest) -> None:
        spec = manifest.spot.get("spec")
        if spec is None:
            return
        self._limits(spec, ("selectors", "config"))
        chain, valid = self._selectors.chain(spec.each("selectors"))
        if valid:
            self._matches.device_class(manifest.spot, chain)
        self._configs.of_class(spec)

    def claim(self, manifest: Manifest) -> None:
        devices = claim_devices(manifest)
        if devices is None:
            return
        self._limits(devices, ("requests", "constraints", "config"))
        names = request_names(devices)
        self._unique(devices.each("requests"), "request")
        total = sum(self._request(request) for request in devices.each("requests"))
        if total > MAX_RESULTS:
            message = f"the claim requests {total} devices; the limit is {MAX_RESULTS}"
            self._reporter.add("DRA032", devices, message, hint="split it into several claims")
        for constraint in devices.each("constraints"):
            self._references(constraint, names, "constraint")
            self._constraint(constraint)
        for config in devices.each("config"):
            self._references(config, names, "configuration")
        self._configs.of_claim(devices)
        self._capacity.claim(devices, parts_of(devices))

    def _request(self, request: Spot) -> int:
        """Check a request; return the smallest number of devices that it takes."""
        alternatives = request.each("firstAvailable")
        exactly = exact_part(request)
        if exactly is not None and alternatives:
            self._invalid(request, "a request has either `exactly` or `firstAvailable`, not both")
        elif exactly is None and not alternatives and request.get("deviceClassName") is None:
            self._invalid(request, "a request needs `exactly` with a deviceClassName, or `firstAvailable`")
        self._name(request)
        if exactly is not None and exactly.flag("adminAccess"):
            self._admin(exactly)
        if not alternatives:
            return self._part(exactly) if exactly is not None else 0
        self._limits(request, ("firstAvailable",))
        self._unique(alternatives, "subrequest")
        for alternative in alternatives:
            self._name(alternative)
        return min(self._part(alternative) for alternative in alternatives)

    def _part(self, part: Spot) -> int:
        self._limits(part, ("selectors",))
        if len(part.each("tolerations")) > _MAX_TOLERATIONS:
            message = f"more than {_MAX_TOLERATIONS} tolerations; at most {_MAX_TOLERATIONS} are allowed"
            self._reporter.add("DRA007", part.get("tolerations") or part, message)
        of_class = self._class(part)
        chain, valid = self._selectors.chain(part.each("selectors"))
        self._admin_devices(part, chain if valid else None, of_class)
        if valid and self._matches.request(part, chain, of_class):
            self._capacity.request(part, chain, of_class)
        return self._count(part)

    def _count(self, part: Spot) -> int:
        mode, count = part.get("allocationMode"), part.number("count")
        name = part.string("allocationMode") or "ExactCount"
        if mode is not None and name not in {"ExactCount", "All"}:
            hint = did_you_mean(name, ("ExactCount", "All")) or "use ExactCount or All"
            self._invalid(mode, f"unknown allocationMode {name!r}", hint)
        where = part.get("count") or part
        if name == "All":
            if count:
                self._invalid(where, "count cannot be combined with allocationMode All")
            return 0
        if count is not None and count < 1 and count != 0:
            self._invalid(where, f"count is {count}; expected at least 1")
        elif count is not None and count > MAX_RESULTS:
            message = f"count is {count}; a claim can have at most {MAX_RESULTS} devices"
            self._reporter.add("DRA032", where, message, hint="split it into several claims")
            return 0  # reported already
        return max(1, count or 1)

    def _class(self, part: Spot) -> ClassInfo | None:
        spot = part.get("deviceClassName")
        name = part.string("deviceClassName")
        if spot is None or not name:
            return None
        found = self._scope.class_info(name)
        in_cluster = "DeviceClass" in self._scope.known.complete
        defined = found is not None and (
            name not in WELL_KNOWN or not in_cluster or name in self._scope.names("DeviceClass")
        )
        if defined:
            return found
        close = did_you_mean(name, {*self._scope.names("DeviceClass"), *WELL_KNOWN})
        message = f"DeviceClass {name!r} is not defined here" + (" nor in the cluster" if in_cluster else "")
        severity: Severity = "error" if in_cluster else "warning" if close else "info"
        hint = close or "its selectors cannot be checked; also pass its manifest, or --cluster-state"
        self._reporter.add("DRA030", spot, message, hint=hint, severity=severity)
        return found

    def _constraint(self, constraint: Spot) -> None:
        given = [name for name in ("matchAttribute", "distinctAttribute") if constraint.get(name) is not None]
        if len(given) != 1:
            self._invalid(constraint, "a constraint needs exactly one of matchAttribute and distinctAttribute")
        for field in given:
            spot = constraint.get(field)
            name = constraint.string(field)
            if spot is None or not name:
                continue
            domain, slash, short = name.partition("/")
            if not slash:
                message = f"{field} {name!r} has no domain; an attribute name needs one"
                self._reporter.add("DRA034", spot, message, hint=f"write {DRIVER}/{name}")
            elif (known := self._selectors.attributes_of(domain)) and short not in known:
                message = f"no device of {domain} has attribute {short!r}, so no device satisfies the constraint"
                hint = did_you_mean(short, known)
                self._reporter.add("DRA016", spot, message, hint=hint, severity="warning")

    def _references(self, owner: Spot, names: Requests, what: str) -> None:
        full = [*names, *(f"{request}/{sub}" for request, subs in names.items() for sub in subs)]
        for spot in owner.each("requests"):
            name = spot.node.value
            if not isinstance(name, str) or name in full:
                continue
            message = f"the {what} names request {name[:80]!r}, which this claim does not have"
            hint = did_you_mean(name, full) or f"its requests are {', '.join(map(str, full[:8])) or 'none'}"
            self._reporter.add("DRA033", spot, message, hint=hint)

    def _admin(self, exactly: Spot) -> None:
        spot = exactly.get("adminAccess") or exactly
        manifest = spot.manifest
        namespace = self._scope.find("Namespace", DEFAULT_NAMESPACE, manifest.namespace)
        hint = f'kubectl label namespace {manifest.namespace} {ADMIN_LABEL}="true"'
        if namespace is None:
            message = f"admin access requires the label {ADMIN_LABEL} on namespace {manifest.namespace}"
            self._reporter.add("DRA038", spot, message, hint=hint)
        elif namespace.spot.string("metadata", "labels", ADMIN_LABEL) != "true":
            message = f'admin access is refused: namespace {manifest.namespace} lacks the label {ADMIN_LABEL}: "true"'
            self._reporter.add("DRA038", spot, message, hint=hint, severity="error")

    def _admin_devices(self, part: Spot, chain: Sequence[ParsedSelector] | None, of_class: ClassInfo | None) -> None:
        """Report requests that the scheduler refuses for counters, and monitoring devices without admin access."""
        if of_class is None:
            return
        if not part.flag("adminAccess"):
            constants = {name for selector in of_class.selectors or () for name in selector.reads.constants}
            if names.TYPE_MONITOR in constants and DRIVER in of_class.drivers:
                spot, message = part.get("deviceClassName") or part, "the driver prepares monitoring devices only for"
                self._reporter.add("DRA046", spot, f"{message} requests with adminAccess: true")
            return
        found = matching_devices(chain or (), of_class.devices)
        published = [device for device in found if device.nodes]  # in the cluster; else any model may be
        counted = next((device for device in published or found if device.wire.get("consumesCounters")), None)
        if counted is not None:
            message = (
                f"the scheduler charges counters for admin access too (Kubernetes 1.36 and 1.37), so this request waits"
                f" while {counted.label} or a partition of its GPU is allocated"
            )
            hint = "request class monitor.gpu.nvidia.com, whose devices a GpuPolicy adds (forms: {monitor: true})"
            severity: Severity = "warning" if counted.nodes else "info"
            self._reporter.add("DRA045", part.get("adminAccess") or part, message, hint=hint, severity=severity)

    def _name(self, owner: Spot) -> None:
        spot, name = owner.get("name"), owner.string("name")
        if spot is not None and name and not is_label(name):
            expected = "expected up to 63 lower-case letters, digits and inner dashes"
            self._invalid(spot, f"{name[:80]!r} is not a valid name: {expected}")

    def _unique(self, entries: list[Spot], what: str) -> None:
        seen: set[str] = set()
        for entry in entries:
            name = entry.string("name")
            if name and name in seen:
                message = f"two {what}s are named {name[:80]!r}"
                self._reporter.add("DRA006", entry.get("name") or entry, message)
            seen.add(name)

    def _limits(self, owner: Spot, fields: tuple[str, ...]) -> None:
        for field in fields:
            count = len(owner.each(field))
            if count > _LIMITS[field]:
                message = f"{count} entries in {field}; at most {_LIMITS[field]} are allowed"
                self._reporter.add("DRA007", owner.get(field) or owner, message)

    def _invalid(self, spot: Spot, message: str, hint: str = "") -> None:
        self._reporter.add("DRA004", spot, message, hint=hint)


def request_names(devices: Spot) -> Requests:
    return {
        request.string("name"): {sub.string("name") for sub in request.each("firstAvailable")}
        for request in devices.each("requests")
    }


_IMPLICIT: Final = "deviceclass.resource.kubernetes.io/"
_MIG_RESOURCE: Final = "nvidia.com/mig-"
_USUAL: Final = {"nvidia.com/gpu": "gpu.nvidia.com"}
_KINDS: Final = {"resourceClaimName": "ResourceClaim", "resourceClaimTemplateName": "ResourceClaimTemplate"}


class PodChecker:
    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter = reporter
        self._scope = scope
        self._cuda = CudaChecker(reporter, scope)
        self.rails = RailChecker(reporter, scope)

    def check(self, pod: Spot) -> None:
        fields = FieldChecker(self._reporter)
        declared: dict[str, Spot | None] = {}
        known: list[tuple[Spot, Spot]] = []
        classes: set[str] = set()
        for entry in pod.each("resourceClaims"):
            fields.check(entry, "PodResourceClaim")
            name = entry.string("name")
            if name and name in declared:
                message = f"two claims of the pod are named {name[:80]!r}"
                self._reporter.add("DRA006", entry.get("name") or entry, message)
            declared[name] = devices = self._target(entry)
            if devices is not None:
                known.append((entry, devices))
                classes |= {part.string("deviceClassName") for _, part in parts_of(devices)}
        used = {name for container in _containers(pod) for name in self._uses(container, declared, fields)}
        for entry in pod.each("resourceClaims"):
            name = entry.string("name")
            if name and name not in used:
                message = f"no container uses the pod's claim {name[:80]!r}, so no container gets its devices"
                hint = f"add `claims: [{{name: {name[:60]}}}]` to the resources of a container"
                self._reporter.add("DRA053", entry, message, hint=hint)
        self.rails.add(pod, known)
        for container in _containers(pod):
            self._cuda.check(container, declared)
        self._extended(pod, classes - {""})

    def _target(self, entry: Spot) -> Spot | None:
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
            parts = (container.get("resources", field) for field in ("limits", "requests"))
            amounts = {key.text: value for part in parts if part is not None for key, value in part.pairs()}
            for name, value in amounts.items():
                implied = name.removeprefix(_IMPLICIT) if name.startswith(_IMPLICIT) else ""
                target = implied or resources.get(name) or _USUAL.get(name, "")
                self._several_shares(name, target, value)
                if name.startswith(_MIG_RESOURCE) and (refused := no_compute_instance(name)):
                    self._reporter.add("DRA057", value, refused)
                if target in classes and value.node.value not in {0, "0"}:
                    message = f"the pod requests {name} and has a claim for DeviceClass {target}: it gets both"
                    hint = "remove either the extended resource or the claim"
                    self._reporter.add("DRA054", value, message, hint=hint)

    def _several_shares(self, resource: str, class_name: str, amount: Spot) -> None:
        info = self._scope.class_info(class_name) if class_name else None
        shared = info is not None and info.devices and all(device.shared for device in info.devices)
        if (shared or resource.endswith(".shared")) and str(amount.node.value) not in {"0", "1"}:
            message = f"{str(amount.node.value)[:20]} of {resource} in one container are shares of different GPUs"
            hint = "request 1, or use a ResourceClaim with capacity.requests for a larger share"
            self._reporter.add("DRA055", amount, message, hint=hint)


def _containers(pod: Spot) -> list[Spot]:
    return [*pod.each("initContainers"), *pod.each("containers")]


_TEMPLATE: Final = "resourceClaimTemplateName"
_PINS: Final = {names.RAIL, "pciBusID", "pcieRoot", "ifName", "pciAddress", "rdmaDevice"}
"""Attributes that select the devices of one rail; the last three are DRANET's."""
_PIN: Final = f'use one template for each rail, with `device.attributes["{DRIVER}"].?rail.orValue(-1) == 0`'


class RailChecker:
    """Reports pods that belong together and can get GPUs and network cards of different rails (DRA058): a constraint
    holds within one claim, and each pod gets its own claim of a template. Pods of one file and namespace belong
    together. A constraint for the PCIe root of several classes is a request for a rail."""

    def __init__(self, reporter: Reporter, scope: Scope) -> None:
        self._reporter, self._scope = reporter, scope
        self._pods: dict[tuple[str, str], list[Sequence[tuple[Spot, Spot]]]] = {}

    def add(self, pod: Spot, claims: Sequence[tuple[Spot, Spot]]) -> None:
        """``claims`` are entries of the pod with the devices that they request."""
        if near := [(entry, devices) for entry, devices in claims if _is_near(entry, devices)]:
            self._pods.setdefault((pod.manifest.text.name, pod.manifest.namespace), []).append(near)

    def report(self) -> None:
        for pods in self._pods.values():
            named = {entry.string(_TEMPLATE): (entry, devices) for pod in pods for entry, devices in pod}
            for name, (entry, devices) in named.items() if len(pods) > 1 else ():
                if not any(map(self._is_pinned, parts_of(devices))):
                    message = f"pods with template {name[:80]!r} can get other rails than further pods of this file"
                    self._reporter.add("DRA058", entry, f"{message}: a constraint holds within one claim", hint=_PIN)

    def _is_pinned(self, named: tuple[str, Spot]) -> bool:
        info = self._scope.class_info(named[1].string("deviceClassName"))
        chain = [*(compiled(named[1].each("selectors")) or ()), *((info and info.selectors) or ())]
        return any(reference.name in _PINS for selector in chain for reference in selector.reads.references)


def _is_near(entry: Spot, devices: Spot) -> bool:
    """Return whether each pod gets its own claim for devices of several classes on one PCIe root."""
    same = {each.string("matchAttribute") for each in devices.each("constraints")}
    classes = {part.string("deviceClassName") for _, part in parts_of(devices)}
    return names.PCIE_ROOT in same and len(classes) > 1 and entry.get(_TEMPLATE) is not None
