"""Run a smoke test: several nodes at the same time, one device at a time on each, because forms exclude each other.

When the run ends, by a signal too, it deletes all its objects.
"""

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConfigurationError,
    ForbiddenError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.core.request_rights import AccessRight
from dra_driver.diagnose.smoke import report
from dra_driver.diagnose.smoke.attempt import Attempt, SmokeApi, Tools, TryTask
from dra_driver.diagnose.smoke.objects import RUN_LABEL, TTL_S, PodSettings, claim, job, labels_of, pod_of
from dra_driver.diagnose.smoke.planning import FIELDS, ClusterView, Fit, FitsUnder, SmokePlan, plan_of
from dra_driver.kube import paths
from dra_driver.kube.devices import results_of
from dra_driver.kube.reflector import ListWatch, Reflector, ReflectorChange
from dra_driver.kube.rights import missing
from dra_driver.kube.state import ClusterState, Wire, read_cluster

START_S: Final = 20.0
LAG_S: Final = 5.0
"""Limit of the watch's delay after other answers of the API server."""


class SeenAllocations:
    """Watch the claims of one namespace in a separate thread. Enter it once."""

    def __init__(self, rest: ListWatch, namespace: str, run: str) -> None:
        self._run = run
        self._seen = threading.Condition()  # guards the field below, and wakes threads that wait for it
        self._results: dict[str, Sequence[Wire]] = {}
        self._listed = threading.Event()
        self._reflector = Reflector(
            rest, paths.resource_claims(namespace), "", self._changed, slim=self._slim, name="smoke-claims"
        )

    def __enter__(self) -> "SeenAllocations":
        """Raises ApiUnreachableError if the claims cannot be watched."""
        self._reflector.start()
        if not self._listed.wait(START_S):
            problem = self._reflector.problem or f"no list of claims within {START_S:.0f} s"
            self._reflector.stop()
            raise ApiUnreachableError(f"cannot watch the claims of the namespace: {problem}")
        return self

    def __exit__(self, *_: object) -> None:
        self._reflector.stop()

    def of(self, name: str) -> Sequence[Wire]:
        """The present or past allocation results of the claim; none if it was never allocated."""
        with self._seen:
            self._seen.wait_for(lambda: name in self._results, LAG_S)
            return self._results.get(name, ())

    def _slim(self, item: dict[str, Any]) -> dict[str, Any] | None:
        labels = item["metadata"].get("labels") or {}
        if labels.get(RUN_LABEL) != self._run:
            return None
        if results := results_of(item):
            with self._seen:
                self._results[item["metadata"]["name"]] = results
                self._seen.notify_all()
        return item

    def _changed(self, change: ReflectorChange) -> None:
        if change.kind == "listed":
            self._listed.set()


STATE_AGE_S: Final = 300.0
"""A state of a thousand nodes has hundreds of megabytes. With an older state, more attempts wait for busy devices."""
FRESH_S: Final = 5.0
"""Age of a state that explains a pending pod; attempts that end at the same time share it."""


class CurrentView:
    """Thread-safe. Raises KubernetesApiError if the state cannot be read."""

    def __init__(self, rest: Any, driver: str, fits_under: FitsUnder, clock: Callable[[], float]) -> None:
        self._rest, self._driver, self._fits_under, self._clock = rest, driver, fits_under, clock
        self._lock = threading.Lock()  # guards the fields below; held while reading, so that one thread reads
        self._view: ClusterView | None = None
        self._fit_of = fits_under(ClusterState())
        self._read_at = 0.0
        self.gaps: tuple[str, ...] = ()

    def view(self, most_age_s: float = STATE_AGE_S) -> ClusterView:
        """A view of at most this age."""
        asked_at = self._clock()
        with self._lock:
            if self._view is None or self._read_at < asked_at - most_age_s:
                read_at = self._clock()
                state = read_cluster(self._rest, only=FIELDS)
                self._view, self._read_at = self._checked(state), read_at
            return self._view

    def fit(self, task: TryTask, run: str, settings: PodSettings, most_age_s: float = STATE_AGE_S) -> Fit:
        around = self.view(most_age_s).around(task.node, without=labels_of(run))
        body = job(task.name, run, task.node, settings)
        owner = {"metadata": {"name": task.name, "namespace": settings.namespace, "uid": ""}}
        return self._fit_of(around, pod_of(body), claim(owner, run, task.spec), task.kind)

    def _checked(self, state: ClusterState) -> ClusterView:
        unread = [gap for gap in state.gaps if gap.startswith(("resourceslices:", "resourceclaims:"))]
        if unread:
            raise ConfigurationError(f"cannot read the cluster's state: {'; '.join(unread)}", reason="StateUnreadable")
        self.gaps = tuple(state.gaps)
        self._fit_of = self._fits_under(state)
        return ClusterView(state, self._driver)


