"""Subresources other than status: logs, bindings, evictions and GET through the proxy of pods, the scale of workloads.
Evictions follow kubernetes/kubernetes pkg/registry/core/pod/storage/eviction.go.

As in the real server (pkg/registry/core/pod/rest/subresources.go, strategy.go ResourceLocation; k8s.io/apimachinery
pkg/util/proxy/transport.go), the proxy drops the caller's credentials, does not follow redirects, and answers 503 for
an unreachable port. Here it serves only GET over http, up to 16 MiB and 10 s.
"""

import http.client
import re
from collections.abc import Sequence
from datetime import timedelta
from time import monotonic
from typing import Final
from urllib.parse import quote, urlencode

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConflictError, KubernetesApiError
from dra_driver.core.time import rfc3339
from dra_driver.sim.apiserver.api_errors import bad_request, status_error
from dra_driver.sim.apiserver.jsonvalue import Clock, Obj, child, dig, dump, entries, mapping, utc_now
from dra_driver.sim.apiserver.kinds import POD_DISRUPTION_BUDGETS, PODS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, Target
from dra_driver.sim.apiserver.printers import has_condition, selector_text
from dra_driver.sim.apiserver.selectors import object_match
from dra_driver.sim.apiserver.store import Line, Store
from dra_driver.sim.apiserver.writes import WriteOptions


class LogPlan(Struct, frozen=True, kw_only=True):
    """The options of a log request; ``tail`` None means all lines."""

    target: Target
    container: str
    follow: bool
    timestamps: bool
    tail: int | None
    since_s: int | None
    limit_bytes: int | None


def _number(request: ApiRequest, name: str) -> int | None:
    text = request.query.get(name, "")
    if not text:
        return None
    if not text.isdigit():
        raise bad_request(f"{name} must be a number of at least 0, got {text!r}")
    return int(text)


def plan_log(store: Store, request: ApiRequest, target: Target) -> LogPlan:
    """Parse the options and choose the container. Raises NotFoundError, InvalidObjectError (400)."""
    pod = store.get(PODS, target.name, target.namespace)
    names = [item["name"] for part in ("initContainers", "containers") for item in entries(pod, "spec", part)]
    main = [item["name"] for item in entries(pod, "spec", "containers")]
    container = request.query.get("container", "") or (main[0] if len(names) == 1 else "")
    if not container:
        listed = " ".join(main)
        raise bad_request(f"a container name must be specified for pod {target.name}, choose one of: [{listed}]")
    if container not in names:
        raise bad_request(f"container {container} is not valid for pod {target.name}")
    state = mapping(_container_status(pod, container), "state")
    if "waiting" in state:
        reason = dig(state, "waiting", "reason", default="ContainerCreating")
        raise bad_request(f'container "{container}" in pod "{target.name}" is waiting to start: {reason}')
    return LogPlan(
        target=target,
        container=container,
        follow=request.flag("follow"),
        timestamps=request.flag("timestamps"),
        tail=_number(request, "tailLines"),
        since_s=_number(request, "sinceSeconds"),
        limit_bytes=_number(request, "limitBytes"),
    )


def _container_status(pod: Obj, container: str) -> Obj:
    statuses = entries(pod, "status", "containerStatuses") + entries(pod, "status", "initContainerStatuses")
    return next((item for item in statuses if item.get("name") == container), {})


def log_text(lines: Sequence[Line], plan: LogPlan, clock: Clock) -> bytes:
    if plan.since_s is not None:
        oldest = clock() - timedelta(seconds=plan.since_s)
        lines = [line for line in lines if line[0] >= oldest]
    if plan.tail is not None:
        lines = lines[len(lines) - plan.tail :] if plan.tail < len(lines) else lines
    shown = (f"{at:%Y-%m-%dT%H:%M:%S.%f}000Z {text}\n" if plan.timestamps else f"{text}\n" for at, text in lines)
    encoded = "".join(shown).encode()
    return encoded if plan.limit_bytes is None else encoded[: plan.limit_bytes]


def is_over(store: Store, plan: LogPlan) -> bool:
    """Return whether the log is complete: the pod is deleted or has finished, or the container has terminated."""
    pod = store.find(PODS, plan.target.name, plan.target.namespace)
    if pod is None or dig(pod, "status", "phase") in {"Succeeded", "Failed"}:
        return True
    return bool(dig(_container_status(pod, plan.container), "state", "terminated"))


def bind(store: Store, request: ApiRequest, target: Target) -> Reply:
    node = dig(request.object(), "target", "name", default="")
    if not node:
        raise bad_request("Binding: target.name: Required value: the node to run the pod on")
    store.bind(target.namespace, target.name, node)
    return accepted()


