"""Defaults and validation of pods, deployments, replica sets, daemon sets, jobs and disruption budgets.

Follows kubernetes/kubernetes pkg/apis/core/v1/defaults.go, pkg/apis/{apps,batch}/v1/defaults.go,
pkg/apis/{core,apps,batch}/validation and pkg/registry/batch/job/strategy.go (1.36.2). Of pods, only rules that
manifests often break are checked: names, containers, their resources, references to claims, updates, and the status of
extended resources. Extended resources (``nvidia.com/gpu``) have whole numbers and a limit that equals the request.
"""

from collections.abc import Iterator

from dra_driver.core.quantity import Quantity
from dra_driver.sim.apiserver.jsonvalue import Obj, child, copy_json, dig, entries, fill, mapping
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.validation import (
    StatusCause,
    dns_label,
    dns_subdomain,
    duplicate,
    forbidden_field,
    invalid,
    is_extended,
    label_key,
    not_found_field,
    required,
    unsupported,
)

_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")
_MUTABLE = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "terminationGracePeriodSeconds")
_IMMUTABLE_TEXT = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def _is_latest(image: str) -> bool:
    name = image.rpartition("/")[2]
    return "@" not in name and name.partition(":")[2] in ("", "latest")


def _containers(spec: Obj) -> list[Obj]:
    return [*entries(spec, "initContainers"), *entries(spec, "containers")]


def default_pod_spec(spec: Obj) -> None:
    fill(spec, dnsPolicy="ClusterFirst", restartPolicy="Always", securityContext={}, terminationGracePeriodSeconds=30)
    fill(spec, schedulerName="default-scheduler")
    if account := spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec["serviceAccountName"] = spec["serviceAccount"] = account
    for container in _containers(spec):
        pull = "Always" if _is_latest(container.get("image", "")) else "IfNotPresent"
        fill(container, imagePullPolicy=pull, terminationMessagePath="/dev/termination-log")
        fill(container, terminationMessagePolicy="File", resources={})
        for port in entries(container, "ports"):
            port.setdefault("protocol", "TCP")
    for volume in entries(spec, "volumes"):
        if len(volume) == 1:
            volume["emptyDir"] = {}


def _default_pod(pod: Obj) -> None:
    spec = child(pod, "spec")
    default_pod_spec(spec)
    spec.setdefault("enableServiceLinks", True)
    for container in _containers(spec):
        if limits := mapping(container, "resources", "limits"):
            fill(child(container, "resources", "requests"), **limits)


def _prepare_create(pod: Obj) -> None:
    spec = child(pod, "spec")
    spec.setdefault("serviceAccountName", "default")
    fill(spec, serviceAccount=spec["serviceAccountName"], preemptionPolicy="PreemptLowerPriority", priority=0)
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
    for container in _containers(spec):
        requests, limits = (mapping(container, "resources", part) for part in ("requests", "limits"))
        asked = {name: requests.get(name) for name in ("cpu", "memory")}
        bound = {name: limits.get(name) for name in ("cpu", "memory")}
        if not any([*asked.values(), *bound.values()]):
            kinds.add("BestEffort")
        else:
            kinds.add("Guaranteed" if all(bound.values()) and asked == bound else "Burstable")
    return kinds.pop() if len(kinds) == 1 else "Burstable" if kinds else "BestEffort"


def pod_spec_problems(spec: Obj, path: str) -> list[StatusCause]:
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
    problems += _resource_problems(mapping(container, "resources"), f"{path}.resources")
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
    kept: Obj = {key: copy_json(value) for key, value in spec.items() if key not in _MUTABLE}
    for container in _containers(kept):
        container.pop("image", None)
    return kept


def _validate_pod(pod: Obj, review: Review) -> list[StatusCause]:
    if review.subresource:
        return list(_extended_claim_problems(pod)) if review.subresource == "status" else []
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


_NO_LIMIT = "Limit must be set for non overcommitable resources"
_NO_CONTAINER = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
_NO_RESOURCE = (
    "must match the extended resource name of an entry in spec.initContainers.resources.requests or "
    "spec.containers.resources.requests"
)
_MAPPING = ("containerName", "resourceName", "requestName")


