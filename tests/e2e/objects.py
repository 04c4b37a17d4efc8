"""Objects that the tests create: claim templates, and pods and Deployments that use them."""

from typing import Any

from dra_driver.sim.apiserver.jsonvalue import Obj

IMAGE = "ubuntu:24.04"
STAY = "trap 'exit 0' TERM; sleep infinity & wait"


def template(name: str, request: Obj, **metadata: Any) -> Obj:
    devices = {"requests": [{"name": "device", "exactly": request}]}
    header = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": name}}
    return {**header, "spec": {"spec": {"devices": devices}, **({"metadata": metadata} if metadata else {})}}


def pod_spec(of_template: str, command: str = STAY, **spec: Any) -> Obj:
    container = {
        "name": "main",
        "image": IMAGE,
        "command": ["bash", "-c", command],
        "resources": {"claims": [{"name": "device"}]},
    }
    claims = [{"name": "device", "resourceClaimTemplateName": of_template}]
    return {"containers": [container], "resourceClaims": claims, **spec}


def pod(name: str, spec: Obj) -> Obj:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def deployment(name: str, spec: Obj) -> Obj:
    labels = {"app": name}
    pods = {"metadata": {"labels": labels}, "spec": spec}
    made = {"replicas": 1, "selector": {"matchLabels": labels}, "template": pods}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": made}


def budget(name: str, app: str) -> Obj:
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}


def policy(name: str, **spec: Any) -> Obj:
    header = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}}
    return {**header, "spec": spec}
