"""Run one attempt: create the Job and its claim, follow and check the pod to its end, and delete everything again."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core import errors
from dra_driver.core.finding import Layer, Status, ok
from dra_driver.core.text import one_line
from dra_driver.diagnose.smoke.objects import CONTAINER, PodSettings, claim, job
from dra_driver.diagnose.smoke.planning import Fit
from dra_driver.diagnose.smoke.report import TryKind, TryResult
from dra_driver.kube import paths
from dra_driver.kube.pod_run import container_state
from dra_driver.kube.published.listing import UNKNOWN, Devices, described_devices, difference, observed_devices
from dra_driver.kube.state import Wire

STEP_S: Final = 0.5
"""Interval of pod polls; shorter in the first seconds."""
_FIRST_STEP_S: Final = 0.1
RELEASE_S: Final = 60.0
"""Time limit for the release of a claim after its pod has ended."""
_NO_POD_S: Final = 10.0
"""After this, the attempt reads the Job's events for the cause."""
_BAD_ANSWERS: Final = 5
"""Failed polls in a row before the attempt fails."""
_HOPELESS: Final = {
    "ImagePullBackOff": Layer.IMAGE,
    "ErrImageNeverPull": Layer.IMAGE,
    "InvalidImageName": Layer.IMAGE,
    "CreateContainerConfigError": Layer.CONTAINER,
    "CreateContainerError": Layer.CONTAINER,
    "RunContainerError": Layer.CONTAINER,
}
"""Reasons of a waiting container that waiting does not resolve (kubernetes/kubernetes pkg/kubelet/images, kuberuntime).
"""
_PREPARE_EVENTS: Final = frozenset({"FailedPrepareDynamicResources", "FailedToPrepareDynamicResources"})
_LONGEST: Final = 400
_MOST_LINES: Final = 10


class TryProblem(NamedTuple):
    """The cause of a failed attempt: the layer, and a phrase."""

    layer: Layer
    message: str


