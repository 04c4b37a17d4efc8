"""Runs one pod on a node to its end, passes on its log, and deletes it whatever happens."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core import errors

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
    return {APP_LABEL: APP, COMPONENT_LABEL: component}


def node_container(daemon_set: Mapping[str, object], component: str, words: Sequence[str]) -> dict[str, Any]:
    """The DaemonSet's container of the node process, called ``component``, that runs ``dra-driver <words>`` instead.
    Raises ConfigurationError when the DaemonSet does not run the node process."""
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
    raise errors.ConfigurationError(
        f"DaemonSet {daemon_set['metadata']['name']} does not run the node process: none of its containers ({names})"
        f" has the argument {_NODE_COMMAND}; name the right one with --daemonset",
        reason="ContainerNotFound",
    )


def _command(container: Mapping[str, Any], words: Sequence[str]) -> dict[str, object]:
    command = list(container.get("command", ()))
    if _NODE_COMMAND in command:
        return {"command": [*command[: command.index(_NODE_COMMAND)], *words]}
    before = list(container.get("args", ()))
    args = [*before[: before.index(_NODE_COMMAND)], *words]
    return {"command": command, "args": args} if command else {"args": args}


def why_not_running(pod: Mapping[str, Any], container: str) -> str:
    """Return why the pod cannot start or failed without a report; "" while it can still succeed."""
    status = pod.get("status", {})
    if status.get("phase") == "Failed":
        ended = container_state(status, container).get("terminated", {})
        shown = status.get("message") or ended.get("message") or ""
        reason = status.get("reason") or ended.get("reason") or "Failed"
        code = f", exit status {ended['exitCode']}" if "exitCode" in ended else ""
        return f"the pod failed ({reason}{code}){': ' + ' '.join(shown.split())[:400] if shown else ''}"
    waiting = container_state(status, container).get("waiting", {})
    if waiting.get("reason") in _HOPELESS:
        return f"the pod cannot start ({waiting['reason']}): {' '.join(waiting.get('message', '').split())[:400]}"
    return ""


def is_over(pod: Mapping[str, Any]) -> bool:
    return pod.get("status", {}).get("phase") in {"Succeeded", "Failed"}


def has_started(pod: Mapping[str, Any], container: str) -> bool:
    state = container_state(pod.get("status", {}), container)
    return is_over(pod) or "running" in state or "terminated" in state


_HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"}
)
"""Reasons of a container that waits, which do not end by waiting."""


def container_state(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    for one in status.get("containerStatuses") or ():
        if one.get("name") == container and isinstance(one.get("state"), dict):
            state: Mapping[str, object] = one["state"]
            return state
    return {}


START_S: Final = 180.0  # how long the pod may take to start
STEP_S: Final = 1.0
_TRIES: Final = 5  # consecutive failed polls before the command fails

Say = Callable[[str], None]
Report = TypeVar("Report")


class PodApi(Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def get(self, path: str) -> dict[str, Any]: ...
    def get_text(self, path: str) -> str: ...
    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...
    def delete(self, path: str) -> None: ...


class PodFailedError(errors.DraError):
    """The pod gave no report; the message says why."""


class PodPlace(Struct, frozen=True, kw_only=True):
    """Origin and place of the pod: ``command`` as the user typed it, ``daemon_set`` of the node process,
    ``namespace_flag`` of the command."""

    command: str
    node: str
    namespace: str = "dra-driver"
    daemon_set: str = "dra-driver-node"
    keep: bool = False
    namespace_flag: str = "--namespace"


class PodLog(Struct, Generic[Report], frozen=True, kw_only=True):
    """Content of a log. ``report`` finds the report or returns None; ``lines`` returns the lines for the user."""

    report: Callable[[str], Report | None]
    lines: Callable[[str], str]


def read_daemon_set(api: PodApi, place: PodPlace) -> dict[str, object]:
    """The DaemonSet, after a check of the node where the user may read nodes. Raises ConfigurationError where one does
    not exist, and KubernetesApiError."""
    _check_node(api, place.node)
    path = f"/apis/apps/v1/namespaces/{_segment(place.namespace)}/daemonsets/{_segment(place.daemon_set)}"
    try:
        found: dict[str, object] = allowed(lambda: api.get(path), place, "get daemonsets.apps")
    except errors.NotFoundError as error:
        raise errors.ConfigurationError(
            f"no DaemonSet {place.daemon_set} in namespace {place.namespace}: name that of the node process with"
            f" {place.namespace_flag} and --daemonset (kubectl get daemonsets -A lists them)"
        ) from error
    return found


def run_pod(
    api: PodApi,
    body: Mapping[str, Any],
    place: PodPlace,
    log: PodLog[Report],
    said: Say,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Create the pod, pass on its lines, and return its report. The pod is always deleted unless the caller keeps it:
    ``body`` has its name, so that it can be deleted when the answer to creating it is lost. Raises KubernetesApiError
    and PodFailedError."""
    path = f"/api/v1/namespaces/{_segment(place.namespace)}/pods/{_segment(body['metadata']['name'])}"
    _create(api, path, body, place, said)
    try:
        return _Follower(api, path, body, place=place, log=log, said=said, sleep=sleep, clock=clock).report()
    finally:
        _delete(api, path, place, said)