def eviction(request: ApiRequest, target: Target) -> ApiRequest:
    """The deletion that a POST to pods/eviction asks for. Raises InvalidObjectError (400)."""
    wanted = request.object()
    named = dig(wanted, "metadata", "name", default=target.name)
    if wanted.get("kind") != "Eviction" or named != target.name:
        raise bad_request(f"the body must be an Eviction of pod {target.name}, got {wanted.get('kind')} {named}")
    return replace(request, method="DELETE", body=dump(mapping(wanted, "deleteOptions")), headers={})


def accepted() -> Reply:
    success = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
    return Reply.of(success | {"code": 201}, status=201)


def read_scale(store: Store, target: Target) -> Obj:
    obj = store.get(target.kind, target.name, target.namespace)
    shown = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    metadata = {key: obj["metadata"][key] for key in shown if key in obj["metadata"]}
    selector = selector_text(mapping(obj, "spec", "selector"))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": metadata,
        "spec": {"replicas": dig(obj, "spec", "replicas", default=0)},
        "status": {"replicas": dig(obj, "status", "replicas", default=0), "selector": selector},
    }


def write_scale(store: Store, scale: Obj, target: Target) -> Reply:
    """Set the object's replicas from ``scale``. Raises ConflictError on a stale resourceVersion."""
    replicas = dig(scale, "spec", "replicas", default=0)
    if not isinstance(replicas, int) or replicas < 0:
        raise bad_request(f"Scale: spec.replicas: Invalid value: {replicas!r}: must be greater than or equal to 0")
    obj = store.get(target.kind, target.name, target.namespace)
    child(obj, "spec")["replicas"] = replicas
    if sent := dig(scale, "metadata", "resourceVersion"):
        obj["metadata"]["resourceVersion"] = sent
    store.update(target.kind, obj)
    return Reply.of(read_scale(store, target))


_REFUSED = "Cannot evict pod as it would violate the pod's disruption budget."
_SEVERAL = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
_ATTEMPTS = 20


def before_eviction(store: Store, target: Target, options: Obj) -> None:
    """Check the pod's budget, and set the condition with the reason for the pod's owner. ``options`` are the
    DeleteOptions of the eviction. Raises NotFoundError, and errors 429 and 500 as the real server."""
    pod = store.get(PODS, target.name, target.namespace)
    wanted, dry_run = dig(options, "preconditions", "uid", default=""), "All" in entries(options, "dryRun")
    if wanted and pod["metadata"]["uid"] != wanted:
        return  # the deletion answers with the conflict
    over = dig(pod, "status", "phase") in {"Succeeded", "Failed", "Pending"}
    if not over and dig(pod, "metadata", "deletionTimestamp") is None:
        _take_from_budget(store, pod, dry_run=dry_run)
    if not dry_run:
        _mark(store, target, pod["metadata"]["uid"])


def _take_from_budget(store: Store, pod: Obj, *, dry_run: bool) -> None:
    for _ in range(_ATTEMPTS):
        budgets = store.list(POD_DISRUPTION_BUDGETS, pod["metadata"]["namespace"]).items
        budgets = [item for item in budgets if object_match(dig(item, "spec", "selector"))(pod)]
        if len(budgets) > 1:
            raise status_error(500, "InternalError", _SEVERAL)
        if not budgets or _unready_pod_may_go(pod, budgets[0]):
            return
        budget = budgets[0]
        _check_allowed(budget)
        status = budget["status"]
        status["disruptionsAllowed"] -= 1
        status.setdefault("disruptedPods", {})[pod["metadata"]["name"]] = rfc3339(utc_now())
        try:
            store.update_status(POD_DISRUPTION_BUDGETS, budget, WriteOptions(dry_run=dry_run))
        except ConflictError:
            continue
        return
    raise _unprocessed(budget)


def _unready_pod_may_go(pod: Obj, budget: Obj) -> bool:
    if has_condition(pod, "Ready"):
        return False
    if dig(budget, "spec", "unhealthyPodEvictionPolicy") == "AlwaysAllow":
        return True
    desired = dig(budget, "status", "desiredHealthy", default=0)
    return bool(dig(budget, "status", "currentHealthy", default=0) >= desired > 0)


