"""Run one pod on a simulated node in the real kubelet's order (kubernetes/kubernetes pkg/kubelet/kubelet.go, SyncPod
and SyncTerminatedPod).

Claims are prepared before containers are created; a failure becomes an event on the pod and is retried. Claims are
unprepared after the containers have stopped, before the pod's final status or deletion. Commands are not run: with
restart policy Always a container keeps running, otherwise it exits with the result of the check.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import ConflictError, DraError, NotFoundError, RetryableError
from dra_driver.sim import objects
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, utc_now
from dra_driver.sim.apiserver.kinds import PODS, RESOURCE_CLAIMS
from dra_driver.sim.apiserver.store import DeleteOptions, Store
from dra_driver.sim.loop import StoreEventRecorder
from dra_driver.sim.node.container import ContainerView, MadeProcesses, cdi_names, extended_cdi_names
from dra_driver.sim.node.kubelet import DraManager
from dra_driver.sim.node.kubelet_state import NodeClaim, resources_status
from dra_driver.sim.node.pod_status import ContainerState, all_waiting, fill, phase, read_state

log = logging.getLogger(__name__)

_WRITE_ATTEMPTS = 20
# Stands for the name of the claim in its pod. Cannot collide: names of claims in a pod are DNS labels.
_EXTENDED = "<extended-resources>"
_T = TypeVar("_T")


class PodHost(Struct, frozen=True, kw_only=True):
    """Interface of the node for a worker. A real kubelet retries a prepare after 60-90 s and restarts after 10 s."""

    store: Store
    dra: DraManager
    recorder: StoreEventRecorder
    views: Path
    cdi_directories: Sequence[Path]
    host_ip: str
    prepare_retry_s: float
    unprepare_retry_s: float
    restart_s: float
    stop: threading.Event
    processes: MadeProcesses


class _EndedError(Exception):
    """The pod is being deleted or is deleted, or the node stops."""


class PodWorker:
    """The thread of one pod. ``on_end`` is called with the pod's UID when the thread ends."""

    def __init__(self, host: PodHost, pod: Obj, pod_ip: str, on_end: Callable[[str], None]) -> None:
        self._host = host
        self._pod = pod
        self._pod_ip = pod_ip
        self._on_end = on_end
        self._uid = objects.uid(pod)
        self._states = all_waiting(pod)
        self._gone = False
        self._wake = threading.Event()
        self._health_changed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"pod-{objects.key(pod)[1]}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def update(self, pod: Obj | None) -> None:
        """Pass the current pod of the API server, None if the pod was deleted."""
        if pod is None:
            self._gone = True
        else:
            self._pod = pod
        if self._gone or objects.is_deleted(self._pod):
            self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def show_health(self) -> None:
        self._health_changed.set()
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._run_pod()
        except _EndedError:
            self._end()
        except Exception:  # thread boundary: further pods must keep running
            log.exception("pod worker failed", extra={"pod": "/".join(objects.key(self._pod))})
        finally:
            self._on_end(self._uid)

    def _run_pod(self) -> None:
        if self._adopt():
            log.info("running pod adopted", extra={"pod": "/".join(objects.key(self._pod))})
        else:
            self._check_end()
            self._publish()
            names = self._until_done(self._prepare, self._host.prepare_retry_s, self._report_prepare)
            for container in entries(self._pod, "spec", "initContainers"):
                self._run_container(container, names, once=container.get("restartPolicy") != "Always")
                if phase(self._pod, self._states) == "Failed":
                    break
            else:
                for container in entries(self._pod, "spec", "containers"):
                    self._run_container(container, names, once=dig(self._pod, "spec", "restartPolicy") != "Always")
        if phase(self._pod, self._states) in ("Succeeded", "Failed"):
            self._until_done(self._unprepare, self._host.unprepare_retry_s, self._report_unprepare)
            self._publish()
            return
        self._check_end()
        while True:
            self._sleep(None)
            if self._health_changed.is_set():
                self._publish()

    def _adopt(self) -> bool:
        """Take over running containers after a kubelet restart, without preparing their claims again."""
        names = list(self._states)
        if dig(self._pod, "status", "phase") != "Running" or not all(self._view(name).exists for name in names):
            return False
        for part in ("initContainerStatuses", "containerStatuses"):
            self._states |= {status["name"]: read_state(status) for status in entries(self._pod, "status", part)}
        return True

    def _until_done(self, work: Callable[[], _T], retry_s: float, report: Callable[[DraError], None]) -> _T:
        while True:
            try:
                return work()
            except DraError as error:
                report(error)
            self._sleep(retry_s)

    def _sleep(self, seconds: float | None) -> None:
        self._wake.wait(seconds)
        self._wake.clear()  # before the check, so that a later update wakes the next wait
        self._check_end()

    def _check_end(self) -> None:
        if self._gone or objects.is_deleted(self._pod) or self._host.stop.is_set():
            raise _EndedError

    def _prepare(self) -> dict[str, str]:
        named = dict(objects.claim_names(self._pod))
        if extended := objects.extended_claim_name(self._pod):
            named[_EXTENDED] = extended
        claims = {name: self._claim(name, claim) for name, claim in named.items()}
        self._host.dra.prepare(self._uid, list(claims.values()))
        return {name: claim.uid for name, claim in claims.items()}

    def _claim(self, name: str, claim_name: str | None) -> NodeClaim:
        namespace, pod_name = objects.key(self._pod)
        if claim_name is None:
            raise RetryableError(f"the ResourceClaim for {name} of pod {namespace}/{pod_name} does not exist yet")
        claim = self._host.store.get(RESOURCE_CLAIMS, claim_name, namespace)
        if name in {_EXTENDED, *objects.generated_claims(self._pod)} and not objects.owned_by(claim, self._pod):
            raise RetryableError(f"ResourceClaim {claim_name} was not created for pod {namespace}/{pod_name}")
        if not objects.is_reserved(claim, self._pod):
            raise RetryableError(f"pod {pod_name} ({self._uid}) is not allowed to use ResourceClaim {claim_name}")
        allocation = dig(claim, "status", "allocation")
        if allocation is None:
            raise RetryableError(f"ResourceClaim {claim_name} is not allocated")
        drivers = sorted({result["driver"] for result in entries(allocation, "devices", "results")})
        return NodeClaim(namespace=namespace, name=claim_name, uid=objects.uid(claim), drivers=tuple(drivers))

    def _report_prepare(self, error: DraError) -> None:
        text = f"Failed to prepare dynamic resources: prepare dynamic resources: {error}"
        self._host.recorder.warning(self._pod, "FailedPrepareDynamicResources", text)

    def _unprepare(self) -> None:
        self._host.dra.unprepare(self._uid)

    def _report_unprepare(self, error: DraError) -> None:
        text = f"Failed to unprepare dynamic resources: {error}"
        self._host.recorder.warning(self._pod, "FailedUnprepareDynamicResources", text)

    def _run_container(self, container: Obj, claims: dict[str, str], *, once: bool) -> None:
        """Start the container until it runs; with ``once``, until it has succeeded, or failed and is not restarted."""
        name = container["name"]
        while True:
            try:
                self._start(container, claims, once=once)
            except DraError as error:
                self._failed_to_start(container, error)
            self._publish()
            state = self._states[name]
            never = dig(self._pod, "spec", "restartPolicy") == "Never"
            if state.is_running or (state.has_ended and (never or not state.exit_code)):
                return
            self._sleep(self._host.restart_s)
            restarts = state.restarts + (1 if state.since else 0)
            self._states[name] = replace(state, kind="waiting", restarts=restarts)

    def _start(self, container: Obj, claims: dict[str, str], *, once: bool) -> None:
        name, recorder = container["name"], self._host.recorder
        path = f"spec.containers{{{name}}}"
        view = self._view(name)
        devices = {claim: self._host.dra.state.devices(claim_uid) for claim, claim_uid in claims.items()}
        extended = dig(self._pod, "status", "extendedResourceClaimStatus", default={})
        cdi = cdi_names(container, devices) + extended_cdi_names(container, extended, devices.get(_EXTENDED, ()))
        view.create(container, cdi, self._host.cdi_directories)
        image = container.get("image", "")
        recorder.normal(self._pod, "Pulled", f'Container image "{image}" already present on machine', path)
        recorder.normal(self._pod, "Created", f"Created container: {name}", path)
        result, now = view.check(), utc_now()
        self._host.store.logs.append(*objects.key(self._pod), name, result.output)
        recorder.normal(self._pod, "Started", f"Started container {name}", path)
        state = self._states[name]
        if result.exit_code == 0 and not once:
            self._host.processes.begin(self._pod, name, view.environment)
            self._states[name] = ContainerState(kind="running", restarts=state.restarts, since=now)
            return
        kind, reason = "terminated", "Error" if result.exit_code else "Completed"
        if result.exit_code and dig(self._pod, "spec", "restartPolicy") != "Never":
            kind, reason = "waiting", "CrashLoopBackOff"
            recorder.warning(self._pod, "BackOff", f"Back-off restarting failed container {name}", path)
        self._states[name] = ContainerState(
            kind=kind, reason=reason, exit_code=result.exit_code, restarts=state.restarts, since=now, until=utc_now()
        )

    def _failed_to_start(self, container: Obj, error: DraError) -> None:
        name = container["name"]
        self._states[name] = replace(
            self._states[name], kind="waiting", reason="CreateContainerError", message=str(error), since=None
        )
        self._host.recorder.warning(self._pod, "Failed", f"Error: {error}", f"spec.containers{{{name}}}")

    def _end(self) -> None:
        if self._host.stop.is_set():
            return
        now = utc_now()
        for name, state in self._states.items():
            self._host.processes.end(self._uid, name)
            if state.is_running:
                self._host.recorder.normal(
                    self._pod, "Killing", f"Stopping container {name}", f"spec.containers{{{name}}}"
                )
                self._states[name] = replace(state, kind="terminated", reason="Completed", exit_code=0, until=now)
        while True:
            try:
                self._unprepare()
                break
            except DraError as error:
                self._report_unprepare(error)
            if self._host.stop.wait(self._host.unprepare_retry_s):
                return
        if not self._gone:
            self._publish()
            namespace, name = objects.key(self._pod)
            with suppress(NotFoundError, ConflictError):  # already deleted
                self._host.store.delete(PODS, name, namespace, DeleteOptions(uid=self._uid, grace_period_s=0))
        for name in self._states:
            self._view(name).remove()

    def _view(self, container: str) -> ContainerView:
        return ContainerView(self._host.views / self._uid / container)

    def _publish(self) -> None:
        namespace, name = objects.key(self._pod)
        self._health_changed.clear()
        for _ in range(_WRITE_ATTEMPTS):
            pod = self._host.store.find(PODS, name, namespace)
            if pod is None or objects.uid(pod) != self._uid:
                return
            fill(pod, self._states, utc_now(), host_ip=self._host.host_ip, pod_ip=self._pod_ip)
            self._add_health(pod)
            with suppress(ConflictError, NotFoundError):
                self._host.store.update_status(PODS, pod)
                return
        log.warning("pod status not written after repeated conflicts", extra={"pod": f"{namespace}/{name}"})

    def _add_health(self, pod: Obj) -> None:
        containers = [item for item in entries(pod, "spec", "containers") if entries(item, "resources", "claims")]
        if not containers:
            return
        namespace, dra = objects.key(pod)[0], self._host.dra
        claims = {name: claim for name, claim in objects.claim_names(pod) if claim}
        devices = {name: dra.state.devices_of(namespace, claim) for name, claim in claims.items()}
        found = {item["name"]: resources_status(item, devices, dra.health) for item in containers}
        for status in entries(pod, "status", "containerStatuses"):
            if shown := found.get(status["name"]):
                status["allocatedResourcesStatus"] = shown
