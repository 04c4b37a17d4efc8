"""Defaults of pods and pod templates, and the part of their validation that manifests often break.

Defaults follow kubernetes/kubernetes pkg/apis/core/v1/defaults.go. Validation covers names, containers, references
to claims and what may change later; the other rules for pods are not implemented.
"""

from dra_driver.sim.apiserver.jsonvalue import Obj, child, copy_json, dig, entries, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.names import dns_label, dns_subdomain, label_key
from dra_driver.sim.apiserver.problems import (
    StatusCause,
    duplicate,
    forbidden_field,
    invalid,
    not_found_field,
    required,
    unsupported,
)
from dra_driver.sim.apiserver.rules.resources import extended_claim_problems, resource_problems

_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds")
_IMMUTABLE_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _image_tag(image: str) -> str:
    name = image.rpartition("/")[2]
    if "@" in name:
        return name.partition("@")[2]
    return name.partition(":")[2] or "latest"


def default_pod_spec(spec: Obj) -> None:
    """Defaults that pods and templates share."""
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("securityContext", {})
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("schedulerName", "default-scheduler")
    if spec.get("serviceAccountName") or spec.get("serviceAccount"):
        account = spec.get("serviceAccountName") or spec["serviceAccount"]
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in [*entries(spec, "initContainers"), *entries(spec, "containers")]:
        latest = _image_tag(container.get("image", "")) == "latest"
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault("resources", {})
        for port in entries(container, "ports"):
            port.setdefault("protocol", "TCP")
    for volume in entries(spec, "volumes"):
        if len(volume) == 1:
            volume["emptyDir"] = {}


def _default_pod(pod: Obj) -> None:
    spec = child(pod, "spec")
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in [*entries(spec, "initContainers"), *entries(spec, "containers")]:
        limits = mapping(container, "resources", "limits")
        if limits:
            requests = child(container, "resources", "requests")
            for name, amount in limits.items():
                requests.setdefault(name, amount)