def _resource_problems(resources: Obj, path: str) -> Iterator[StatusCause]:
    limits, requests = mapping(resources, "limits"), mapping(resources, "requests")
    for where, amounts in (("limits", limits), ("requests", requests)):
        for name, text in amounts.items():
            yield from _amount_problems(name, str(text), f"{path}.{where}[{name}]")
    for name, text in requests.items():
        if name in limits:
            yield from _unequal(name, str(text), str(limits[name]), f"{path}.requests")
        elif is_extended(name):
            yield required(f"{path}.limits", _NO_LIMIT)


def _amount_problems(name: str, text: str, path: str) -> Iterator[StatusCause]:
    amount = _quantity(text)
    if amount is None:
        return  # the decoder rejects it
    if amount.nano < 0:
        yield invalid(path, text, "must be greater than or equal to 0")
    if is_extended(name) and not amount.is_integer():
        yield invalid(path, text, "must be an integer")


def _unequal(name: str, text: str, limit_text: str, path: str) -> Iterator[StatusCause]:
    amount, limit = _quantity(text), _quantity(limit_text)
    if amount is None or limit is None or amount == limit:
        return
    if is_extended(name):
        yield invalid(path, text, f"must be equal to {name} limit of {limit_text}")
    elif amount > limit:
        yield invalid(path, text, f"must be less than or equal to {name} limit of {limit_text}")


def _quantity(text: str) -> Quantity | None:
    try:
        return Quantity.parse(text)
    except ValueError:
        return None


def _extended_claim_problems(pod: Obj) -> Iterator[StatusCause]:
    status = mapping(pod, "status", "extendedResourceClaimStatus")
    if not status:
        return
    path, name = "status.extendedResourceClaimStatus", status.get("resourceClaimName", "")
    containers = _containers(mapping(pod, "spec"))
    asked = {container.get("name"): mapping(container, "resources", "requests") for container in containers}
    mappings = entries(status, "requestMappings")
    if not mappings:
        yield required(f"{path}.requestMappings", "at least one request mapping is required")
    seen = set()
    for at, item in enumerate(mappings):
        here = f"{path}.requestMappings[{at}]"
        values = tuple(item.get(field, "") for field in _MAPPING)
        if values in seen:
            yield from (duplicate(f"{here}.{field}", value) for field, value in zip(_MAPPING, values, strict=True))
        seen.add(values)
        container, resource, request = values
        if container not in asked:
            yield invalid(f"{here}.containerName", container, _NO_CONTAINER)
        if not any(resource in requests for requests in asked.values()):
            yield invalid(f"{here}.resourceName", resource, _NO_RESOURCE)
        # The real server leaves the index out of this path.
        yield from (invalid(f"{path}.requestName", request, text) for text in dns_label(request))
    yield from (invalid(f"{path}.resourceClaimName", name, text) for text in dns_subdomain(name))


def _default_template(obj: Obj) -> Obj:
    spec = child(obj, "spec")
    default_pod_spec(child(spec, "template", "spec"))
    return spec