def _check_allowed(budget: Obj) -> None:
    name, status = budget["metadata"]["name"], mapping(budget, "status")
    if status.get("observedGeneration", 0) < budget["metadata"].get("generation", 1):
        raise _unprocessed(budget)
    if status.get("disruptionsAllowed", 0) > 0:
        return
    healthy, desired = status.get("currentHealthy", 0), status.get("desiredHealthy", 0)
    if healthy <= desired:
        raise _too_many(f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently")
    raise _too_many(f"The disruption budget {name} does not allow evicting pods currently")


def _unprocessed(budget: Obj) -> Exception:
    return _too_many(f"The disruption budget {budget['metadata']['name']} is still being processed by the server.", 10)


def _too_many(why: str, seconds: int = 0) -> Exception:
    cause = {"reason": "DisruptionBudget", "message": why}
    details = {"causes": [cause]} | ({"retryAfterSeconds": seconds} if seconds else {})
    return status_error(429, "TooManyRequests", _REFUSED, details)


def _mark(store: Store, target: Target, uid: str) -> None:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "EvictionByEvictionAPI",
        "message": "Eviction API: evicting",
        "lastTransitionTime": rfc3339(utc_now()),
    }
    for _ in range(_ATTEMPTS):
        pod = store.find(PODS, target.name, target.namespace)
        if pod is None or pod["metadata"]["uid"] != uid:
            return
        conditions = pod.setdefault("status", {}).setdefault("conditions", [])
        conditions[:] = [*(item for item in conditions if item.get("type") != "DisruptionTarget"), condition]
        try:
            store.update_status(PODS, pod)
        except ConflictError:
            continue
        return


MAX_ANSWER_BYTES: Final = 16 << 20
ANSWER_S: Final = 10.0
_HOST: Final = "127.0.0.1"
_CHUNK: Final = 1 << 16
_PATH: Final = re.compile(r"/api/v1/namespaces/([^/]+)/pods/([^/]+)/proxy(/.*)?", re.DOTALL)
_NAME: Final = re.compile(r"(?:(?P<scheme>[a-z]*):(?=.*:))?(?P<pod>[^:]+)(?::(?P<port>[^:]*))?")


class ProxyPlan(Struct, frozen=True, kw_only=True):
    """A request to ``pod``: ``path`` with its query, on ``port`` of loopback."""

    pod: str
    port: int
    path: str
    accept: str


def is_proxy(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def plan_proxy(store: Store, request: ApiRequest) -> ProxyPlan:
    """Find what answers for the pod. Raises NotFoundError, InvalidObjectError (400), KubernetesApiError (405, 503)."""
    match = _PATH.fullmatch(request.path)
    if match is None or request.method != "GET":
        raise status_error(405, "MethodNotAllowed", "the embedded API server proxies GET alone", {})
    namespace, path = match[1], match[3] or "/"
    named = _NAME.fullmatch(match[2])
    if named is None or named["scheme"] not in (None, "", "http"):
        raise bad_request(f"invalid pod request {match[2]!r}: expected NAME, NAME:PORT or http:NAME:PORT")
    pod = store.get(PODS, named["pod"], namespace)
    port = _port(pod, named["port"] or "")
    local = store.ports.find(namespace, named["pod"], port)
    if local is None:
        raise _unreachable(f"nothing listens on port {port} of pod {named['pod']}: its containers run no program")
    query = f"?{urlencode(request.query)}" if request.query else ""
    return ProxyPlan(pod=named["pod"], port=local, path=quote(path) + query, accept=request.accept or "*/*")


def fetch(plan: ProxyPlan, *, most_bytes: int = MAX_ANSWER_BYTES, within_s: float = ANSWER_S) -> Reply:
    """The answer with its own status. Raises KubernetesApiError (503). Blocks for ``within_s``, and at most `ANSWER_S`
    longer for a process that then sends nothing."""
    deadline = monotonic() + within_s
    connection = http.client.HTTPConnection(_HOST, plan.port, timeout=ANSWER_S)
    try:
        connection.request("GET", plan.path, headers={"Accept": plan.accept, "Connection": "close"})
        answer = connection.getresponse()
        body = _read(answer, deadline, most_bytes)
        media_type = answer.getheader("Content-Type") or "application/octet-stream"
        return Reply(body=body, status=answer.status, media_type=media_type)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(f"{error or type(error).__name__}") from error
    finally:
        connection.close()


def _port(pod: Obj, asked: str) -> int:
    if asked.isascii() and asked.isdigit() and len(asked) <= 5:
        return int(asked)
    found = [port for container in entries(pod, "spec", "containers") for port in entries(container, "ports")]
    number = next((port.get("containerPort") for port in found if asked in ("", port.get("name"))), None)
    if not isinstance(number, int):
        raise bad_request(f"pod {pod['metadata']['name']} has no port {asked!r}" if asked else "no port was given")
    return number


def _read(answer: http.client.HTTPResponse, deadline: float, most_bytes: int) -> bytes:
    body = bytearray()
    while chunk := answer.read1(_CHUNK):
        body += chunk
        if len(body) > most_bytes:
            raise _unreachable(f"the answer has more than {most_bytes} bytes")
        if monotonic() > deadline:
            raise _unreachable("the answer took too long")
    return bytes(body)


def _unreachable(why: str) -> KubernetesApiError:
    return status_error(503, "ServiceUnavailable", f"error trying to reach service: {why}")
