"""Query the API server for the facts, one question after another, within a total time.

A question that is refused or fails leaves its fact unanswered, with the missing permission, and reading continues. If
the API server does not answer at all, or rejects the credentials, the remaining questions are skipped."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from dra_driver.core import errors
from dra_driver.core.request_rights import AccessRight, right_in
from dra_driver.diagnose.doctor import facts as fact
from dra_driver.diagnose.doctor.check_api import gates_in
from dra_driver.diagnose.doctor.facts import text
from dra_driver.diagnose.doctor.reduce import (
    is_about_devices,
    redacted,
    reduced_daemonset,
    reduced_driver_pod,
    visible_devices,
    without_notes,
)
from dra_driver.kube import paths
from dra_driver.kube.state import KINDS, MAX_EVENTS, StateKind, Wire, read_kind
from dra_driver.kube.state_parts import is_relevant_event, reduced

REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
_RESOURCE: Final = "resource.k8s.io"
_GPU: Final = "gpu.dra-driver.io"


class DriverRight(Struct, frozen=True, kw_only=True):
    """``account`` is ``namespace/name`` of a ServiceAccount."""

    account: str
    right: AccessRight

    def review(self) -> dict[str, object]:
        """The SubjectAccessReview for it."""
        namespace, _, name = self.account.partition("/")
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        spec = {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "groups": groups,
            "resourceAttributes": self.right.attributes,
        }
        return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def rights_of_driver(daemonsets: Iterable[Wire]) -> list[DriverRight]:
    """Permissions that the node processes of these DaemonSets need."""
    return [
        DriverRight(
            account=f"{fact.namespace_of(item)}/{text(item, 'spec', 'serviceAccountName') or 'default'}", right=right
        )
        for item in daemonsets
        for right in _of_node_process(item)
    ]


def _of_node_process(daemonset: Wire) -> Iterator[AccessRight]:
    for verb in ("list", "watch", "create", "update", "delete"):
        yield AccessRight(verb=verb, resource="resourceslices", group=_RESOURCE)
    yield AccessRight(verb="get", resource="resourceclaims", group=_RESOURCE, namespaced=True)
    for verb in ("get", "list", "watch"):
        yield AccessRight(verb=verb, resource="nodes")
    if fact.setting(daemonset, "POLICY_OBJECTS") != "false":
        yield AccessRight(verb="list", resource="gpupolicies", group=_GPU)
        yield AccessRight(verb="watch", resource="gpupolicies", group=_GPU)
    if fact.setting(daemonset, "GPU_NODE") != "false":
        yield AccessRight(verb="create", resource="gpunodes", group=_GPU)
        yield AccessRight(verb="patch", resource="gpunodes", group=_GPU, subresource="status")
    yield AccessRight(verb="create", resource="events", namespace="default", namespaced=True)


TOTAL_S: Final = 30.0
"""Limit of all questions together."""
_OWN_QUESTIONS: Final = ("pods", "events")
_MOST_NAMESPACES: Final = 4
"""Number of namespaces to search for the driver's pods; a cluster normally has one."""
_MOST_LOGS: Final = 4
_LOG_LINES: Final = 60
_LOG_BYTES: Final = 65536

Query = Mapping[str, str]
T = TypeVar("T")