class SmokeApi(Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def get(self, path: str) -> Wire: ...
    def get_text(self, path: str) -> str: ...
    def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire: ...
    def create(self, path: str, body: Wire) -> Wire: ...
    def delete(self, path: str, *, propagation: str | None = None) -> None: ...


class TryTask(Struct, frozen=True, kw_only=True):
    """The device to test. ``name`` is that of Job and claim; ``spec`` the claim's; ``slices`` describe the node's
    devices."""

    name: str
    node: str
    kind: TryKind
    spec: Wire
    slices: Sequence[Wire]


class Tools(Struct, frozen=True, kw_only=True):
    """Shared by all attempts of a run. ``allocated`` returns the present or past allocation results of the claim of
    this name: it is deallocated when its pod ends. ``fit`` checks with fresh state whether the task's pod would be
    placed. ``stopping`` ends polls of a pod, ``sleep`` pauses between polls of objects that are being deleted."""

    api: SmokeApi
    run: str
    settings: PodSettings
    allocated: Callable[[str], Sequence[Wire]]
    fit: Callable[[TryTask], Fit]
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Attempt:
    """One attempt. Used once, by one thread."""

    def __init__(self, tools: Tools, task: TryTask) -> None:
        self._tools, self._task = tools, task
        self._api, self._namespace = tools.api, tools.settings.namespace
        self._job = paths.jobs(self._namespace, task.name)
        self._claim = paths.resource_claim(self._namespace, task.name)
        self.left: list[str] = []

    def result(self) -> TryResult:
        """Run the attempt. Lists objects that it could not delete in ``left``."""
        begin = self._tools.clock()
        try:
            found = self._created() or self._followed(begin)
        except errors.KubernetesApiError as error:
            found = self._failed(Layer.API_SERVER, str(error))
        except BaseException:
            self._deleted()
            raise
        ran = found.status is Status.OK
        release = self._removed(RELEASE_S if ran else RELEASE_S / 4)
        if release is not None and ran:
            found = replace(found, finding=self._failed(*release).finding)
        return replace(found, seconds=self._tools.clock() - begin)

    # --- create ---

    def _created(self) -> TryResult | None:
        """None when both objects exist."""
        tools, task = self._tools, self._task
        body = job(task.name, tools.run, task.node, tools.settings)
        try:
            owner = self._api.create(paths.jobs(self._namespace), body)
            self._api.create(paths.resource_claims(self._namespace), claim(owner, tools.run, task.spec))
        except (errors.ForbiddenError, errors.InvalidObjectError) as error:  # quota, admission
            return self._failed(Layer.WORKLOAD, str(error))
        except errors.NotFoundError:  # `check_namespace` needs a permission that some users lack
            gone = f"namespace {self._namespace} does not exist: name one with -n"
            return self._failed(Layer.WORKLOAD, gone)
        return None

    # --- follow ---

    def _followed(self, begin: float) -> TryResult:
        tools, bad, waited_s = self._tools, 0, 0.0
        while not tools.stopping.wait(_pause_s(waited_s)):
            waited_s = tools.clock() - begin
            try:
                found = self._looked(waited_s, late=waited_s > tools.settings.timeout_s)
                bad = 0
            except (errors.ApiUnreachableError, errors.ServerBusyError):
                bad += 1
                if bad >= _BAD_ANSWERS:
                    raise
                continue
            if found is not None:
                return found
        return self._not_tried("interrupted")

    def _looked(self, waited_s: float, *, late: bool) -> TryResult | None:
        """None while the pod makes progress."""
        pod = self._pod()
        if pod is None:
            return self._no_pod(late=late) if late or waited_s > _NO_POD_S else None
        if is_over(pod):
            return self._ended(pod)
        problem = hopeless(pod)
        if problem is None and late:
            if not is_placed(pod):
                return self._pending(pod, waited_s)
            problem = stuck(pod, self._events(pod["metadata"]["uid"]), waited_s)
        return self._failed(*problem) if problem is not None else None

    def _pod(self) -> Wire | None:
        query = {"labelSelector": f"batch.kubernetes.io/job-name={self._task.name}"}
        items = self._api.list(paths.pods(self._namespace), query)["items"]
        return items[0] if items else None

    def _no_pod(self, *, late: bool) -> TryResult | None:
        try:
            owner = self._api.get(self._job)
        except errors.NotFoundError:
            message = "another client deleted the Job, or its deadline has passed"
            return self._failed(Layer.WORKLOAD, message)
        events = self._events(owner["metadata"]["uid"])
        if not events and not late:
            return None
        said = (
            f"{events[0].get('reason')}: {shortened(events[0].get('message'))}" if events else "no event has a reason"
        )
        return self._failed(Layer.WORKLOAD, f"the Job has no pod: {said}")

    def _ended(self, pod: Wire) -> TryResult:
        log = ""
        with suppress(errors.NotFoundError, errors.InvalidObjectError):  # a container that was not created has no log
            log = self._api.get_text(paths.pod_log(self._namespace, pod["metadata"]["name"]))
        results = self._tools.allocated(self._task.name)
        good = TryResult(node=self._task.node, kind=self._task.kind, finding=ok(""))
        return compared(good, pod, log, results, self._task.slices)

    def _pending(self, pod: Wire, waited_s: float) -> TryResult:
        fit = self._tools.fit(self._task)
        if fit.busy:
            return self._not_tried(f"{fit.busy}, since this command started")
        said = unscheduled_message(pod) or "nothing: check that it runs"
        answer = fit.answer or "explain finds that it fits"
        message = f"the pod is pending after {waited_s:.0f} s: {answer}; the scheduler reports {said}"
        return self._failed(Layer.SCHEDULING, message)

    def _events(self, uid: str) -> list[Wire]:
        """Warnings about an object, newest first; none without permission to list events."""
        try:
            query = {"fieldSelector": f"involvedObject.uid={uid}"}
            return newest_first(self._api.list(paths.events(self._namespace), query)["items"])
        except (errors.ForbiddenError, errors.NotFoundError):
            return []

    # --- remove ---

    def _removed(self, patience_s: float) -> TryProblem | None:
        """Delete pod, Job and claim, and wait until the node has released the device."""
        if not self._deleted():
            return None
        tools = self._tools
        begin = tools.clock()
        until = begin + patience_s
        while remaining := self._remaining():
            if tools.clock() > until:
                self.left += remaining
                message = f"{' and '.join(remaining)}: still exists {patience_s:.0f} s after deletion"
                return TryProblem(Layer.RELEASE, message)
            tools.sleep(_pause_s(tools.clock() - begin))
        return None

    def _deleted(self) -> bool:
        """Delete Job and claim. Records objects that it cannot delete; the Job's deadline ends them."""
        done = True
        for path, what in ((self._job, "job"), (self._claim, "resourceclaim")):
            try:
                self._api.delete(path, propagation="Background")
            except errors.NotFoundError:
                continue
            except errors.KubernetesApiError as error:
                self.left.append(f"{what} {self._task.name} ({error})")
                done = False
        return done

    def _remaining(self) -> list[str]:
        try:
            pod = self._pod()
            found = [f"pod {pod['metadata']['name']}"] if pod is not None else []
            with suppress(errors.NotFoundError):
                self._api.get(self._claim)
                found.append(f"resourceclaim {self._task.name}")
        except errors.KubernetesApiError as error:
            return [f"unknown ({error})"]
        return found

    # --- result ---

    def _failed(self, layer: Layer, message: str) -> TryResult:
        return TryResult.failed(self._task.node, self._task.kind, layer, message)

    def _not_tried(self, why: str) -> TryResult:
        return TryResult.skipped(self._task.node, self._task.kind, why)


def _pause_s(waited_s: float) -> float:
    return min(STEP_S, max(_FIRST_STEP_S, waited_s / 4))


def is_over(pod: Wire) -> bool:
    """Return whether the container has ended, so that its log is complete."""
    return _status(pod).get("phase") in {"Succeeded", "Failed"} or "terminated" in _state(pod)


def is_placed(pod: Wire) -> bool:
    return bool((pod.get("spec") or {}).get("nodeName"))


def hopeless(pod: Wire) -> TryProblem | None:
    """The reason why the container can never start, None while it can."""
    waiting = _state(pod).get("waiting") or {}
    layer = _HOPELESS.get(str(waiting.get("reason")))
    if layer is None:
        return None
    return TryProblem(layer, f"{waiting['reason']}: {shortened(waiting.get('message'))}")


def compared(tried: TryResult, pod: Wire, log: str, results: Sequence[Wire], slices: Iterable[Wire]) -> TryResult:
    """Compare the container's list with the allocation. ``results`` come from the claim's allocation."""
    allocated, observed = described_devices(results, slices), observed_devices(log)
    problem = _problem(pod, results, allocated, observed)
    return replace(
        tried,
        finding=TryResult.failed(tried.node, tried.kind, *problem).finding if problem else tried.finding,
        device=", ".join(str(result.get("device")) for result in results),
        expected=_words(allocated),
        seen=_words(observed),
        lines=tuple(shortened(line) for line in log.splitlines()[:_MOST_LINES]) if problem else (),
    )


def stuck(pod: Wire, events: Sequence[Wire], waited_s: float) -> TryProblem:
    """The reason why a pod with a node is late, from its newest events."""
    for event in events:
        if event.get("reason") in _PREPARE_EVENTS:
            return TryProblem(Layer.PREPARE, shortened(event.get("message")))
    waiting = _state(pod).get("waiting") or {}
    if str(waiting.get("reason", "")).startswith("ErrImage"):
        return TryProblem(Layer.IMAGE, f"{waiting['reason']}: {shortened(waiting.get('message'))}")
    said = f"; {events[0].get('reason')}: {shortened(events[0].get('message'))}" if events else ""
    what = "the container still runs" if "running" in _state(pod) else "the container has not started"
    return TryProblem(Layer.CONTAINER, f"{what} after {waited_s:.0f} s{said}")


def newest_first(events: Iterable[Wire]) -> list[Wire]:
    warnings = [event for event in events if event.get("type") == "Warning"]
    return sorted(warnings, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime")), reverse=True)


def unscheduled_message(pod: Wire) -> str:
    """The scheduler's message about a pod without a node."""
    conditions = _status(pod).get("conditions") or ()
    said = (item.get("message") for item in conditions if item.get("type") == "PodScheduled")
    return shortened(next(said, ""))


def shortened(text: object) -> str:
    """Text of other programs: on one line, printable, and of bounded length."""
    return one_line(str(text or ""), _LONGEST)


def _problem(pod: Wire, results: Sequence[Wire], allocated: Devices, observed: Devices) -> TryProblem | None:
    ended = _state(pod).get("terminated") or {}
    if ended.get("exitCode"):
        why = shortened(ended.get("message")) if ended.get("reason") in {"StartError", "ContainerCannotRun"} else ""
        return TryProblem(Layer.CONTAINER, _ended(ended, why))
    if _status(pod).get("phase") == "Failed" and not ended:
        said = shortened(f"{_status(pod).get('reason')} {_status(pod).get('message')}")
        return TryProblem(Layer.CONTAINER, f"the pod failed: {said}")
    if not results or UNKNOWN in (*allocated.gpus, *allocated.parents):
        what = "the claim's allocation is unknown" if not results else "no ResourceSlice describes the device"
        return TryProblem(Layer.SLICES, f"{what}, so the container's devices cannot be checked")
    if not observed.listed:
        return TryProblem(
            Layer.CONTAINER,
            "the container lists no GPU: the container runtime did not apply the CDI devices of the claim",
        )
    wrong = difference(observed, allocated)
    return TryProblem(Layer.CONTAINER, wrong) if wrong is not None else None


def _ended(ended: Wire, why: str) -> str:
    if "executable file not found" in why or "no such file or directory" in why:
        return (
            "the container has no nvidia-smi: the container runtime did not apply the CDI devices of the claim "
            f"(containerd before 2.0 needs enable_cdi = true), or the NVIDIA driver has none ({why})"
        )
    return f"nvidia-smi -L ended with exit status {ended['exitCode']}" + (f": {why}" if why else "")


def _words(devices: Devices) -> Sequence[str]:
    parts = (
        f"{part.uuid or part.profile} of {part.parent}" if not part.uuid else f"{part.profile} {part.uuid}"
        for part in devices.partitions
    )
    return (*devices.gpus, *parts)


def _status(pod: Wire) -> Wire:
    return pod.get("status") or {}


def _state(pod: Wire) -> Wire:
    return container_state(_status(pod), CONTAINER)
