"""Validation of metadata, and defaults and validation of namespaces, services, secrets, events and this project's kinds
(kubernetes/kubernetes pkg/apis/core, k8s.io/apimachinery pkg/api/validation/objectmeta.go). GpuPolicies are checked by
the nodes' schema; unknown fields are refused, as with `kubectl --validate=strict`."""

import base64

from dra_driver.config.policy import policy_problems
from dra_driver.config.schema import path_text
from dra_driver.sim.apiserver import validation
from dra_driver.sim.apiserver.jsonvalue import Obj, child, dig, entries, fill, mapping
from dra_driver.sim.apiserver.kind import ResourceKind, Review, WriteRules

MAX_ANNOTATION_BYTES = 256 * 1024
_IMMUTABLE = ("name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")


def meta_problems(kind: ResourceKind, obj: Obj, path: str = "metadata") -> list[validation.StatusCause]:
    metadata = mapping(obj, "metadata")
    problems: list[validation.StatusCause] = []
    if base := metadata.get("generateName"):
        # generateName may end in "-", because a suffix is appended.
        tried = base.removesuffix("-") or "-"
        problems += [validation.invalid(f"{path}.generateName", base, text) for text in kind.name_rule(tried)]
    if name := metadata.get("name"):
        problems += [validation.invalid(f"{path}.name", name, text) for text in kind.name_rule(name)]
    else:
        problems.append(validation.required(f"{path}.name", "name or generateName is required"))
    return problems + common_problems(metadata, path)


def meta_update_problems(obj: Obj, old: Obj, path: str = "metadata") -> list[validation.StatusCause]:
    new, before = mapping(obj, "metadata"), mapping(old, "metadata")
    problems = [
        validation.invalid(f"{path}.{field}", new.get(field), "field is immutable")
        for field in _IMMUTABLE
        if new.get(field) != before.get(field)
    ]
    added = [name for name in entries(new, "finalizers") if name not in entries(before, "finalizers")]
    if before.get("deletionTimestamp") and added:
        found = ", ".join(f'"{name}"' for name in added)
        text = "no new finalizers can be added if the object is being deleted, found new finalizers"
        problems.append(validation.forbidden_field(f"{path}.finalizers", f"{text} []string{{{found}}}"))
    return problems + common_problems(new, path)


def common_problems(metadata: Obj, path: str) -> list[validation.StatusCause]:
    """Problems of labels, annotations, finalizers and owners, checked on creates and updates."""
    return [
        *label_problems(metadata.get("labels"), f"{path}.labels"),
        *_annotation_problems(metadata.get("annotations"), f"{path}.annotations"),
        *_owner_problems(metadata, f"{path}.ownerReferences"),
        *_finalizer_problems(metadata, f"{path}.finalizers"),
    ]


def label_problems(labels: object, path: str) -> list[validation.StatusCause]:
    problems: list[validation.StatusCause] = []
    for key, value in labels.items() if isinstance(labels, dict) else ():
        problems += [validation.invalid(path, key, text) for text in validation.label_key(key)]
        if not isinstance(value, str):
            problems.append(validation.wrong_type(f"{path}.{key}", value, "a string"))
        else:
            problems += [validation.invalid(path, value, text) for text in validation.label_value(value)]
    return problems


def _annotation_problems(annotations: object, path: str) -> list[validation.StatusCause]:
    problems: list[validation.StatusCause] = []
    size = 0
    for key, value in annotations.items() if isinstance(annotations, dict) else ():
        problems += [validation.invalid(path, key, text) for text in validation.label_key(key.lower())]
        if not isinstance(value, str):
            problems.append(validation.wrong_type(f"{path}.{key}", value, "a string"))
        else:
            size += len(key.encode()) + len(value.encode())
    if size > MAX_ANNOTATION_BYTES:
        problems.append(validation.too_long(path, MAX_ANNOTATION_BYTES))
    return problems


def _finalizer_problems(metadata: Obj, path: str) -> list[validation.StatusCause]:
    problems = []
    for at, name in enumerate(entries(metadata, "finalizers")):
        problems += [validation.invalid(path, name, text) for text in validation.label_key(str(name))]
        if "/" not in str(name) and name not in {"orphan", "foregroundDeletion", "kubernetes"}:
            text = "name is neither a standard finalizer name nor is it fully qualified"
            problems.append(validation.invalid(f"{path}[{at}]", name, text))
    return problems


