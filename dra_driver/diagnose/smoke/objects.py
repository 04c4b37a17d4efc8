"""Define the objects of a smoke test: for each attempt a Job of one pod, and a claim that the Job owns. No I/O.

Kubernetes ends the Job at its deadline and deletes it seconds later with its pod and claim, also after a SIGKILL of the
command. The Job is created before the claim that names it as owner; the scheduler places its pod only after both.
Source: pkg/controller/job, pkg/controller/ttlafterfinished and pkg/controller/garbagecollector of kubernetes.

The pod meets the Pod Security Standard "restricted". Node affinity instead of ``nodeName`` binds it to its node: only
pods that the scheduler placed get devices. It tolerates all taints of nodes, like a DaemonSet's pods, and no device
taint.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from dra_driver.diagnose.smoke.report import REQUEST
from dra_driver.kube.state import Wire

RUN_LABEL: Final = "gpu.dra-driver.io/smoke-run"
"""Label of every object of a smoke test; its value is the id of the run."""
CONTAINER: Final = "nvidia-smi"
DEADLINE_AFTER_S: Final = 30
"""Lifetime of the Job after the command has stopped waiting for it, in seconds."""
TTL_S: Final = 10
"""Time between the Job's end and its deletion by Kubernetes, in seconds."""
_OTHER_USER: Final = 65532


class PodSettings(Struct, frozen=True, kw_only=True):
    """Settings of the pods. ``user`` is the numeric user, None for the cluster's default (needed by OpenShift)."""

    namespace: str
    image: str
    pull_secrets: Sequence[str] = ()
    user: int | None = _OTHER_USER
    timeout_s: int = 120


def job(name: str, run: str, node: str, settings: PodSettings) -> Wire:
    """The Job that runs ``nvidia-smi -L`` on ``node`` with the claim of the same name."""
    labels = labels_of(run)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": settings.timeout_s + DEADLINE_AFTER_S,
            "ttlSecondsAfterFinished": TTL_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(name, node, settings)},
        },
    }


def claim(owner: Wire, run: str, spec: Wire) -> Wire:
    """The claim of a Job that the API server has stored."""
    metadata = owner["metadata"]
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "labels": labels_of(run),
            "ownerReferences": [reference],
        },
        "spec": dict(spec),
    }


def pod_of(body: Wire) -> Wire:
    """The pod that a Job's controller would create, to check beforehand whether it fits."""
    metadata = {key: body["metadata"][key] for key in ("name", "namespace", "labels")}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body["spec"]["template"]["spec"]}


def labels_of(run: str) -> dict[str, str]:
    """Labels of all objects of a run; they do not match a DaemonSet's selector, so no controller adopts the pods."""
    return {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": "smoke", RUN_LABEL: run}


def _pod_spec(name: str, node: str, settings: PodSettings) -> Wire:
    on_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [on_node]}}
    user = {} if settings.user is None else {"runAsUser": settings.user, "runAsNonRoot": settings.user != 0}
    spec: dict[str, object] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": required},
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {**user, "seccompProfile": {"type": "RuntimeDefault"}},
        "resourceClaims": [{"name": REQUEST, "resourceClaimName": name}],
        "containers": [_container(settings)],
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.pull_secrets]
    return spec


def _container(settings: PodSettings) -> Wire:
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["nvidia-smi", "-L"],
        "resources": {
            "claims": [{"name": REQUEST}],
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"memory": "256Mi"},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