def _default_deployment(obj: Obj) -> None:
    spec = _default_template(obj)
    fill(spec, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = child(spec, "strategy")
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        fill(child(strategy, "rollingUpdate"), maxUnavailable="25%", maxSurge="25%")


def _default_replica_set(obj: Obj) -> None:
    _default_template(obj).setdefault("replicas", 1)


def _default_daemon_set(obj: Obj) -> None:
    spec = _default_template(obj)
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = child(spec, "updateStrategy")
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        fill(child(strategy, "rollingUpdate"), maxUnavailable=1, maxSurge=0)


def _no_daemons_yet(obj: Obj) -> None:
    names = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    obj["status"] = dict.fromkeys(names, 0)


def _default_job(obj: Obj) -> None:
    spec = _default_template(obj)
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    backoff = 2**31 - 1 if "backoffLimitPerIndex" in spec else 6
    replaced = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    fill(spec, parallelism=1, backoffLimit=backoff, completionMode="NonIndexed", suspend=False, manualSelector=False)
    fill(spec, podReplacementPolicy=replaced)
    _default_labels(obj)


def _default_labels(obj: Obj) -> None:
    labels = mapping(obj, "spec", "template", "metadata", "labels")
    if labels and not mapping(obj, "metadata", "labels"):
        child(obj, "metadata")["labels"] = copy_json(labels)


def _select_own_pods(obj: Obj) -> None:
    spec = child(obj, "spec")
    if spec.get("manualSelector"):
        return
    if mapping(obj, "metadata", "labels") == mapping(spec, "template", "metadata", "labels"):
        obj["metadata"].pop("labels", None)  # they are the template's: the generated ones below belong to them too
    labels = job_labels(obj)
    fill(child(spec, "template", "metadata", "labels"), **labels)
    uid_label = "batch.kubernetes.io/controller-uid"
    child(spec, "selector", "matchLabels").setdefault(uid_label, labels[uid_label])
    _default_labels(obj)


def job_labels(job: Obj) -> dict[str, str]:
    uid, name = job["metadata"]["uid"], job["metadata"].get("name", "")
    labels = {"controller-uid": uid, "job-name": name}
    return labels | {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}


def _keep_selector(obj: Obj, old: Obj, subresource: str) -> None:
    """Keep the generated selector and labels when the manifest is applied again."""
    if not subresource:
        spec, before = child(obj, "spec"), mapping(old, "spec")
        spec.setdefault("selector", copy_json(before.get("selector")))
        had = mapping(before, "template", "metadata", "labels")
        kept = {key: had[key] for key in job_labels(old) if key in had}
        fill(child(spec, "template", "metadata", "labels"), **kept)


def _template_problems(obj: Obj, review: Review, *, restart: tuple[str, ...]) -> list[StatusCause]:
    if review.subresource:
        return []
    spec = mapping(obj, "spec")
    problems = _selector_problems(spec)
    template, path = mapping(spec, "template", "spec"), "spec.template.spec"
    problems += pod_spec_problems(template, path)
    if template.get("restartPolicy") not in restart:
        where = f"{path}.restartPolicy"
        if restart == ("Always",):
            problems.append(unsupported(where, template.get("restartPolicy", ""), restart))
        else:
            problems.append(required(where, 'valid values: "OnFailure", "Never"'))
    for field in ("replicas", "parallelism", "completions"):
        if isinstance(spec.get(field), int) and spec[field] < 0:
            problems.append(invalid(f"spec.{field}", spec[field], "must be greater than or equal to 0"))
    if review.old is not None and spec.get("selector") != dig(review.old, "spec", "selector"):
        problems.append(invalid("spec.selector", spec.get("selector"), "field is immutable"))
    return problems


def _selector_problems(spec: Obj) -> list[StatusCause]:
    selector = spec.get("selector")
    if selector is None:
        return [required("spec.selector")]
    if not mapping(selector, "matchLabels") and not entries(selector, "matchExpressions"):
        return [invalid("spec.selector", selector, "empty selector is invalid for deployment")]
    labels = mapping(spec, "template", "metadata", "labels")
    if not object_match(selector)({"metadata": {"labels": labels}}):
        return [invalid("spec.template.metadata.labels", labels, "`selector` does not match template `labels`")]
    return []


def _validate_always(obj: Obj, review: Review) -> list[StatusCause]:
    return _template_problems(obj, review, restart=("Always",))


def _validate_job(obj: Obj, review: Review) -> list[StatusCause]:
    problems = _template_problems(obj, review, restart=("OnFailure", "Never"))
    if review.old is not None and not review.subresource:
        template, before = dig(obj, "spec", "template"), dig(review.old, "spec", "template")
        if template != before and not dig(obj, "spec", "suspend"):
            problems.append(invalid("spec.template", template, "field is immutable"))
    return problems


DEPLOYMENT_RULES = WriteRules(default=_default_deployment, validate=_validate_always)
REPLICA_SET_RULES = WriteRules(default=_default_replica_set, validate=_validate_always)
DAEMON_SET_RULES = WriteRules(default=_default_daemon_set, prepare_create=_no_daemons_yet, validate=_validate_always)
JOB_RULES = WriteRules(
    default=_default_job, prepare_create=_select_own_pods, prepare_update=_keep_selector, validate=_validate_job
)


def _validate_budget(obj: Obj, _review: Review) -> list[StatusCause]:
    """kubernetes/kubernetes pkg/apis/policy/validation: one of the two limits, not both."""
    spec = mapping(obj, "spec")
    if "minAvailable" in spec and "maxUnavailable" in spec:
        return [invalid("spec", spec, "minAvailable and maxUnavailable cannot be both set")]
    return []


BUDGET_RULES = WriteRules(validate=_validate_budget)
