"""Keeps the gauges of free, fragmented and stranded capacity, in a thread of its own.

Only the replica that leads surveys the cluster, so the gauges of the others have no series and sums over all replicas
hold. After a failed survey the former numbers stay, with the time of the survey that found them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from dra_driver.controller.capacity_document import ModelCount, decode
from dra_driver.controller.worker import Worker
from dra_driver.core.errors import CommandError
from dra_driver.core.telemetry import capacity_metrics

log = logging.getLogger(__name__)

THREAD_NAME: Final = "capacity"
_WAITING_S: Final = 5.0


class SurveyingReplica(Protocol):
    """Whether this replica may act."""

    def leads(self) -> bool: ...


Survey = Callable[[Callable[[], bool]], bytes]
"""Runs one survey; the argument is called now and then, and the survey is given up when it returns False."""


class CapacityGauges:
    """``start`` and ``stop`` once, by one owner; ``wake`` from any thread. ``step`` is one turn of the thread."""

    def __init__(
        self,
        survey: Survey,
        leadership: SurveyingReplica,
        *,
        interval_s: float,
        clock: Callable[[], float],
        now: Callable[[], float] = time.time,
    ) -> None:
        self._survey, self._leadership, self._now = survey, leadership, now
        self._interval_s = interval_s
        self._clock = clock
        self._next_s = 0.0  # of the thread alone, as the next
        self._shown = False
        self._worker = Worker(
            THREAD_NAME, "capacity", self.step, clock=clock, after_error_s=interval_s, settle_s=_WAITING_S
        )

    def start(self) -> None:
        self._worker.start()

    def stop(self, timeout_s: float = 3.0) -> None:
        """End the survey in progress. Idempotent; allowed without a start."""
        self._worker.stop(timeout_s)

    def wake(self) -> None:
        """Look soon whether this replica leads."""
        self._worker.wake()

    @property
    def hung(self) -> str | None:
        """Why only a restart would help, None otherwise."""
        return self._worker.hung

    def step(self) -> float:
        """Survey if it is due. Returns seconds until the next look: often, for the probe and for the leadership."""
        self._worker.beat()
        if not self._leadership.leads():
            self._forget()
            return _WAITING_S
        if self._clock() >= self._next_s:
            self._next_s = self._clock() + self._interval_s
            self._take()
        return _WAITING_S

    def _take(self) -> None:
        try:
            models = decode(self._survey(self._goes_on))
        except (CommandError, ValueError) as error:
            capacity_metrics.surveys_total.labels("failed").inc()
            log.warning("free capacity not surveyed", extra={"reason": str(error)})
            return
        capacity_metrics.surveys_total.labels("done").inc()
        show(models)
        capacity_metrics.survey_timestamp.set(self._now())
        self._shown = True

    def _goes_on(self) -> bool:
        self._worker.beat()
        return not self._worker.is_stopping and self._leadership.leads()

    def _forget(self) -> None:
        self._next_s = 0.0
        if self._shown:
            show(())
            capacity_metrics.survey_timestamp.set(0)
            self._shown = False


def show(models: Sequence[ModelCount]) -> None:
    """Sets every gauge to these numbers and removes the series of all other models and requests."""
    for gauge in (
        capacity_metrics.gpus,
        capacity_metrics.memory_bytes,
        capacity_metrics.fits,
        capacity_metrics.stranded,
    ):
        gauge.clear()
    for model in models:
        for state, count in model.gpus.items():
            capacity_metrics.gpus.labels(model.model, state).set(count)
        for state, size in model.memory_bytes.items():
            capacity_metrics.memory_bytes.labels(model.model, state).set(size)
        for request in model.requests:
            capacity_metrics.fits.labels(model.model, request.request).set(request.fits)
            capacity_metrics.stranded.labels(model.model, request.request).set(request.stranded)
