"""The pod status that a kubelet writes: phase, conditions and container statuses (kubernetes/kubernetes
pkg/kubelet/status/generate.go, pkg/kubelet/kubelet_pods.go)."""

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct

from dra_driver.core.time import parse_time, rfc3339
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.objects import set_condition


class ContainerState(Struct, frozen=True, kw_only=True):
    """A container's state; ``kind`` is ``waiting``, ``running`` or ``terminated``."""

    kind: str = "waiting"
    reason: str = "ContainerCreating"
    message: str = ""
    exit_code: int = 0
    restarts: int = 0
    since: datetime | None = None
    until: datetime | None = None

    @property
    def is_running(self) -> bool:
        return self.kind == "running"

    @property
    def has_ended(self) -> bool:
        return self.kind == "terminated"


States = Mapping[str, ContainerState]


def phase(pod: Obj, states: States) -> str:
    init = [states[item["name"]] for item in entries(pod, "spec", "initContainers")]
    main = [states[item["name"]] for item in entries(pod, "spec", "containers")]
    never = dig(pod, "spec", "restartPolicy") == "Never"
    if any(state.has_ended and state.exit_code and never for state in init):
        return "Failed"
    if all(state.has_ended for state in main):
        return "Failed" if any(state.exit_code for state in main) else "Succeeded"
    return "Running" if any(state.is_running or state.has_ended or state.restarts for state in main) else "Pending"


def fill(pod: Obj, states: States, now: datetime, *, host_ip: str, pod_ip: str) -> None:
    status = pod.setdefault("status", {})
    current = phase(pod, states)
    status["phase"] = current
    status["hostIP"], status["hostIPs"] = host_ip, [{"ip": host_ip}]
    status.setdefault("startTime", rfc3339(now))
    if current != "Pending":
        status["podIP"], status["podIPs"] = pod_ip, [{"ip": pod_ip}]
    main, init = entries(pod, "spec", "containers"), entries(pod, "spec", "initContainers")
    status["containerStatuses"] = [_container(pod, item, states[item["name"]]) for item in main]
    if init:
        status["initContainerStatuses"] = [_container(pod, item, states[item["name"]], init=True) for item in init]
    _conditions(pod, current, states, now)


def _conditions(pod: Obj, current: str, states: States, now: datetime) -> None:
    main = [item["name"] for item in entries(pod, "spec", "containers")]
    unready = [name for name in main if not states[name].is_running]
    waiting_init = [
        item["name"]
        for item in entries(pod, "spec", "initContainers")
        if not (states[item["name"]].has_ended and not states[item["name"]].exit_code)
        and not (item.get("restartPolicy") == "Always" and states[item["name"]].is_running)
    ]
    over = current in ("Succeeded", "Failed")
    reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}.get(current, "ContainersNotReady")
    message = "" if over or not unready else f"containers with unready status: [{' '.join(unready)}]"
    started = "True" if any(states[name].kind != "waiting" for name in states) and not over else "False"
    set_condition(pod, "PodReadyToStartContainers", started, now)
    init_reason = "ContainersNotInitialized" if waiting_init else "PodCompleted" if current == "Succeeded" else ""
    incomplete = f"containers with incomplete status: [{' '.join(waiting_init)}]" if waiting_init else ""
    initialized = "False" if waiting_init else "True"
    set_condition(pod, "Initialized", initialized, now, reason=init_reason, message=incomplete)
    for name in ("Ready", "ContainersReady"):
        if unready or over:
            set_condition(pod, name, "False", now, reason=reason, message=message)
        else:
            set_condition(pod, name, "True", now)


def _container(pod: Obj, container: Obj, state: ContainerState, *, init: bool = False) -> Obj:
    name, image = container["name"], container.get("image", "")
    identity = hashlib.sha256(f"{pod['metadata']['uid']}/{name}/{state.restarts}".encode()).hexdigest()
    created = state.kind != "waiting"
    status: Obj = {
        "name": name,
        "image": image,
        "imageID": f"sha256:{hashlib.sha256(image.encode()).hexdigest()}" if created else "",
        "ready": (state.has_ended and not state.exit_code) if init else state.is_running,
        "restartCount": state.restarts,
        "started": state.is_running,
        "state": {state.kind: _details(state, identity)},
        "lastState": {},
    }
    if created:
        status["containerID"] = f"containerd://{identity}"
    return status


def _details(state: ContainerState, identity: str) -> Obj:
    if state.is_running:
        return {"startedAt": rfc3339(state.since)} if state.since else {}
    if state.has_ended:
        times = {"startedAt": state.since, "finishedAt": state.until}
        ended: Obj = {"exitCode": state.exit_code, "reason": state.reason, "containerID": f"containerd://{identity}"}
        return ended | {name: rfc3339(moment) for name, moment in times.items() if moment}
    return {"reason": state.reason} | ({"message": state.message} if state.message else {})


def read_state(status: Obj) -> ContainerState:
    """The state of a container that a kubelet wrote before its restart: running, or else terminated."""
    restarts, state = status.get("restartCount", 0), status.get("state") or {}
    if "running" in state:
        return ContainerState(kind="running", restarts=restarts, since=parse_time(dig(state, "running", "startedAt")))
    ended = state.get("terminated") or {}
    return ContainerState(
        kind="terminated",
        reason=ended.get("reason", "Completed"),
        exit_code=ended.get("exitCode", 0),
        restarts=restarts,
        since=parse_time(ended.get("startedAt")),
        until=parse_time(ended.get("finishedAt")),
    )


def all_waiting(pod: Obj) -> dict[str, ContainerState]:
    names: Sequence[str] = [
        item["name"] for part in ("initContainers", "containers") for item in entries(pod, "spec", part)
    ]
    return {name: ContainerState() for name in names}
