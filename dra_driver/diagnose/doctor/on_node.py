"""Run `dra-driver doctor` as a pod on a node and return its report.

The pod is a copy of the node process's, with the same privileges, because NVML opens device nodes. Every mount of the
host is read-only. The host's ``/`` is added, to find drivers, kubelets and runtime sockets elsewhere.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol
from urllib.parse import quote

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.core.finding import Finding, Layer, Status
from dra_driver.core.time import rfc3339
from dra_driver.diagnose.doctor.report import KIND, DoctorReport, from_wire
from dra_driver.kube import pod_run
from dra_driver.kube.state import Wire


class PodListApi(pod_run.PodApi, Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire: ...


def visit_node(
    api: PodListApi,
    place: pod_run.PodPlace,
    said: pod_run.Say,
    *,
    pods: Sequence[str] = (),
    cri_socket: str | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> DoctorReport:
    """Return the report of the node, with findings about ``pods`` (``namespace/name``).

    Deletes pods of killed commands first, and its own pod afterwards, unless the caller keeps it. Raises
    ConfigurationError (no such node or DaemonSet, another report version), KubernetesApiError and PodFailedError.
    """
    daemon_set = pod_run.read_daemon_set(api, place)
    _clean_up(api, place.namespace, said, now() - timedelta(seconds=_SURELY_OVER_S))
    body = doctor_pod(daemon_set, place.node, suffix=secrets.token_hex(4), pods=pods, cri_socket=cri_socket)
    log = pod_run.PodLog(report=lambda text: _report(text, place.node), lines=lambda _text: "")
    report = pod_run.run_pod(api, body, place, log, said, sleep=sleep, clock=clock)
    return replace(report, source=f"a pod on node {place.node}")


def node_of_pod(api: PodListApi, namespace: str, name: str) -> str:
    """Return the node of the pod. Raises ConfigurationError if the pod does not exist or is not scheduled yet."""
    try:
        pod = api.get(f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}")
    except NotFoundError as error:
        raise ConfigurationError(f"no pod {name!r} in namespace {namespace!r}") from error
    node = (pod.get("spec") or {}).get("nodeName")
    if not isinstance(node, str) or not node:
        raise ConfigurationError(f"pod {namespace}/{name} is not scheduled yet: omit --on-node")
    return node


def unanswered(target: str, why: str) -> DoctorReport:
    """A report with only one finding: the node was not checked, and why."""
    finding = Finding(
        check="on-node",
        layer=Layer.NODE,
        status=Status.UNKNOWN,
        object=target,
        seen=f"cannot check the node: {why}",
        expected="a pod that checks the node",
        fix="Run `dra-driver doctor` on the node, or in the driver's pod (kubectl exec).",
    )
    return DoctorReport(target=target, findings=(finding,), source="no pod on the node")


def _report(log: str, node: str) -> DoctorReport | None:
    """The report in the last line that is one; other lines are warnings of libraries."""
    for line in reversed(log.splitlines()):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(document, dict) and document.get("kind") == KIND:
            return from_wire(document, f"the report of node {node}")
    return None


def _clean_up(api: PodListApi, namespace: str, said: pod_run.Say, before: datetime) -> None:
    """Delete old pods of this command. Without permission to list them they stay; they have ended by their deadline."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    selector = ",".join(f"{key}={value}" for key, value in pod_run.labels_of(NAME).items())
    with suppress(ForbiddenError):
        found = api.list(pods, {"labelSelector": selector})["items"]
        for name in left_behind(found, rfc3339(before)):
            try:
                api.delete(f"{pods}/{name}")
                said(f"deleted pod {name}, which an earlier doctor left in namespace {namespace}")
            except NotFoundError:
                continue
            except KubernetesApiError as error:
                said(f"pod {name} of an earlier doctor was not deleted: {error}")


NAME: Final = "doctor"
HOST: Final = "/host"
DEADLINE_S: Final = 300
"""The kubelet ends the pod after this: 2 min for a driver that hangs, the rest for pulling the image."""
_SURELY_OVER_S: Final = DEADLINE_S + 600
GRACE_S: Final = 5
_SCRATCH: Final = "doctor-scratch"
_HOST: Final = "doctor-host"
_SCRATCH_SIZE: Final = "600Mi"
"""A copy of the journal, which is limited to 256 MiB, with its log."""
_READ_ONLY: Final = {"readOnly": True, "recursiveReadOnly": "IfPossible"}


def doctor_pod(
    daemon_set: Wire,
    node: str,
    *,
    suffix: str,
    pods: Sequence[str] = (),
    cri_socket: str | None = None,
) -> dict[str, object]:
    """The pod for ``node``; its name ends with ``suffix``. ``pods`` as ``namespace/name``.

    Raises ConfigurationError when the DaemonSet does not run the node process.
    """
    socket = ["--cri-socket", cri_socket] if cri_socket else []
    words = [NAME, "--output", "json", "--host", HOST, *socket, *(word for pod in pods for word in ("--pod", pod))]
    made = pod_run.node_container(daemon_set, NAME, words)
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
    return pod_run.node_pod(
        daemon_set, node, made, [*volumes, *added], suffix=suffix, deadline_s=DEADLINE_S, grace_s=GRACE_S
    )


def left_behind(pods: Iterable[Wire], older_than: str) -> list[str]:
    """Names of doctor's pods that were created before ``older_than`` (RFC 3339), by killed commands."""
    return [pod["metadata"]["name"] for pod in pods if pod["metadata"].get("creationTimestamp", "9") < older_than]


def _read_only(mount: Wire) -> dict[str, object]:
    """Without propagation: Kubernetes does not combine it with a recursively read-only mount."""
    kept = {key: value for key, value in mount.items() if key != "mountPropagation"}
    return {**kept, **_READ_ONLY}
