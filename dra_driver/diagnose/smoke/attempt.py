"""One try: create the Job and its claim, follow the pod to its end, compare, and delete everything again."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.errors import (
    ApiUnreachableError,
    ForbiddenError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
    ServerBusyError,
)
from dra_driver.core.finding import Finding, Layer, Status, ok
from dra_driver.diagnose.smoke.judge import (
    compared,
    failed,
    hopeless,
    is_over,
    is_placed,
    newest_first,
    shortened,
    stuck,
    unscheduled_message,
)
from dra_driver.diagnose.smoke.objects import PodSettings, claim, job
from dra_driver.diagnose.smoke.planning import Fit
from dra_driver.diagnose.smoke.report import TryKind, TryResult
from dra_driver.kube import paths
from dra_driver.kube.state import Wire

STEP_S: Final = 0.5
"""Between two looks at a pod; less in the first seconds."""
_FIRST_STEP_S: Final = 0.1
RELEASE_S: Final = 60.0
"""How long a claim may take to be given back after its pod has ended."""
_NO_POD_S: Final = 10.0
"""After this the Job's events are read for the reason."""
_BAD_ANSWERS: Final = 5
"""Failed looks in a row before the try fails."""


class SmokeApi(Protocol):
    """The API server, see ``kube.rest.RestClient``."""

    def get(self, path: str) -> Wire: ...
    def get_text(self, path: str) -> str: ...
    def list(self, path: str, query: Mapping[str, str] | None = None) -> Wire: ...
    def create(self, path: str, body: Wire) -> Wire: ...
    def delete(self, path: str, *, propagation: str | None = None) -> None: ...


class TryTask(Struct, frozen=True, kw_only=True):
    """What to try. ``name`` is that of Job and claim; ``spec`` the claim's; ``slices`` describe the node's devices."""

    name: str
    node: str
    kind: TryKind
    spec: Wire
    slices: Sequence[Wire]


class Tools(Struct, frozen=True, kw_only=True):
    """What all tries of a run share.

    ``allocated`` returns the allocation results that a claim of this name has or had: a claim is deallocated in the
    moment in which its pod ends. ``fit`` asks with a fresh state whether the task's pod would be placed. ``stopping``
    ends the looks at a pod, and ``sleep`` pauses between those at objects that are being deleted.
    """

    api: SmokeApi
    run: str
    settings: PodSettings
    allocated: Callable[[str], Sequence[Wire]]
    fit: Callable[[TryTask], Fit]
    stopping: threading.Event
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


