"""Keeps the gauges of free, fragmented and stranded capacity, in a thread of its own.

Only the replica that leads surveys the cluster, so the gauges of the others have no series and sums over all replicas
hold. After a failed survey the former numbers stay, with the time of the survey that found them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from dra_driver.controller.capacity_document import ModelCount, decode
from dra_driver.core.errors import CommandError
from dra_driver.core.telemetry import capacity_metrics, controller_metrics
from dra_driver.core.worker import Worker

log = logging.getLogger(__name__)

THREAD_NAME: Final = "capacity"
_WAITING_S: Final = 5.0


class SurveyingReplica(Protocol):
    """Whether this replica may act."""

    def leads(self) -> bool: ...


Survey = Callable[[Callable[[], bool]], bytes]
"""Runs one survey; the argument is called now and then, and the survey is given up when it returns False."""


class CapacityGauges:
    """``worker`` is the thread; ``step`` is its turn."""

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
        self.worker = Worker(
            THREAD_NAME,
            self.step,
            on_error=partial(controller_metrics.internal_error, THREAD_NAME),
            after_error_s=interval_s,
            period_s=_WAITING_S,
            clock=clock,
        )

    def step(self) -> float:
        """Survey if it is due. Returns seconds until the next look: often, for the probe and for the leadership."""
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
        self.worker.beat()
        return not self.worker.is_stopping and self._leadership.leads()

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
