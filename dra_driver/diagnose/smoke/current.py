"""The cluster's state, read again when it is old: a run over many nodes takes longer than a state stays true."""

import threading
from collections.abc import Callable
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.smoke.attempt import TryTask
from dra_driver.diagnose.smoke.fit import Fit, FitsUnder
from dra_driver.diagnose.smoke.objects import PodSettings, claim, job, labels_of, pod_of
from dra_driver.diagnose.smoke.view import FIELDS, ClusterView
from dra_driver.kube.state import ClusterState, read_cluster

STATE_AGE_S: Final = 300.0
"""A state of a thousand nodes has hundreds of megabytes. An older one costs tries that wait for what is busy by now."""
FRESH_S: Final = 5.0
"""Of a state that says why a pod is pending; tries that end at the same time share it."""


class CurrentView:
    """Thread-safe. Raises KubernetesApiError where the state cannot be read."""

    def __init__(self, rest: Any, driver: str, fits_under: FitsUnder, clock: Callable[[], float]) -> None:
        self._rest, self._driver, self._fits_under, self._clock = rest, driver, fits_under, clock
        self._lock = threading.Lock()  # guards the fields below; held while reading, so that one thread reads
        self._view: ClusterView | None = None
        self._fit_of = fits_under(ClusterState())
        self._read_at = 0.0
        self.gaps: tuple[str, ...] = ()

    def view(self, most_age_s: float = STATE_AGE_S) -> ClusterView:
        """A view that was read at most so long ago."""
        asked_at = self._clock()
        with self._lock:
            if self._view is None or self._read_at < asked_at - most_age_s:
                read_at = self._clock()
                state = read_cluster(self._rest, only=FIELDS)
                self._view, self._read_at = self._checked(state), read_at
            return self._view

    def fit(self, task: TryTask, run: str, settings: PodSettings, most_age_s: float = STATE_AGE_S) -> Fit:
        """Whether the task's pod would be placed."""
        around = self.view(most_age_s).around(task.node, without=labels_of(run))
        body = job(task.name, run, task.node, settings)
        owner = {"metadata": {"name": task.name, "namespace": settings.namespace, "uid": ""}}
        return self._fit_of(around, pod_of(body), claim(owner, run, task.spec), task.kind)

    def _checked(self, state: ClusterState) -> ClusterView:
        unread = [gap for gap in state.gaps if gap.startswith(("resourceslices:", "resourceclaims:"))]
        if unread:
            raise ConfigurationError(f"the cluster's state cannot be read: {'; '.join(unread)}")
        self.gaps = tuple(state.gaps)
        self._fit_of = self._fits_under(state)
        return ClusterView(state, self._driver)