class QuestionApi(Protocol):
    """Subset of ``kube.rest.RestClient`` that this module uses."""

    def get(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> dict[str, object]: ...
    def list(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> dict[str, object]: ...
    def get_text(self, path: str, query: Query | None = None, *, within_s: float | None = None) -> str: ...
    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]: ...


def read_facts(
    api: QuestionApi,
    *,
    server: Wire,
    namespace: str = "default",
    driver_namespace: str = fact.NAMESPACE,
    total_s: float = TOTAL_S,
    clock: Callable[[], float] = time.monotonic,
) -> fact.ClusterFacts:
    """Return all facts that this user can read. Does not raise KubernetesApiError.

    Reads only ``namespace`` if the user has no permission for all of them, and only ``driver_namespace`` if it
    cannot list DaemonSets in all. ``server`` is the fact about the API server.
    """
    reader = _Reader(_WithinTime(api, clock() + total_s, clock), namespace, driver_namespace)
    return fact.ClusterFacts(answers={**reader.read(), fact.SERVER: dict(server)}, source=str(server.get("source", "")))


class _WithinTime:
    """The API, limited to the time left for all questions. Raises ApiUnreachableError when it has expired."""

    def __init__(self, api: QuestionApi, until_s: float, clock: Callable[[], float]) -> None:
        self._api, self._until_s, self._clock = api, until_s, clock

    def get(self, path: str, query: Query | None = None) -> dict[str, object]:
        return self._api.get(path, query, within_s=self._left_s(path))

    def list(self, path: str, query: Query | None = None) -> dict[str, object]:
        return self._api.list(path, query, within_s=self._left_s(path))

    def get_text(self, path: str, query: Query | None = None) -> str:
        return self._api.get_text(path, query, within_s=self._left_s(path))

    def create(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        self._left_s(path)
        return self._api.create(path, body)

    def _left_s(self, path: str) -> float:
        left_s = self._until_s - self._clock()
        if left_s <= 0:
            raise errors.ApiUnreachableError(f"GET {path}: skipped, because the time for all questions has expired")
        return left_s


class _Reader:
    def __init__(self, api: _WithinTime, namespace: str, driver_namespace: str) -> None:
        self._api, self._namespace, self._driver_namespace = api, namespace, driver_namespace
        self._answers: dict[str, object] = {}
        self._partial: list[dict[str, str]] = []
        self._is_hopeless = False

    def read(self) -> dict[str, object]:
        ask = self._asked
        self._answers[fact.VERSION] = first = ask(lambda: self._api.get(paths.version()))
        if isinstance(first, fact.Unanswered) and self._is_hopeless:
            return {**dict.fromkeys((*fact.STATE_KINDS, *fact.EXTRA), _NOT_ASKED), **self._answers}
        self._answers[fact.RESOURCE_API] = ask(lambda: self._discovery(_RESOURCE_GROUP))
        self._answers[fact.GPU_API] = ask(lambda: self._discovery(paths.GPU_API))
        self._read_driver()
        for kind in KINDS:
            if kind.field not in _OWN_QUESTIONS:
                self._answers[kind.field] = self._kind(kind)
        pods = ask(lambda: self._everywhere_or_in(paths.pods(), paths.pods(self._namespace)))
        self._answers["pods"] = _each(pods, partial(reduced, "Pod"))
        self._answers[fact.VISIBLE_DEVICES] = _each(pods, visible_devices)
        self._answers["events"] = ask(self._events)
        for name, path in ((fact.GPU_NODES, paths.gpu_nodes()), (fact.GPU_POLICIES, paths.gpu_policies())):
            self._answers[name] = _each(ask(partial(self._listed, path)), without_notes)
        self._answers[fact.GATES] = ask(lambda: gates_in(self._api.get_text("/metrics")))
        self._answers[fact.DRIVER_RIGHTS] = ask(lambda: [self._reviewed(each) for each in rights_of_driver(self._own)])
        self._answers[fact.PARTLY_READ] = self._partial
        return self._answers

    def _asked(self, question: Callable[[], T]) -> "T | list[Wire] | fact.Unanswered":
        try:
            return question()
        except errors.NotFoundError:
            return []
        except errors.KubernetesApiError as error:
            self._is_hopeless = isinstance(error, errors.ApiUnreachableError | errors.UnauthorizedError)
            return unanswered(error)

    def _discovery(self, path: str) -> Wire:
        try:
            return self._api.get(path)
        except errors.NotFoundError:
            return {}

    def _kind(self, kind: StateKind) -> object:
        if kind.field == "taint_rules":  # its API version differs between servers, and most serve none
            return self._asked(lambda: list(read_kind(self._api, kind, None, [])))
        api = paths.CORE_API if kind.api_version == "v1" else f"/apis/{kind.api_version}"
        everywhere, local = f"{api}/{kind.resource}", f"{api}/namespaces/{self._namespace}/{kind.resource}"
        if kind.namespaced:
            found = self._asked(lambda: self._everywhere_or_in(everywhere, local))
        else:
            found = self._asked(lambda: self._listed(everywhere))
        return _each(found, partial(reduced, kind.kind))

    def _listed(self, path: str, query: Query | None = None) -> list[Wire]:
        return fact.dicts(self._api.list(path, query), "items")

    def _everywhere_or_in(self, everywhere: str, local: str, query: Query | None = None) -> list[Wire]:
        try:
            return self._listed(everywhere, query)
        except errors.ForbiddenError as refused:
            try:
                found = self._listed(local, query)
            except errors.ForbiddenError:
                raise refused from None
            self._partial.append({"seen": refusal(str(refused)).seen, "path": local})
            return found

    def _events(self) -> list[Wire]:
        """Warnings about scheduling, claims and devices, and about the driver's objects."""
        query, local = {"fieldSelector": "type=Warning"}, paths.events(self._namespace)
        found = self._everywhere_or_in(f"{paths.CORE_API}/events", local, query)
        kept = [event for event in found if is_relevant_event(event) or is_about_devices(event)]
        return [reduced("Event", event) for event in kept[-MAX_EVENTS:]]

    def _read_driver(self) -> None:
        """Read the DaemonSets, the pods in the driver's namespaces, and the logs of pods that are not ready."""
        local = f"{_APPS}/namespaces/{self._driver_namespace}/daemonsets"
        found = self._asked(lambda: self._everywhere_or_in(f"{_APPS}/daemonsets", local))
        self._answers[fact.DAEMONSETS] = daemonsets = _each(found, reduced_daemonset)
        installed = [] if isinstance(daemonsets, fact.Unanswered) else daemonsets
        own = [item for item in installed if fact.name_of(item) == fact.NODE_DAEMONSET]
        namespaces = list(dict.fromkeys(map(fact.namespace_of, own)))[:_MOST_NAMESPACES]
        self._own = [item for item in own if fact.namespace_of(item) in namespaces]
        wanted = map(paths.pods, namespaces or [self._driver_namespace])
        pods = self._asked(lambda: [reduced_driver_pod(pod) for path in wanted for pod in self._listed(path)])
        self._answers[fact.DRIVER_PODS] = pods
        unready = [] if isinstance(pods, fact.Unanswered) else [pod for pod in pods if not fact.is_ready(pod)]
        self._answers[fact.DRIVER_LOGS] = self._asked(lambda: [self._log(pod) for pod in unready[:_MOST_LOGS]])

    def _log(self, pod: Wire) -> Wire:
        query = {"tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        if any(fact.number(each, "restartCount") for each in fact.dicts(pod, "status", "containerStatuses")):
            query["previous"] = "true"  # the ended container has the reason
        try:
            text = self._api.get_text(f"{paths.pod(fact.namespace_of(pod), fact.name_of(pod))}/log", query)
        except errors.InvalidObjectError:  # no container has started
            text = ""
        lines = redacted(text, _LOG_BYTES).splitlines()
        return {"metadata": {"name": fact.name_of(pod), "namespace": fact.namespace_of(pod)}, "lines": lines}

    def _reviewed(self, right: DriverRight) -> Wire:
        answer = self._api.create(REVIEWS, right.review())
        allowed = fact.at(answer, "status", "allowed") is True
        return {"account": right.account, "right": str(right.right), "allowed": allowed}


def _each(
    found: Iterable[Wire] | fact.Unanswered, reduce: Callable[[Wire], Wire | None]
) -> list[Wire] | fact.Unanswered:
    if isinstance(found, fact.Unanswered):
        return found
    return [item for each in found if (item := reduce(each)) is not None]


def unanswered(error: errors.KubernetesApiError) -> fact.Unanswered:
    """The reason for a missing answer, and the next step."""
    if isinstance(error, errors.ForbiddenError):
        return refusal(str(error))
    if isinstance(error, errors.UnauthorizedError):
        return fact.Unanswered(
            seen=str(error), fix="Get new credentials for the kubeconfig; kubectl get nodes fails, too."
        )
    if isinstance(error, errors.ApiUnreachableError):
        return fact.Unanswered(
            seen=str(error),
            fix="Check the address in the kubeconfig and the network, or allow more time with --timeout.",
        )
    return fact.Unanswered(seen=str(error), fix="Repeat; if it stays, read the log of the API server.")


def refusal(message: str) -> fact.Unanswered:
    """The missing permission of a 403."""
    right = right_in(message)
    if right is None:
        return fact.Unanswered(seen=message, fix="Ask an administrator for the permission that the message names.")
    return fact.Unanswered(
        seen=f"the API server does not let this user {right} (403)",
        fix=f"Ask an administrator for the permission to {right}; to check it: {right.auth_can_i}",
    )


_APPS: Final = "/apis/apps/v1"
_RESOURCE_GROUP: Final = "/apis/resource.k8s.io"
_NOT_ASKED: Final = fact.Unanswered(
    seen="skipped, because the API server does not answer", fix="Make the API server answer first."
)
