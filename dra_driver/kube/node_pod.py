"""A pod on one node, made from the DaemonSet of the node process, and what its status says. Pure.

Commands that have to look at a node run such a pod: with the image and the places of the node process, they see what it
sees. A label of its own keeps the DaemonSet from taking the pod for one of its own and deleting it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError

APP_LABEL: Final = "app.kubernetes.io/name"
COMPONENT_LABEL: Final = "app.kubernetes.io/component"
APP: Final = "dra-driver"
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
_KEPT_OF_CONTAINER: Final = (
    "image",
    "imagePullPolicy",
    "env",
    "envFrom",
    "volumeMounts",
    "securityContext",
    "workingDir",
    "terminationMessagePath",
)


def labels_of(component: str) -> dict[str, str]:
    """The labels of the pods of one command."""
    return {APP_LABEL: APP, COMPONENT_LABEL: component}


def node_container(daemon_set: Mapping[str, object], component: str, words: Sequence[str]) -> dict[str, Any]:
    """The DaemonSet's container of the node process, called ``component``, that runs ``dra-driver <words>`` instead.

    Raises ConfigurationError when the DaemonSet does not run the node process.
    """
    container = _container(daemon_set)
    made = {key: container[key] for key in _KEPT_OF_CONTAINER if key in container}
    return {
        **made,
        "name": component,
        **_command(container, words),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def node_pod(
    daemon_set: Mapping[str, Any],
    node: str,
    container: Mapping[str, Any],
    volumes: Sequence[Mapping[str, object]],
    *,
    suffix: str,
    deadline_s: int,
    grace_s: int,
) -> dict[str, object]:
    """The pod for ``node`` with this container, in the DaemonSet's namespace; the kubelet ends it at the deadline."""
    template = daemon_set["spec"]["template"]["spec"]
    component = container["name"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"dra-{component}-{suffix}",
            "namespace": daemon_set["metadata"]["namespace"],
            "labels": labels_of(component),
        },
        "spec": {
            **{key: template[key] for key in _KEPT if key in template},
            "volumes": list(volumes),
            "nodeName": node,
            "restartPolicy": "Never",
            "activeDeadlineSeconds": deadline_s,
            "terminationGracePeriodSeconds": grace_s,
            "automountServiceAccountToken": False,
            "tolerations": [{"operator": "Exists"}],
            "containers": [dict(container)],
        },
    }


def _container(daemon_set: Mapping[str, Any]) -> Mapping[str, object]:
    containers = daemon_set["spec"]["template"]["spec"]["containers"]
    for container in containers:
        if _NODE_COMMAND in (*container.get("command", ()), *container.get("args", ())):
            found: Mapping[str, object] = container
            return found
    names = ", ".join(container["name"] for container in containers)
    raise ConfigurationError(
        f"DaemonSet {daemon_set['metadata']['name']} does not run the node process: none of its containers ({names})"
        f" has the argument {_NODE_COMMAND}; name the right one with --daemonset"
    )


def _command(container: Mapping[str, Any], words: Sequence[str]) -> dict[str, object]:
    """``command`` and ``args`` with the words in place of the node process and its flags."""
    command = list(container.get("command", ()))
    if _NODE_COMMAND in command:
        return {"command": [*command[: command.index(_NODE_COMMAND)], *words]}
    before = list(container.get("args", ()))
    args = [*before[: before.index(_NODE_COMMAND)], *words]
    return {"command": command, "args": args} if command else {"args": args}


def why_not_running(pod: Mapping[str, Any], container: str) -> str:
    """Why the pod cannot start or has failed without a report, as a sentence; "" while it may still work."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        ended = _state(status, container).get("terminated", {})
        told = status.get("message") or ended.get("message") or ""
        reason = status.get("reason") or ended.get("reason") or "Failed"
        code = f", exit status {ended['exitCode']}" if "exitCode" in ended else ""
        return f"the pod failed ({reason}{code}){': ' + ' '.join(told.split())[:400] if told else ''}"
    waiting = _state(status, container).get("waiting", {})
    if waiting.get("reason") in _HOPELESS:
        return f"the pod cannot start ({waiting['reason']}): {' '.join(waiting.get('message', '').split())[:400]}"
    return ""


def is_over(pod: Mapping[str, Any]) -> bool:
    """Whether the pod has ended."""
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def has_started(pod: Mapping[str, Any], container: str) -> bool:
    """Whether there may be a log."""
    state = _state(pod.get("status", {}), container)
    return is_over(pod) or "running" in state or "terminated" in state


_HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons of a container that waits, which do not end by waiting."""


def _state(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == container and isinstance(one.get("state"), dict):
            state: Mapping[str, object] = one["state"]
            return state
    return {}