class Attempt:
    """One try. Used once, by one thread."""

    def __init__(self, tools: Tools, task: TryTask) -> None:
        self._tools, self._task = tools, task
        self._api, self._namespace = tools.api, tools.settings.namespace
        self._job = paths.jobs(self._namespace, task.name)
        self._claim = paths.resource_claim(self._namespace, task.name)
        self.left: list[str] = []

    def result(self) -> TryResult:
        """Runs the try. Objects that could not be deleted are in ``left`` afterwards."""
        begin = self._tools.clock()
        try:
            found = self._created() or self._followed(begin)
        except KubernetesApiError as error:
            found = self._failed(failed(Layer.API_SERVER, str(error)))
        except BaseException:
            self._deleted()
            raise
        ran = found.status is Status.OK
        release = self._removed(RELEASE_S if ran else RELEASE_S / 4)
        if release is not None and ran:
            found = replace(found, finding=self._failed(release).finding)
        return replace(found, seconds=self._tools.clock() - begin)

    # --- creating ---

    def _created(self) -> TryResult | None:
        """None when both objects are there."""
        tools, task = self._tools, self._task
        body = job(task.name, tools.run, task.node, tools.settings)
        try:
            owner = self._api.create(paths.jobs(self._namespace), body)
            self._api.create(paths.resource_claims(self._namespace), claim(owner, tools.run, task.spec))
        except (ForbiddenError, InvalidObjectError) as error:  # quota, admission
            return self._failed(failed(Layer.WORKLOAD, str(error)))
        except NotFoundError:  # `check_namespace` may not look at namespaces with every user's rights
            gone = f"namespace {self._namespace} does not exist: name one with -n"
            return self._failed(failed(Layer.WORKLOAD, gone))
        return None

    # --- following ---

    def _followed(self, begin: float) -> TryResult:
        tools, bad, waited_s = self._tools, 0, 0.0
        while not tools.stopping.wait(_pause_s(waited_s)):
            waited_s = tools.clock() - begin
            try:
                found = self._looked(waited_s, late=waited_s > tools.settings.timeout_s)
                bad = 0
            except (ApiUnreachableError, ServerBusyError):
                bad += 1
                if bad >= _BAD_ANSWERS:
                    raise
                continue
            if found is not None:
                return found
        return self._not_tried("interrupted")

    def _looked(self, waited_s: float, *, late: bool) -> TryResult | None:
        """None while the pod is on its way."""
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
        return self._failed(problem) if problem is not None else None

    def _pod(self) -> Wire | None:
        query = {"labelSelector": f"batch.kubernetes.io/job-name={self._task.name}"}
        items = self._api.list(paths.pods(self._namespace), query)["items"]
        return items[0] if items else None

    def _no_pod(self, *, late: bool) -> TryResult | None:
        try:
            owner = self._api.get(self._job)
        except NotFoundError:
            message = "the Job was deleted by another client, or lived longer than its deadline"
            return self._failed(failed(Layer.WORKLOAD, message))
        events = self._events(owner["metadata"]["uid"])
        if not events and not late:
            return None
        said = f"{events[0].get('reason')}: {shortened(events[0].get('message'))}" if events else "no event says why"
        return self._failed(failed(Layer.WORKLOAD, f"the Job has no pod: {said}"))

    def _ended(self, pod: Wire) -> TryResult:
        log = ""
        with suppress(NotFoundError, InvalidObjectError):  # a container that was never created has no log
            log = self._api.get_text(paths.pod_log(self._namespace, pod["metadata"]["name"]))
        results = self._tools.allocated(self._task.name)
        good = TryResult(node=self._task.node, kind=self._task.kind, finding=ok(""))
        found = compared(good, pod, log, results, self._task.slices)
        return found if found.status is Status.OK else replace(found, finding=self._failed(found.finding).finding)

    def _pending(self, pod: Wire, waited_s: float) -> TryResult:
        fit = self._tools.fit(self._task)
        if fit.busy:
            return self._not_tried(f"{fit.busy}, since this command began")
        said = unscheduled_message(pod) or "nothing: is it running?"
        answer = fit.answer or "explain finds that it fits"
        message = f"the pod is pending after {waited_s:.0f} s: {answer}; the scheduler says {said}"
        return self._failed(failed(Layer.SCHEDULING, message))

    def _events(self, uid: str) -> list[Wire]:
        """Warnings about an object, newest first; none where the user may not list events."""
        try:
            query = {"fieldSelector": f"involvedObject.uid={uid}"}
            return newest_first(self._api.list(paths.events(self._namespace), query)["items"])
        except (ForbiddenError, NotFoundError):
            return []

    # --- removing ---

    def _removed(self, patience_s: float) -> Finding | None:
        """Deletes pod, Job and claim, and waits until the node has given the device back."""
        if not self._deleted():
            return None
        tools = self._tools
        begin = tools.clock()
        until = begin + patience_s
        while remaining := self._remaining():
            if tools.clock() > until:
                self.left += remaining
                message = f"{' and '.join(remaining)}: still there {patience_s:.0f} s after deletion"
                return failed(Layer.RELEASE, message)
            tools.sleep(_pause_s(tools.clock() - begin))
        return None

    def _deleted(self) -> bool:
        """Deletes Job and claim; what cannot be deleted is noted, and goes by the Job's deadline."""
        done = True
        for path, what in ((self._job, "job"), (self._claim, "resourceclaim")):
            try:
                self._api.delete(path, propagation="Background")
            except NotFoundError:
                continue
            except KubernetesApiError as error:
                self.left.append(f"{what} {self._task.name} ({error})")
                done = False
        return done

    def _remaining(self) -> list[str]:
        try:
            pod = self._pod()
            found = [f"pod {pod['metadata']['name']}"] if pod is not None else []
            with suppress(NotFoundError):
                self._api.get(self._claim)
                found.append(f"resourceclaim {self._task.name}")
        except KubernetesApiError as error:
            return [f"unknown ({error})"]
        return found

    # --- the result ---

    def _failed(self, problem: Finding) -> TryResult:
        return TryResult.failed(self._task.node, self._task.kind, problem.layer or Layer.CONTAINER, problem.seen)

    def _not_tried(self, why: str) -> TryResult:
        return TryResult.skipped(self._task.node, self._task.kind, why)


def _pause_s(waited_s: float) -> float:
    return min(STEP_S, max(_FIRST_STEP_S, waited_s / 4))