def _create(api: PodApi, path: str, body: Mapping[str, object], place: PodPlace, said: Say) -> None:
    pods = path.rpartition("/")[0]
    try:
        allowed(lambda: api.create(pods, body), place, "create pods")
    except errors.InvalidObjectError as error:
        raise PodFailedError(f"the API server refuses the pod: {error}") from error
    except (errors.ApiUnreachableError, errors.ServerBusyError, KeyboardInterrupt):  # the pod may exist anyway
        _delete(api, path, replace(place, keep=False), said)
        raise


class _Follower(Generic[Report]):
    def __init__(
        self,
        api: PodApi,
        path: str,
        body: Mapping[str, Any],
        *,
        place: PodPlace,
        log: PodLog[Report],
        said: Say,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._api, self._path, self._place, self._log, self._said = api, path, place, log, said
        self._container = body["spec"]["containers"][0]["name"]
        self._deadline_s = body["spec"]["activeDeadlineSeconds"]
        self._sleep, self._clock = sleep, clock
        self._shown = 0
        self._failed: dict[str, int] = {}

    def report(self) -> Report:
        begin = self._clock()
        while True:
            pod = self._polled(lambda: self._api.get(self._path), "get pods")
            text = self._text() if pod and has_started(pod, self._container) else ""
            self._show(text or "")
            if pod and is_over(pod) and text is not None:
                found = self._log.report(text)
                if found is not None:
                    return found
                why = why_not_running(pod, self._container) or "it ended without one"
                raise PodFailedError(f"no report from {self._path}: {why}")
            self._check_progress(pod, self._clock() - begin)
            self._sleep(STEP_S)

    def _check_progress(self, pod: Mapping[str, object] | None, waited_s: float) -> None:
        node, limit_s = self._place.node, START_S + self._deadline_s
        if pod and not is_over(pod) and (reason := why_not_running(pod, self._container)):
            raise PodFailedError(f"no report from node {node}: {reason}")
        if pod and not has_started(pod, self._container) and waited_s > START_S:
            raise PodFailedError(
                f"the pod has not started on node {node} within {START_S:.0f} s: is the node ready? "
                f"kubectl describe pod in namespace {self._place.namespace} says more"
            )
        if waited_s > limit_s:
            raise PodFailedError(f"no end of the pod on node {node} within {limit_s:.0f} s")

    def _text(self) -> str | None:
        text: str | None = self._polled(lambda: self._api.get_text(f"{self._path}/log"), "get pods/log")
        return text

    def _show(self, text: str) -> None:
        lines = self._log.lines(text)
        whole = lines[: lines.rfind("\n") + 1]
        for line in whole[self._shown :].splitlines():
            self._said(line)
        self._shown = max(self._shown, len(whole))

    def _polled(self, ask: Callable[[], object], right: str) -> Any:
        """The answer, None when the API server had a bad moment."""
        try:
            answer = allowed(ask, self._place, right)
        except errors.NotFoundError as error:
            raise PodFailedError(f"the pod on node {self._place.node} was deleted by another client") from error
        except (errors.ApiUnreachableError, errors.ServerBusyError):
            self._failed[right] = self._failed.get(right, 0) + 1
            if self._failed[right] >= _TRIES:
                raise
            return None
        except errors.InvalidObjectError:  # the container has not started after all
            return ""
        self._failed[right] = 0
        return answer


def _check_node(api: PodApi, name: str) -> None:
    try:
        with suppress(errors.ForbiddenError):
            api.get(f"/api/v1/nodes/{_segment(name)}")
    except errors.NotFoundError as error:
        raise errors.ConfigurationError(f"no node {name!r} in this cluster: kubectl get nodes lists them") from error


def _delete(api: PodApi, path: str, place: PodPlace, said: Say) -> None:
    """Delete the pod. Print a failure: an exception would hide the first one."""
    name = path.rpartition("/")[2]
    if place.keep:
        said(f"kept: pod {name} in namespace {place.namespace}")
        return
    try:
        api.delete(path)
    except errors.NotFoundError:
        return
    except errors.KubernetesApiError as error:
        said(f"the pod was not deleted ({error}): kubectl -n {place.namespace} delete pod {name}")


def allowed(ask: Callable[[], object], place: PodPlace, right: str) -> Any:
    """The answer. A 403 names the right that is missing, or the Pod Security level that refuses the pod."""
    try:
        return ask()
    except errors.ForbiddenError as error:
        if "PodSecurity" in str(error):
            raise PodFailedError(
                f"Pod Security of namespace {place.namespace} refuses the pod: {error}. It needs the privileges of the"
                " node process: kubectl label namespace "
                f"{place.namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
            ) from error
        raise errors.ForbiddenError(
            f"{error}. `{place.command}` needs the right to {right} in namespace {place.namespace}",
            status=error.status,
            reason=error.reason,
        ) from error


def _segment(name: str) -> str:
    if name in {"", ".", ".."}:
        raise errors.ConfigurationError(f"{name!r} is not the name of a Kubernetes object")
    return quote(name, safe="")