_NODE_COMMAND = "kubelet-plugin"


def pod_settings(api: SmokeApi, options: report.SmokeOptions) -> PodSettings:
    """Raises ConfigurationError without a DaemonSet to take the image from, and KubernetesApiError."""
    image, secrets = options.image, list[str]()
    if not image:
        image, secrets = _of_daemon_set(api, options)
    return PodSettings(
        namespace=options.namespace,
        image=image,
        pull_secrets=tuple(secrets) if options.namespace == options.driver_namespace else (),
        user=options.user,
        timeout_s=options.timeout_s,
    )


def _of_daemon_set(api: SmokeApi, options: report.SmokeOptions) -> tuple[str, list[str]]:
    name, namespace = options.daemon_set, options.driver_namespace
    try:
        spec = api.get(paths.daemon_set(namespace, name))["spec"]["template"]["spec"]
    except NotFoundError as error:
        raise ConfigurationError(
            f"no DaemonSet {name} in namespace {namespace} to take the image from: name it with --driver-namespace "
            "and --daemonset (kubectl get daemonsets -A lists them), or an image with --image",
            reason="NoDaemonSet",
            daemonset=name,
            namespace=namespace,
        ) from error
    containers = spec["containers"]
    ours = [item for item in containers if _NODE_COMMAND in (*item.get("command", ()), *item.get("args", ()))]
    return (ours or containers)[0]["image"], [item["name"] for item in spec.get("imagePullSecrets") or ()]


_SPARE_S: Final = 60


def of_namespace(api: SmokeApi, namespace: str, run: str = "") -> Iterator[tuple[str, Wire]]:
    """Path and object of each Job and claim of smoke tests, or of one run."""
    query = {"labelSelector": f"{RUN_LABEL}={run}" if run else RUN_LABEL}
    for path in (paths.jobs(namespace), paths.resource_claims(namespace)):
        for item in api.list(path, query)["items"]:
            yield f"{path}/{item['metadata']['name']}", item