def _prepare_create(pod: Obj) -> None:
    spec = child(pod, "spec")
    spec.setdefault("serviceAccountName", "default")
    spec.setdefault("serviceAccount", spec["serviceAccountName"])
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec.setdefault("priority", 0)
    tolerations = spec.setdefault("tolerations", [])
    for reason in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{reason}"
        if not any(
            item.get("key", key) == key and item.get("effect", "NoExecute") == "NoExecute" for item in tolerations
        ):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    pod["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}


def qos_class(spec: Obj) -> str:
    """BestEffort, Burstable or Guaranteed, from cpu and memory of all containers."""
    kinds = set()
    for container in [*entries(spec, "initContainers"), *entries(spec, "containers")]:
        requests, limits = (mapping(container, "resources", part) for part in ("requests", "limits"))
        asked = {name: requests.get(name) for name in ("cpu", "memory")}
        bound = {name: limits.get(name) for name in ("cpu", "memory")}
        if not any([*asked.values(), *bound.values()]):
            kinds.add("BestEffort")
        else:
            kinds.add("Guaranteed" if all(bound.values()) and asked == bound else "Burstable")
    return kinds.pop() if len(kinds) == 1 else "Burstable" if kinds else "BestEffort"


def pod_spec_problems(spec: Obj, path: str) -> list[StatusCause]:
    """The problems of containers, their names and claims."""
    problems, seen = _claim_problems(spec, f"{path}.resourceClaims"), set()
    claims = {item.get("name") for item in entries(spec, "resourceClaims")}
    if not entries(spec, "containers"):
        problems.append(required(f"{path}.containers"))
    for field in ("containers", "initContainers"):
        for at, container in enumerate(entries(spec, field)):
            here = f"{path}.{field}[{at}]"
            problems += _container_problems(container, here, claims)
            if (name := container.get("name")) in seen:
                problems.append(duplicate(f"{here}.name", name))
            seen.add(name)
    if spec.get("restartPolicy") not in _RESTART_POLICIES:
        problems.append(unsupported(f"{path}.restartPolicy", spec.get("restartPolicy", ""), _RESTART_POLICIES))
    for key, value in (spec.get("nodeSelector") or {}).items():
        problems += [invalid(f"{path}.nodeSelector", key, text) for text in label_key(key)]
        if not isinstance(value, str):
            problems.append(invalid(f"{path}.nodeSelector.{key}", value, "must be a string"))
    return problems


def _claim_problems(spec: Obj, path: str) -> list[StatusCause]:
    problems: list[StatusCause] = []
    seen = set()
    for at, item in enumerate(entries(spec, "resourceClaims")):
        here, name = f"{path}[{at}]", item.get("name", "")
        problems += (
            [invalid(f"{here}.name", name, text) for text in dns_label(name)] if name else [required(f"{here}.name")]
        )
        if name in seen:
            problems.append(duplicate(f"{here}.name", name))
        seen.add(name)
        sources = [field for field in ("resourceClaimName", "resourceClaimTemplateName") if field in item]
        if len(sources) != 1:
            text = "at most one of `resourceClaimName`, `resourceClaimTemplateName` may be specified"
            if not sources:
                text = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`"
            problems.append(invalid(here, {key: item[key] for key in item}, text))
        problems += [
            invalid(f"{here}.{field}", item[field], text) for field in sources for text in dns_subdomain(item[field])
        ]
    return problems


def _container_problems(container: Obj, path: str, claims: set[object]) -> list[StatusCause]:
    name = container.get("name", "")
    problems = [invalid(f"{path}.name", name, text) for text in dns_label(name)] if name else [required(f"{path}.name")]
    if not container.get("image"):
        problems.append(required(f"{path}.image"))
    if container.get("imagePullPolicy") not in _PULL_POLICIES:
        problems.append(unsupported(f"{path}.imagePullPolicy", container.get("imagePullPolicy", ""), _PULL_POLICIES))
    problems += resource_problems(container, path)
    used = set()
    for at, claim in enumerate(entries(container, "resources", "claims")):
        here, wanted = f"{path}.resources.claims[{at}]", claim.get("name", "")
        if not wanted:
            problems.append(required(here))
        elif wanted not in claims:
            text = "must be one of the names in pod.spec.resourceClaims" + ("" if claims else " which is empty")
            problems.append(not_found_field(here, wanted, text))
        if (key := (wanted, claim.get("request", ""))) in used:
            problems.append(duplicate(here, f"{key[0]}/{key[1]}" if key[1] else key[0]))
        used.add(key)
    return problems


def _frozen(spec: Obj) -> Obj:
    """The part of a pod's spec that must not change, without images."""
    kept: Obj = {key: copy_json(value) for key, value in spec.items() if key not in _MUTABLE}
    for container in [*entries(kept, "containers"), *entries(kept, "initContainers")]:
        container.pop("image", None)
    return kept


def _validate_pod(pod: Obj, review: Review) -> list[StatusCause]:
    if review.subresource:
        return extended_claim_problems(pod) if review.subresource == "status" else []
    spec = mapping(pod, "spec")
    problems = pod_spec_problems(spec, "spec")
    if review.old is not None and _frozen(spec) != _frozen(mapping(review.old, "spec")):
        problems.append(forbidden_field("spec", _IMMUTABLE_TEXT))
    return problems


def _keep_assigned(pod: Obj, old: Obj, subresource: str) -> None:
    """Keep fields that admission set at creation if an update leaves them out."""
    if subresource:
        return
    for field in ("nodeName", "serviceAccountName", "serviceAccount", "preemptionPolicy", "priority", "tolerations"):
        before = dig(old, "spec", field)
        if before is not None:
            child(pod, "spec").setdefault(field, copy_json(before))


POD_RULES = WriteRules(
    default=_default_pod, prepare_create=_prepare_create, prepare_update=_keep_assigned, validate=_validate_pod
)
