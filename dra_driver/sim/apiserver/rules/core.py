"""Defaults and validation of namespaces, services, secrets and events, and of this project's own kinds.

Follows kubernetes/kubernetes pkg/apis/core. GpuPolicies are checked by the schema that nodes use, which is generated
from the same models as their CustomResourceDefinition. Unknown fields are refused, as `kubectl --validate=strict` does.
"""

import base64

from dra_driver.config.policy import policy_problems
from dra_driver.config.schema import path_text
from dra_driver.sim.apiserver.jsonvalue import Obj, child, dig, entries, fill
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.validation import StatusCause, invalid, required


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


def _validate_service(obj: Obj, review: Review) -> list[StatusCause]:
    if review.subresource:
        return []
    problems: list[StatusCause] = []
    headless = dig(obj, "spec", "clusterIP") == "None" or dig(obj, "spec", "type") == "ExternalName"
    if not entries(obj, "spec", "ports") and not headless:
        problems.append(required("spec.ports"))
    for at, port in enumerate(entries(obj, "spec", "ports")):
        if not isinstance(port.get("port"), int) or not 1 <= port["port"] <= 65535:
            text = "must be between 1 and 65535, inclusive"
            problems.append(invalid(f"spec.ports[{at}].port", port.get("port", 0), text))
    return problems


def _default_secret(obj: Obj) -> None:
    obj.setdefault("type", "Opaque")
    for key, text in (obj.pop("stringData", None) or {}).items():
        child(obj, "data")[key] = base64.b64encode(str(text).encode()).decode()


def _validate_secret(obj: Obj, _review: Review) -> list[StatusCause]:
    problems = []
    for key, value in (obj.get("data") or {}).items():
        try:
            base64.b64decode(value, validate=True)
        except ValueError:
            problems.append(invalid(f"data[{key}]", "<value omitted>", "must be base64"))
    return problems


def _default_event(obj: Obj) -> None:
    """Set fields without omitempty, also to null: Go clients and kubectl expect them."""
    fill(obj, eventTime=None, firstTimestamp=None, lastTimestamp=None, source={})
    fill(obj, reportingComponent="", reportingInstance="")


def _create_service(obj: Obj) -> None:
    obj["status"] = {"loadBalancer": {}}


def _validate_event(obj: Obj, review: Review) -> list[StatusCause]:
    """An event is in the namespace of its object, events of cluster-scoped objects in default."""
    if review.old is not None:
        return []
    involved, own = dig(obj, "involvedObject", "namespace", default=""), dig(obj, "metadata", "namespace")
    expected = involved or ("default", "kube-system")
    if own == expected or (not involved and own in expected):
        return []
    return [invalid("involvedObject.namespace", involved, "does not match event.namespace")]


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


def _policy(obj: Obj, review: Review) -> list[StatusCause]:
    if review.subresource == "status":
        return []
    named = {"name": dig(obj, "metadata", "name", default="")}
    written = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": named}
    if "spec" in obj:
        written["spec"] = obj["spec"]
    found = policy_problems(written)
    return [
        StatusCause(path_text(problem.path), "FieldValueInvalid", f"Invalid value: {problem.text}") for problem in found
    ]


def _node(obj: Obj, review: Review) -> list[StatusCause]:
    status = obj.get("status") or {}
    if review.subresource != "status" or not isinstance(status, dict):
        return []
    return [
        required(f"status.{name}") for name in ("driverName", "observedAt", "summary", "gpus") if name not in status
    ]


POLICY_OBJECT_RULES = WriteRules(default=_default_policy, validate=_policy)
GPU_NODE_RULES = WriteRules(validate=_node)
