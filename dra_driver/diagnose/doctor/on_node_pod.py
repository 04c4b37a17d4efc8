"""The pod in which `dra-driver doctor` looks at a node, made from the DaemonSet of the node process. Pure.

It has the places and the privileges of the node process, because NVML opens device nodes, and a doctor with other
rights would see another node; but every mount of the host is read-only. In addition it has the host's ``/``, below
which it finds a driver that the DaemonSet's settings miss, the kubelet's configuration and process, and the socket of
the container runtime, which the node process does not use.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dra_driver.kube.node_pod import node_container, node_pod

NAME: Final = "doctor"
HOST: Final = "/host"
DEADLINE_S: Final = 300
"""The kubelet ends the pod after this: a driver that hangs takes two minutes, pulling the image the rest."""
GRACE_S: Final = 5
_SCRATCH: Final = "doctor-scratch"
_HOST: Final = "doctor-host"
_SCRATCH_SIZE: Final = "600Mi"
"""A copy of the journal, which is refused above 256 MiB, with its log."""
_READ_ONLY: Final = {"readOnly": True, "recursiveReadOnly": "IfPossible"}


def doctor_pod(
    daemon_set: Mapping[str, Any],
    node: str,
    *,
    suffix: str,
    pods: Sequence[str] = (),
    cri_socket: str | None = None,
) -> dict[str, Any]:
    """The pod for ``node``, its name with a ``suffix`` of its own; ``pods`` as ``namespace/name``.

    Raises ConfigurationError when the DaemonSet does not run the node process.
    """
    socket = ["--cri-socket", cri_socket] if cri_socket else []
    words = [NAME, "--output", "json", "--host", HOST, *socket, *(word for pod in pods for word in ("--pod", pod))]
    made = node_container(daemon_set, NAME, words)
    volumes = [each for each in daemon_set["spec"]["template"]["spec"].get("volumes", ()) if "hostPath" in each]
    kept = {each["name"] for each in volumes}
    made["volumeMounts"] = [
        *(_read_only(each) for each in made.get("volumeMounts", ()) if each["name"] in kept),
        {"name": _HOST, "mountPath": HOST, **_READ_ONLY},
        {"name": _SCRATCH, "mountPath": "/tmp"},  # noqa: S108
    ]
    made["securityContext"] = {**made.get("securityContext", {}), "readOnlyRootFilesystem": True}
    made["resources"] = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}
    added = [
        {"name": _HOST, "hostPath": {"path": "/"}},
        {"name": _SCRATCH, "emptyDir": {"sizeLimit": _SCRATCH_SIZE}},
    ]
    return node_pod(daemon_set, node, made, [*volumes, *added], suffix=suffix, deadline_s=DEADLINE_S, grace_s=GRACE_S)


def left_behind(pods: Iterable[Mapping[str, Any]], older_than: str) -> list[str]:
    """Names of doctor's pods that were made before ``older_than`` (RFC 3339): their command was killed."""
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("creationTimestamp", "9") < older_than]


def _read_only(mount: Mapping[str, Any]) -> dict[str, Any]:
    """Without propagation: Kubernetes refuses it beside a recursively read-only mount."""
    kept = {key: value for key, value in mount.items() if key != "mountPropagation"}
    return {**kept, **_READ_ONLY}
