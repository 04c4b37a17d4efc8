"""Runs a smoke test: several nodes at the same time, and on each the kinds one after another.

The forms of a GPU exclude each other, and so a node gives away one device at a time. When the run ends, by a signal
too, all its objects are deleted.
"""

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError, ForbiddenError, KubernetesApiError, NotFoundError
from dra_driver.diagnose.smoke import leftovers
from dra_driver.diagnose.smoke.allocations import SeenAllocations
from dra_driver.diagnose.smoke.attempt import Attempt, SmokeApi, Tools, TryTask
from dra_driver.diagnose.smoke.current import FRESH_S, CurrentView
from dra_driver.diagnose.smoke.fit import Fit, FitsUnder
from dra_driver.diagnose.smoke.kinds import TryKind, claim_spec
from dra_driver.diagnose.smoke.objects import PodSettings
from dra_driver.diagnose.smoke.options import SmokeOptions, cleanup_rights, needed_rights
from dra_driver.diagnose.smoke.planning import SmokePlan, plan_of
from dra_driver.diagnose.smoke.report import SmokeReport, TryResult, TryStatus
from dra_driver.diagnose.smoke.settings import pod_settings
from dra_driver.kube import paths
from dra_driver.kube.rights import NeededRight, missing

CLEANUP_S: Final = 60.0

Told = Callable[[TryResult, int, int], None]
"""Called with each result, how many there are and how many there will be; by one thread at a time."""


class SmokeRun:
    """One run. ``run`` is called once; ``stop`` from any thread or signal handler."""

    def __init__(
        self, rest: Any, options: SmokeOptions, fits_under: FitsUnder, told: Told = lambda _result, _done, _of: None
    ) -> None:
        self._rest, self._options, self._told = rest, options, told
        self._id = secrets.token_hex(4)
        self._numbers = count(1)
        self._stopping = threading.Event()
        self._current = CurrentView(rest, options.driver, fits_under, time.monotonic)
        self._lock = threading.Lock()  # guards the report
        self.report = SmokeReport(run=self._id, namespace=options.namespace)

    def stop(self) -> None:
        """Ends the run after deleting what it has made. Returns at once."""
        self._stopping.set()

    def run(self) -> SmokeReport:
        """Raises ConfigurationError (usage, rights, nothing published) and KubernetesApiError before the first try."""
        check_rights(self._rest, needed_rights(self._options))
        check_namespace(self._rest, self._options.namespace)
        settings = pod_settings(self._rest, self._options)
        self._forget_earlier_runs()
        plan = plan_of(self._current.view(), self._options, lambda node, kind: self._fit_of(node, kind, settings))
        if not plan.tries and not plan.settled:
            raise ConfigurationError(
                f"no node publishes devices of {self._options.driver}; kubectl dra doctor says why"
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
        self.report.tries.sort(key=lambda item: (item.node, item.kind or TryKind("gpu")))
        return self.report

    def _forget_earlier_runs(self) -> None:
        found = leftovers.of_namespace(self._rest, self._options.namespace)
        names = leftovers.delete(self._rest, leftovers.outdated(found, datetime.now(UTC)))
        if names:
            self.report.notes.append(f"deleted what an earlier run left: {', '.join(names[:10])}")

    def _fit_of(self, node: str, kind: TryKind, settings: PodSettings) -> Fit:
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

    def _try_node(self, node: str, kinds: Sequence[TryKind], tools: Tools, total: int) -> None:
        for kind in kinds:
            result = self._tried(node, kind, tools)
            with self._lock:
                self.report.tries.append(result)
                self._told(result, len(self.report.tries), total)

    def _tried(self, node: str, kind: TryKind, tools: Tools) -> TryResult:
        if self._stopping.is_set():
            return TryResult(node=node, kind=kind, status=TryStatus.NOT_TRIED, message="interrupted")
        try:
            task = self._task(node, kind, next(self._numbers))
            fit = self._current.fit(task, self._id, tools.settings)
        except (KubernetesApiError, ConfigurationError) as error:
            return TryResult(node=node, kind=kind, status=TryStatus.NOT_TRIED, message=str(error))
        if fit.busy:
            return TryResult(node=node, kind=kind, status=TryStatus.NOT_TRIED, message=fit.busy)
        attempt = Attempt(tools, task)
        try:
            return attempt.result()
        finally:
            with self._lock:
                self.report.left += attempt.left

    def _task(self, node: str, kind: TryKind, number: int) -> TryTask:
        view = self._current.view()
        example = view.kinds(node, (kind.form,)).get(kind) or {}
        spec = claim_spec(kind, example, self._options.driver)
        return TryTask(
            name=f"dra-smoke-{self._id}-{number}", node=node, kind=kind, spec=spec, slices=tuple(view.slices(node))
        )

    def _sweep(self) -> None:
        """Deletes what a lost answer of the API server may have left of this run."""
        try:
            leftovers.delete(self._rest, leftovers.of_namespace(self._rest, self._options.namespace, self._id))
        except KubernetesApiError as error:
            self.report.notes.append(f"not looked for objects of this run: {error}; they go by themselves")


def check_namespace(api: SmokeApi, namespace: str) -> None:
    """Raises ConfigurationError where the namespace does not exist; a user who may not look is not held up."""
    try:
        api.get(paths.namespace(namespace))
    except ForbiddenError:
        return
    except NotFoundError as error:
        raise ConfigurationError(f"namespace {namespace} does not exist: name one with -n") from error


def clean_up(rest: Any, namespace: str) -> tuple[list[str], list[str]]:
    """Deletes the objects of all smoke tests in a namespace, running ones too, and waits until they are gone.

    Returns the names of what was found, and of what is still there after `CLEANUP_S`. Raises ConfigurationError and
    KubernetesApiError.
    """
    check_rights(rest, cleanup_rights(namespace))
    found = leftovers.delete(rest, list(leftovers.of_namespace(rest, namespace)))
    until, pause = time.monotonic() + CLEANUP_S, threading.Event()
    while left := [item["metadata"]["name"] for _, item in leftovers.of_namespace(rest, namespace)]:
        if time.monotonic() > until:
            break
        pause.wait(0.5)
    return found, left


def check_rights(rest: Any, rights: Sequence[NeededRight]) -> None:
    """Raises ConfigurationError that names each right that the user lacks."""
    lacking = missing(rest, rights)
    if lacking:
        raise ConfigurationError(
            f"the user of this kubeconfig lacks rights: {'; '.join(map(str, lacking))}. Nothing was changed; "
            "docs/smoke.md has a Role and a ClusterRole with them"
        )