def _owner_problems(metadata: Obj, path: str) -> list[validation.StatusCause]:
    problems: list[validation.StatusCause] = []
    controllers: list[str] = []
    for reference in entries(metadata, "ownerReferences"):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not reference.get(field):
                text = "version must not be empty" if field == "apiVersion" else "must not be empty"
                problems.append(validation.invalid(f"{path}.{field}", reference.get(field, ""), text))
        if reference.get("controller"):
            controllers.append(f"{reference.get('kind')}/{reference.get('name')}")
    if len(controllers) > 1:
        text = (
            'Only one reference can have Controller set to true. Found "true" in references for '
            f"{controllers[0]} and {controllers[1]}"
        )
        problems.append(validation.invalid(path, entries(metadata, "ownerReferences"), text))
    return problems


def _label_namespace(obj: Obj) -> None:
    if name := obj["metadata"].get("name"):
        child(obj, "metadata", "labels")["kubernetes.io/metadata.name"] = name


def _create_namespace(obj: Obj) -> None:
    _label_namespace(obj)
    child(obj, "spec")["finalizers"] = ["kubernetes"]
    obj["status"] = {"phase": "Active"}


def _default_service(obj: Obj) -> None:
    spec = child(obj, "spec")
    fill(spec, sessionAffinity="None", type="ClusterIP")
    if spec["type"] in {"ClusterIP", "NodePort", "LoadBalancer"}:
        spec.setdefault("internalTrafficPolicy", "Cluster")
    for port in entries(spec, "ports"):
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port", 0)


def _validate_service(obj: Obj, review: Review) -> list[validation.StatusCause]:
    if review.subresource:
        return []
    problems: list[validation.StatusCause] = []
    headless = dig(obj, "spec", "clusterIP") == "None" or dig(obj, "spec", "type") == "ExternalName"
    if not entries(obj, "spec", "ports") and not headless:
        problems.append(validation.required("spec.ports"))
    for at, port in enumerate(entries(obj, "spec", "ports")):
        if not isinstance(port.get("port"), int) or not 1 <= port["port"] <= 65535:
            text = "must be between 1 and 65535, inclusive"
            problems.append(validation.invalid(f"spec.ports[{at}].port", port.get("port", 0), text))
    return problems


def _default_secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    for key, text in (obj.pop("stringData", None) or {}).items():
        child(obj, "data")[key] = base64.b64encode(str(text).encode()).decode()


def _validate_secret(obj: Obj, _review: Review) -> list[validation.StatusCause]:
    problems = []
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except ValueError:
            problems.append(validation.invalid(f"data[{key}]", "<value omitted>", "must be base64"))
    return problems


def _default_event(obj: Obj) -> None:
    """Set fields without omitempty, also to null: Go clients and kubectl expect them."""
    fill(obj, eventTime=None, firstTimestamp=None, lastTimestamp=None, source={})
    fill(obj, reportingComponent="", reportingInstance="")


def _create_service(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}


def _validate_event(obj: Obj, review: Review) -> list[validation.StatusCause]:
    if review.old is not None:
        return []
    involved, own = dig(obj, "involvedObject", "namespace", default=""), dig(obj, "metadata", "namespace")
    expected = involved or ("default", "kube-system")
    if own == expected or (not involved and own in expected):
        return []
    return [validation.invalid("involvedObject.namespace", involved, "does not match event.namespace")]


NAMESPACE_RULES = WriteRules(
    prepare_create=_create_namespace, prepare_update=lambda obj, _old, _sub: _label_namespace(obj)
)
SERVICE_RULES = WriteRules(default=_default_service, prepare_create=_create_service, validate=_validate_service)
SECRET_RULES = WriteRules(default=_default_secret, validate=_validate_secret)
EVENT_RULES = WriteRules(default=_default_event, validate=_validate_event)


def _default_policy(obj: Obj) -> None:
    spec = obj.get("spec")
    if isinstance(spec, dict):
        fill(spec, priority=0, availability="Open")


def _policy(obj: Obj, review: Review) -> list[validation.StatusCause]:
    if review.subresource == "status":
        return []
    named = {"name": dig(obj, "metadata", "name", default="")}
    written = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": named}
    if "spec" in obj:
        written["spec"] = obj["spec"]
    found = policy_problems(written)
    return [
        validation.StatusCause(path_text(problem.path), "FieldValueInvalid", f"Invalid value: {problem.text}")
        for problem in found
    ]


def _node(obj: Obj, review: Review) -> list[validation.StatusCause]:
    status = obj.get("status") or {}
    if review.subresource != "status" or not isinstance(status, dict):
        return []
    return [
        validation.required(f"status.{name}")
        for name in ("driverName", "observedAt", "summary", "gpus")
        if name not in status
    ]


POLICY_OBJECT_RULES = WriteRules(default=_default_policy, validate=_policy)
GPU_NODE_RULES = WriteRules(validate=_node)
