"""Run `dra-driver doctor` as a pod on a node and bring its report back."""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from urllib.parse import quote

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.diagnose.doctor.finding import FindingStatus, Layer, LayerFinding
from dra_driver.diagnose.doctor.on_node_pod import DEADLINE_S, NAME, doctor_pod, left_behind
from dra_driver.diagnose.doctor.report import KIND, DoctorReport, from_wire
from dra_driver.kube.node_pod import labels_of
from dra_driver.kube.pod_run import PodApi, PodLog, PodPlace, Say, read_daemon_set, run_pod

COMMAND: Final = "kubectl dra doctor --on-node"
_SURELY_OVER_S: Final = DEADLINE_S + 600


class PodListApi(PodApi, Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]: ...


class NodeVisit(Struct, frozen=True, kw_only=True):
    """Which node to look at, and which pods on it (``namespace/name``). ``daemon_set`` is that of the node process."""

    node: str
    namespace: str = "dra-driver"
    daemon_set: str = "dra-driver-node"
    pods: tuple[str, ...] = ()
    cri_socket: str | None = None
    keep: bool = False


def visit_node(
    api: PodListApi,
    visit: NodeVisit,
    said: Say,
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> DoctorReport:
    """The report of the node. The pod is deleted in any case, unless it is to be kept; what an earlier command left,
    because it was killed, is deleted first.

    Raises ConfigurationError (no such node or DaemonSet, or a report of another version), KubernetesApiError and
    PodFailedError.
    """
    place = PodPlace(
        command=COMMAND,
        node=visit.node,
        namespace=visit.namespace,
        daemon_set=visit.daemon_set,
        keep=visit.keep,
        namespace_flag="--driver-namespace",
    )
    daemon_set = read_daemon_set(api, place)
    _clean_up(api, visit.namespace, said, now() - timedelta(seconds=_SURELY_OVER_S))
    body = doctor_pod(daemon_set, visit.node, suffix=secrets.token_hex(4), pods=visit.pods, cri_socket=visit.cri_socket)
    log = PodLog(report=lambda text: _report(text, visit.node), lines=lambda _text: "")
    report = run_pod(api, body, place, log, said, sleep=sleep, clock=clock)
    return replace(report, source=f"a pod on node {visit.node}")


def node_of_pod(api: PodListApi, namespace: str, name: str) -> str:
    """The node on which the pod is. Raises ConfigurationError where it does not exist or has none yet."""
    try:
        pod = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
    except NotFoundError as error:
        raise ConfigurationError(f"no pod {name!r} in namespace {namespace!r}") from error
    node = (pod.get("spec") or {}).get("nodeName")
    if not isinstance(node, str) or not node:
        raise ConfigurationError(f"pod {namespace}/{name} is on no node yet: leave --on-node out")
    return node


def unanswered(target: str, why: str) -> DoctorReport:
    """A report that says only that the node could not be looked at."""
    finding = LayerFinding(
        check="on-node",
        layer=Layer.NODE,
        status=FindingStatus.UNKNOWN,
        subject=target,
        seen=f"the node could not be looked at: {why}",
        expected="a pod that looks at the node",
        do="Run `dra-driver doctor` on the node itself, or in the driver's pod (kubectl exec).",
    )
    return DoctorReport(target=target, findings=(finding,), source="no pod on the node")


def _report(log: str, node: str) -> DoctorReport | None:
    """The report in the last line that has one; other lines are warnings of libraries."""
    for line in reversed(log.splitlines()):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and document.get("kind") == KIND:
            return from_wire(document, f"the report of node {node}")
    return None


def _clean_up(api: PodListApi, namespace: str, said: Say, before: datetime) -> None:
    """Delete old pods of this command. Without the right to list them they stay: they have ended by their deadline."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    selector = ",".join(f"{key}={value}" for key, value in labels_of(NAME).items())
    with suppress(ForbiddenError):
        found = api.list(pods, {"labelSelector": selector})["items"]
        for name in left_behind(found, before.strftime("%Y-%m-%dT%H:%M:%SZ")):
            try:
                api.delete(f"{pods}/{name}")
                said(f"deleted pod {name}, which an earlier doctor left in namespace {namespace}")
            except NotFoundError:
                continue
            except KubernetesApiError as error:
                said(f"pod {name} of an earlier doctor was not deleted: {error}")
