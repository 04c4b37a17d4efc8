"""Runs one pod on a node to its end, passes on its log, and deletes it whatever happens."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConfigurationError,
    DraError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
)
from dra_driver.kube.node_pod import has_started, is_over, why_not_running

START_S: Final = 180.0
"""How long the pod may take to start."""
STEP_S: Final = 1.0
_TRIES: Final = 5
"""Failed polls in a row before the command gives up."""

Say = Callable[[str], None]
Report = TypeVar("Report")


class PodApi(Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def get(self, path: str) -> dict[str, Any]: ...
    def get_text(self, path: str) -> str: ...
    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...
    def delete(self, path: str) -> None: ...


class PodFailedError(DraError):
    """The pod gave no report; the message says why."""


class PodPlace(Struct, frozen=True, kw_only=True):
    """For whom the pod runs, and where: ``command`` is what the user typed, ``daemon_set`` that of the node process,
    ``namespace_flag`` the command's flag for its namespace."""

    command: str
    node: str
    namespace: str = "dra-driver"
    daemon_set: str = "dra-driver-node"
    keep: bool = False
    namespace_flag: str = "--namespace"


class PodLog(Struct, Generic[Report], frozen=True, kw_only=True):
    """What a log has: ``report`` finds the report, None without one; ``lines`` are what people are to see of it."""

    report: Callable[[str], Report | None]
    lines: Callable[[str], str]


def read_daemon_set(api: PodApi, place: PodPlace) -> dict[str, object]:
    """The DaemonSet, after a look at the node where the user may read nodes.

    Raises ConfigurationError where one of the two does not exist, and KubernetesApiError.
    """
    _check_node(api, place.node)
    path = f"/apis/apps/v1/namespaces/{_segment(place.namespace)}/daemonsets/{_segment(place.daemon_set)}"
    try:
        found: dict[str, object] = allowed(lambda: api.get(path), place, "get daemonsets.apps")
    except NotFoundError as error:
        raise ConfigurationError(
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
    """Create the pod, pass on its lines as they come, and return its report. The pod is deleted in any case, unless it
    is to be kept. Its name is in ``body``, so that it can be deleted when the answer to creating it is lost.

    Raises KubernetesApiError and PodFailedError.
    """
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
    except InvalidObjectError as error:
        raise PodFailedError(f"the API server refuses the pod: {error}") from error
    except (ApiUnreachableError, ServerBusyError, KeyboardInterrupt):  # it may have been created all the same
        _delete(api, path, replace(place, keep=False), said)
        raise


class _Follower(Generic[Report]):
    """Polls one pod and its log."""

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
        """The log so far; None when it could not be read this time, "" before there is one."""
        text: str | None = self._polled(lambda: self._api.get_text(f"{self._path}/log"), "get pods/log")
        return text

    def _show(self, text: str) -> None:
        """Pass on whole new lines."""
        lines = self._log.lines(text)
        whole = lines[: lines.rfind("\n") + 1]
        for line in whole[self._shown :].splitlines():
            self._said(line)
        self._shown = max(self._shown, len(whole))

    def _polled(self, ask: Callable[[], object], right: str) -> Any:
        """The answer, None when the API server had a bad moment."""
        try:
            answer = allowed(ask, self._place, right)
        except NotFoundError as error:
            raise PodFailedError(f"the pod on node {self._place.node} was deleted by another client") from error
        except (ApiUnreachableError, ServerBusyError):
            self._failed[right] = self._failed.get(right, 0) + 1
            if self._failed[right] >= _TRIES:
                raise
            return None
        except InvalidObjectError:  # the container has not started after all
            return ""
        self._failed[right] = 0
        return answer


def _check_node(api: PodApi, name: str) -> None:
    try:
        with suppress(ForbiddenError):
            api.get(f"/api/v1/nodes/{_segment(name)}")
    except NotFoundError as error:
        raise ConfigurationError(f"no node {name!r} in this cluster: kubectl get nodes lists them") from error


def _delete(api: PodApi, path: str, place: PodPlace, said: Say) -> None:
    """Delete the pod; a failure is told, because an exception would hide the first one."""
    name = path.rpartition("/")[2]
    if place.keep:
        said(f"kept: pod {name} in namespace {place.namespace}")
        return
    try:
        api.delete(path)
    except NotFoundError:
        return
    except KubernetesApiError as error:
        said(f"the pod was not deleted ({error}): kubectl -n {place.namespace} delete pod {name}")


def allowed(ask: Callable[[], object], place: PodPlace, right: str) -> Any:
    """The answer. A 403 names the right that is missing, or the Pod Security level that refuses the pod."""
    try:
        return ask()
    except ForbiddenError as error:
        if "PodSecurity" in str(error):
            raise PodFailedError(
                f"Pod Security of namespace {place.namespace} refuses the pod: {error}. It needs the privileges of the"
                " node process: kubectl label namespace "
                f"{place.namespace} pod-security.kubernetes.io/enforce=privileged --overwrite"
            ) from error
        raise ForbiddenError(
            f"{error}. `{place.command}` needs the right to {right} in namespace {place.namespace}",
            status=error.status,
            reason=error.reason,
        ) from error


def _segment(name: str) -> str:
    if name in {"", ".", ".."}:
        raise ConfigurationError(f"{name!r} is not the name of a Kubernetes object")
    return quote(name, safe="")
