"""Run the hardware check as a pod on a node, follow its lines, and bring the report back."""

import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol
from urllib.parse import quote

from dra_driver.errors import (
    ApiUnreachableError,
    ConfigurationError,
    DraError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
)
from dra_driver.hardware_check import storage
from dra_driver.hardware_check.node_pod import DEADLINE_S, has_started, is_over, pod_for, why_not_running
from dra_driver.hardware_check.values import HardwareReport

START_S: Final = 180.0
"""How long the pod may take to start."""
STEP_S: Final = 1.0
_TRIES: Final = 5
"""Failed polls in a row before the command gives up."""

Say = Callable[[str], None]


class PodApi(Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def get(self, path: str) -> dict[str, Any]: ...
    def get_text(self, path: str) -> str: ...
    def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]: ...
    def delete(self, path: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCheck:
    """What to run where. ``arguments`` are flags of ``dra-driver hardware-check``."""

    node: str
    namespace: str
    daemon_set: str
    arguments: tuple[str, ...] = ()
    keep: bool = False


class PodFailedError(DraError):
    """The pod gave no report; the message says why."""


def run_on_node(
    api: PodApi,
    check: NodeCheck,
    said: Say,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> HardwareReport:
    """Create the pod, pass on its lines as they come, and return its report. The pod is deleted in any case, unless it
    is to be kept.

    Raises ConfigurationError (no such node or DaemonSet), KubernetesApiError, and PodFailedError.
    """
    # Named here and not by the API server, so that it can be deleted when the answer is lost.
    body = pod_for(_daemon_set(api, check), _node(api, check.node), check.arguments, suffix=secrets.token_hex(4))
    path = f"/api/v1/namespaces/{_segment(check.namespace)}/pods/{_segment(body['metadata']['name'])}"
    _create(api, path, body, check, said)
    try:
        return _Follower(api, path, check, said, sleep=sleep, clock=clock).report()
    finally:
        _delete(api, path, check, said)


def _create(api: PodApi, path: str, body: Mapping[str, Any], check: NodeCheck, said: Say) -> None:
    pods = path.rpartition("/")[0]
    try:
        _allowed(lambda: api.create(pods, body), f"create pods in namespace {check.namespace}")
    except InvalidObjectError as error:
        raise PodFailedError(f"the API server refuses the pod: {error}") from error
    except (ApiUnreachableError, ServerBusyError, KeyboardInterrupt):  # it may have been created all the same
        _delete(api, path, replace(check, keep=False), said)
        raise


class _Follower:
    """Polls one pod and its log."""

    def __init__(
        self,
        api: PodApi,
        path: str,
        check: NodeCheck,
        said: Say,
        *,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._api, self._path, self._check, self._said = api, path, check, said
        self._sleep, self._clock = sleep, clock
        self._shown = 0
        self._failed = 0

    def report(self) -> HardwareReport:
        begin = self._clock()
        while True:
            pod = self._polled(lambda: self._api.get(self._path), "get pods")
            log = self._log() if pod and has_started(pod) else ""
            self._show(log)
            if pod and is_over(pod):
                found = storage.unpack(log)
                if found is not None:
                    return found
                raise PodFailedError(f"no report from {self._path}: {why_not_running(pod) or 'it ended without one'}")
            self._check_progress(pod, self._clock() - begin)
            self._sleep(STEP_S)

    def _check_progress(self, pod: Mapping[str, Any] | None, waited_s: float) -> None:
        if pod and (reason := why_not_running(pod)):
            raise PodFailedError(f"no report from node {self._check.node}: {reason}")
        if pod and not has_started(pod) and waited_s > START_S:
            raise PodFailedError(
                f"the pod has not started on node {self._check.node} within {START_S:.0f} s: is the node ready? "
                f"kubectl describe pod in namespace {self._check.namespace} says more"
            )
        if waited_s > START_S + DEADLINE_S:
            raise PodFailedError(f"no end of the pod on node {self._check.node} within {START_S + DEADLINE_S:.0f} s")

    def _log(self) -> str:
        return self._polled(lambda: self._api.get_text(f"{self._path}/log"), "get pods/log") or ""

    def _show(self, log: str) -> None:
        """Pass on whole new lines, the packed report apart."""
        text = storage.without_report(log)
        whole = text[: text.rfind("\n") + 1]
        for line in whole[self._shown :].splitlines():
            self._said(line)
        self._shown = max(self._shown, len(whole))

    def _polled(self, ask: Callable[[], Any], right: str) -> Any:
        """The answer, None when the API server had a bad moment."""
        try:
            answer = _allowed(ask, f"{right} in namespace {self._check.namespace}")
        except NotFoundError as error:
            raise PodFailedError(f"the pod on node {self._check.node} was deleted by another client") from error
        except (ApiUnreachableError, ServerBusyError):
            self._failed += 1
            if self._failed >= _TRIES:
                raise
            return None
        except InvalidObjectError:  # the container has not started after all
            return None
        self._failed = 0
        return answer


def _daemon_set(api: PodApi, check: NodeCheck) -> dict[str, Any]:
    path = f"/apis/apps/v1/namespaces/{_segment(check.namespace)}/daemonsets/{_segment(check.daemon_set)}"
    try:
        found: dict[str, Any] = _allowed(lambda: api.get(path), f"get daemonsets.apps in namespace {check.namespace}")
    except NotFoundError as error:
        raise ConfigurationError(
            f"no DaemonSet {check.daemon_set} in namespace {check.namespace}: name that of the node process with"
            " --namespace and --daemonset (kubectl get daemonsets -A lists them)"
        ) from error
    return found


def _node(api: PodApi, name: str) -> str:
    """The node's name, checked where the user may read nodes."""
    try:
        with suppress(ForbiddenError):
            api.get(f"/api/v1/nodes/{_segment(name)}")
    except NotFoundError as error:
        raise ConfigurationError(f"no node {name!r} in this cluster: kubectl get nodes lists them") from error
    return name


def _delete(api: PodApi, path: str, check: NodeCheck, said: Say) -> None:
    """Delete the pod; a failure is told, because an exception would hide the first one."""
    name = path.rpartition("/")[2]
    if check.keep:
        said(f"kept: pod {name} in namespace {check.namespace}")
        return
    try:
        api.delete(path)
    except NotFoundError:
        return
    except KubernetesApiError as error:
        said(f"the pod was not deleted ({error}): kubectl -n {check.namespace} delete pod {name}")


def _allowed(ask: Callable[[], Any], right: str) -> Any:
    """The answer. A 403 names the right that is missing."""
    try:
        return ask()
    except ForbiddenError as error:
        raise ForbiddenError(
            f"{error}. `kubectl dra hardware-check` needs the right to {right}",
            status=error.status,
            reason=error.reason,
        ) from error


def _segment(name: str) -> str:
    if name in {"", ".", ".."}:
        raise ConfigurationError(f"{name!r} is not the name of a Kubernetes object")
    return quote(name, safe="")