def is_outdated(item: Wire, now: datetime) -> bool:
    """Return whether a Job's run has ended, or its deadline has passed."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    if any(one.get("type") in {"Complete", "Failed"} and one.get("status") == "True" for one in conditions):
        return True
    deadline = (item.get("spec") or {}).get("activeDeadlineSeconds") or 0
    created = datetime.fromisoformat(str(item["metadata"]["creationTimestamp"]).replace("Z", "+00:00"))
    return (now - created.astimezone(UTC)).total_seconds() > deadline + TTL_S + _SPARE_S


def delete(api: SmokeApi, found: Iterable[tuple[str, Wire]]) -> list[str]:
    """Delete them with all that they own, and return their names. Raises KubernetesApiError."""
    names = []
    for path, item in found:
        with suppress(NotFoundError):
            api.delete(path, propagation="Background")
        names.append(f"{'job' if '/jobs/' in path else 'resourceclaim'} {item['metadata']['name']}")
    return names


CLEANUP_S: Final = 60.0

OnResult = Callable[[report.TryResult, int, int], None]
"""Called with each result, its number and the total; by one thread at a time."""


class SmokeRun:
    """One run. ``run`` is called once; ``stop`` from any thread or signal handler."""

    def __init__(
        self,
        rest: Any,
        options: report.SmokeOptions,
        fits_under: FitsUnder,
        on_result: OnResult = lambda _result, _done, _of: None,
    ) -> None:
        self._rest, self._options, self._on_result = rest, options, on_result
        self._id = secrets.token_hex(4)
        self._numbers = count(1)
        self._stopping = threading.Event()
        self._current = CurrentView(rest, options.driver, fits_under, time.monotonic)
        self._lock = threading.Lock()  # guards the report
        self.report = report.SmokeReport(run=self._id, namespace=options.namespace)

    def stop(self) -> None:
        """End the run after deleting its objects. Does not block."""
        self._stopping.set()

    def run(self) -> report.SmokeReport:
        """Raises ConfigurationError (usage, permissions, nothing published) and KubernetesApiError before the first
        attempt."""
        check_rights(self._rest, report.needed_rights(self._options))
        check_namespace(self._rest, self._options.namespace)
        settings = pod_settings(self._rest, self._options)
        self._forget_earlier_runs()
        plan = plan_of(self._current.view(), self._options, lambda node, kind: self._fit_of(node, kind, settings))
        if not plan.tries and not plan.settled:
            raise ConfigurationError(
                f"no node publishes devices of {self._options.driver}; kubectl dra doctor finds the cause",
                reason="NothingPublished",
            )
        self.report.notes += [*plan.notes, *(f"not read: {gap}" for gap in self._current.gaps)]
        self.report.tries += plan.settled
        with SeenAllocations(self._rest, self._options.namespace, self._id) as seen:
            tools = Tools(
                api=self._rest,
                run=self._id,
                settings=settings,
                allocated=seen.of,
                fit=lambda task: self._current.fit(task, self._id, settings, FRESH_S),
                stopping=self._stopping,
            )
            self._try_all(plan, tools)
        self.report.interrupted = self._stopping.is_set()
        self.report.tries.sort(key=lambda item: (item.node, item.kind or report.TryKind("gpu")))
        return self.report

    def _forget_earlier_runs(self) -> None:
        found = of_namespace(self._rest, self._options.namespace)
        now = datetime.now(UTC)  # claims go with their Job
        old = [(path, item) for path, item in found if "/jobs/" in path and is_outdated(item, now)]
        names = delete(self._rest, old)
        if names:
            self.report.notes.append(f"deleted objects of an earlier run: {', '.join(names[:10])}")

    def _fit_of(self, node: str, kind: report.TryKind, settings: PodSettings) -> Fit:
        return self._current.fit(self._task(node, kind, 0), self._id, settings)

    def _try_all(self, plan: SmokePlan, tools: Tools) -> None:
        total = plan.count + len(plan.settled)
        try:
            with ThreadPoolExecutor(self._options.parallel, thread_name_prefix="smoke") as pool:
                nodes = [pool.submit(self._try_node, node, kinds, tools, total) for node, kinds in plan.tries.items()]
                for node in nodes:
                    node.result()
        except BaseException:
            self._stopping.set()
            raise
        finally:
            self._sweep()

    def _try_node(self, node: str, kinds: Sequence[report.TryKind], tools: Tools, total: int) -> None:
        for kind in kinds:
            result = self._tried(node, kind, tools)
            with self._lock:
                self.report.tries.append(result)
                self._on_result(result, len(self.report.tries), total)

    def _tried(self, node: str, kind: report.TryKind, tools: Tools) -> report.TryResult:
        if self._stopping.is_set():
            return report.TryResult.skipped(node, kind, "interrupted")
        try:
            task = self._task(node, kind, next(self._numbers))
            fit = self._current.fit(task, self._id, tools.settings)
        except (KubernetesApiError, ConfigurationError) as error:
            return report.TryResult.skipped(node, kind, str(error))
        if fit.busy:
            return report.TryResult.skipped(node, kind, fit.busy)
        attempt = Attempt(tools, task)
        try:
            return attempt.result()
        finally:
            with self._lock:
                self.report.left += attempt.left

    def _task(self, node: str, kind: report.TryKind, number: int) -> TryTask:
        view = self._current.view()
        example = view.kinds(node, (kind.form,)).get(kind) or {}
        spec = report.claim_spec(kind, example, self._options.driver)
        return TryTask(
            name=f"dra-smoke-{self._id}-{number}", node=node, kind=kind, spec=spec, slices=tuple(view.slices(node))
        )

    def _sweep(self) -> None:
        """Delete objects of this run whose creation had no answer of the API server."""
        try:
            delete(self._rest, of_namespace(self._rest, self._options.namespace, self._id))
        except KubernetesApiError as error:
            self.report.notes.append(
                f"cannot list objects of this run: {error}; Kubernetes deletes them at their deadline"
            )


def check_namespace(api: SmokeApi, namespace: str) -> None:
    """Raises ConfigurationError if the namespace does not exist; ignores a missing permission."""
    try:
        api.get(paths.namespace(namespace))
    except ForbiddenError:
        return
    except NotFoundError as error:
        raise ConfigurationError(
            f"namespace {namespace} does not exist: name one with -n", reason="NamespaceNotFound", name=namespace
        ) from error


def clean_up(rest: Any, namespace: str) -> tuple[list[str], list[str]]:
    """Delete the objects of all smoke tests in a namespace, running ones too. Return their names, and the names that
    still exist after `CLEANUP_S`. Raises ConfigurationError and KubernetesApiError."""
    check_rights(rest, report.cleanup_rights(namespace))
    found = delete(rest, list(of_namespace(rest, namespace)))
    until, pause = time.monotonic() + CLEANUP_S, threading.Event()
    while left := [item["metadata"]["name"] for _, item in of_namespace(rest, namespace)]:
        if time.monotonic() > until:
            break
        pause.wait(0.5)
    return found, left


def check_rights(rest: Any, rights: Sequence[AccessRight]) -> None:
    """Raises ConfigurationError that names each permission that the user lacks."""
    lacking = missing(rest, rights)
    if lacking:
        raise ConfigurationError(
            f"the user of this kubeconfig lacks permissions: {'; '.join(map(str, lacking))}. Nothing was changed; "
            "docs/smoke.md has a Role and a ClusterRole with them",
            reason="PermissionsMissing",
        )
