"""The pod that runs the hardware check on a node, made from the DaemonSet of the node process. Pure.

The same image, environment, volumes and privileges, so that it sees what the node process sees. Its labels are its own:
with those of the DaemonSet's selector, the DaemonSet would take the pod for one of its own and delete it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.errors import ConfigurationError

NAME: Final = "hardware-check"
LABELS: Final = {"app.kubernetes.io/name": "dra-driver", "app.kubernetes.io/component": NAME}
DEADLINE_S: Final = 900
"""The kubelet ends the pod after this: ten minutes for the checks, the rest for pulling the image and restoring."""
GRACE_S: Final = 90
"""Between SIGTERM and SIGKILL: a GPU whose MIG mode was changed is restored meanwhile."""
_NODE_COMMAND: Final = "kubelet-plugin"
# Of the template's pod: what decides where and as whom it runs. Not its init containers, and no token of its account.
_KEPT: Final = (
    "serviceAccountName",
    "priorityClassName",
    "imagePullSecrets",
    "runtimeClassName",
    "securityContext",
    "hostPID",
    "hostIPC",
    "hostNetwork",
    "dnsPolicy",
)
_SCRATCH: Final = "hardware-check-scratch"
"""The checks need a folder that can be written, whatever the container's root is."""
_SCRATCH_SIZE: Final = "256Mi"
"""Two copies of NVML's library, and what libraries and programs of the driver print."""
_KEPT_OF_CONTAINER: Final = (
    "image",
    "imagePullPolicy",
    "env",
    "envFrom",
    "volumeMounts",
    "securityContext",
    "workingDir",
)


def pod_for(daemon_set: Mapping[str, Any], node: str, arguments: Sequence[str], *, suffix: str) -> dict[str, Any]:
    """The pod for ``node``, its name with a ``suffix`` of its own.

    Raises ConfigurationError when the DaemonSet does not run the node process.
    """
    template = daemon_set["spec"]["template"]["spec"]
    container = _container(daemon_set)
    made = {key: container[key] for key in _KEPT_OF_CONTAINER if key in container}
    made |= {
        "name": NAME,
        **_command(container, arguments),
        "resources": {"requests": {"cpu": "10m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    made["volumeMounts"] = [*made.get("volumeMounts", ()), {"name": _SCRATCH, "mountPath": "/tmp"}]  # noqa: S108
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"dra-{NAME}-{suffix}",
            "namespace": daemon_set["metadata"]["namespace"],
            "labels": dict(LABELS),
        },
        "spec": {
            **{key: template[key] for key in _KEPT if key in template},
            "volumes": [*template.get("volumes", ()), {"name": _SCRATCH, "emptyDir": {"sizeLimit": _SCRATCH_SIZE}}],
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": DEADLINE_S,
            "terminationGracePeriodSeconds": GRACE_S,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [made],
        },
    }


def _container(daemon_set: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = daemon_set["spec"]["template"]["spec"]["containers"]
    for container in containers:
        if _NODE_COMMAND in (*container.get("command", ()), *container.get("args", ())):
            found: Mapping[str, Any] = container
            return found
    names = ", ".join(container["name"] for container in containers)
    raise ConfigurationError(
        f"DaemonSet {daemon_set['metadata']['name']} does not run the node process: none of its containers ({names})"
        f" has the argument {_NODE_COMMAND}; name the right one with --daemonset"
    )


def _command(container: Mapping[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """``command`` and ``args`` with the check in place of the node process and its flags."""
    wanted = [NAME, "--print-report", *arguments]
    command = list(container.get("command", ()))
    if _NODE_COMMAND in command:
        return {"command": [*command[: command.index(_NODE_COMMAND)], *wanted]}
    before = list(container.get("args", ()))
    args = [*before[: before.index(_NODE_COMMAND)], *wanted]
    return {"command": command, "args": args} if command else {"args": args}


def why_not_running(pod: Mapping[str, Any]) -> str:
    """Why the pod cannot start or has failed without a report, as a sentence; "" while it may still work."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        ended = _state(status).get("terminated", {})
        told = status.get("message") or ended.get("message") or ""
        reason = status.get("reason") or ended.get("reason") or "Failed"
        code = f", exit status {ended['exitCode']}" if "exitCode" in ended else ""
        return f"the pod failed ({reason}{code}){': ' + ' '.join(told.split())[:400] if told else ''}"
    waiting = _state(status).get("waiting", {})
    if waiting.get("reason") in _HOPELESS:
        return f"the pod cannot start ({waiting['reason']}): {' '.join(waiting.get('message', '').split())[:400]}"
    return ""


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether the check has ended."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def has_started(pod: Mapping[str, Any]) -> bool:
    """Whether there may be a log."""
    state = _state(pod.get("status", {}))
    return is_over(pod) or "running" in state or "terminated" in state


_HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons of a container that waits, which do not end by waiting."""


def _state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == NAME and isinstance(one.get("state"), dict):
            state: Mapping[str, Any] = one["state"]
            return state
    return {}
