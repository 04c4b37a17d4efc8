"""Survey free, fragmented and stranded capacity, and publish it as gauges, in a separate thread.

`kubectl dra capacity -o json` runs as a child process with its own memory limit (RLIMIT_DATA): expressions, the
allocator and every device of the cluster need ten times the memory of the controller. The report has the
fields of ``kubectl/capacity/report.py``; entries of another shape are omitted, models and
requests are bounded.

Only the leader has series, so that sums over all replicas hold. After a failed survey the previous numbers stay, with
their time.
"""

import contextlib
import json
import logging
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Final, TypeVar

from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from dra_driver.controller.election import Leadership
from dra_driver.core.errors import CommandError
from dra_driver.core.telemetry import capacity_metrics, controller_metrics
from dra_driver.core.text import printable
from dra_driver.core.wire import from_wire
from dra_driver.core.worker import Worker

MAX_OUTPUT: Final = 8 << 20
"""Bytes of a report without single nodes: some kilobytes for each model."""
SURVEY_S: Final = 300.0
_STEP_S: Final = 1.0
_T = TypeVar("_T")


def survey_command(driver: str, kubeconfig: str | None) -> list[str]:
    """The program that prints the report of all nodes together."""
    where = [f"--kubeconfig={kubeconfig}"] if kubeconfig else []
    flags = ["capacity", "-o", "json", "--totals", f"--driver={driver}", *where]
    return [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", *flags]


def survey(
    command: list[str],
    beat: Callable[[], bool],
    *,
    memory_mib: int,
    limit_s: float = SURVEY_S,
    clock: Callable[[], float] = time.monotonic,
) -> bytes:
    """The output of the program. ``beat`` is called each second; the program is ended when it returns False.

    Raises CommandError when the program cannot run, fails, takes longer than ``limit_s`` or is ended.
    """
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    except OSError as error:
        raise CommandError(f"the survey of free capacity cannot be started: {error}") from error
    try:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or this system forbids it
            resource.prlimit(child.pid, resource.RLIMIT_DATA, (memory_mib << 20, memory_mib << 20))
        out, said = _waited(child, beat, clock() + limit_s, clock)
    finally:
        if child.poll() is None:
            child.kill()
            child.communicate()
    if child.returncode != 0:
        words = said.decode("utf-8", "replace").strip()[-300:]
        if "MemoryError" in words or not words:
            raise CommandError(
                f"the survey of free capacity needs more than {memory_mib} MiB: "
                "raise --capacity-memory (CAPACITY_MEMORY)"
            )
        raise CommandError(
            f"the survey of free capacity ended with status {child.returncode}: {words}", reason="SurveyFailed"
        )
    if len(out) > MAX_OUTPUT:
        raise CommandError(f"the survey of free capacity printed more than {MAX_OUTPUT >> 20} MiB")
    return out


def _waited(
    child: "subprocess.Popen[bytes]", beat: Callable[[], bool], until: float, clock: Callable[[], float]
) -> tuple[bytes, bytes]:
    while True:
        try:
            return child.communicate(timeout=_STEP_S)
        except subprocess.TimeoutExpired as error:
            if not beat():
                message = "survey of free capacity canceled: this replica stops or lost leadership"
                raise CommandError(message, reason="LostLeadership") from error
            if clock() > until:
                raise CommandError(
                    "the survey of free capacity did not end in time: the API server is slow", reason="SurveyTimeout"
                ) from error


MAX_MODELS: Final = 64
MAX_REQUESTS: Final = 64
_MAX_NAME: Final = 100
_Count = Annotated[int, Meta(ge=0, le=2**62)]


class RequestCount(Struct, frozen=True, kw_only=True):
    """Claims for one request, such as ``2 GPUs`` or ``3g.40gb``: how many fit, and how many are stranded."""

    request: str
    fits: _Count = field(name="fitCount", default=0)
    stranded: _Count = field(name="strandedCount", default=0)


class _Gpus(Struct, frozen=True, kw_only=True):
    free: _Count = 0
    used: _Count = 0
    fragmented: _Count = 0
    unavailable: _Count = 0


class _Memory(Struct, frozen=True, kw_only=True):
    total: _Count = 0
    free: _Count = 0
    fragmented: _Count = 0


class _Model(Struct, frozen=True, kw_only=True, rename="camel"):
    model: str = field(name="product")
    gpus: _Gpus = field(name="gpuCount", default=_Gpus())
    memory_bytes: _Memory = _Memory()
    requests: tuple[RequestCount, ...] = ()


class _Report(Struct, frozen=True, kw_only=True):
    kind: str = ""
    gaps: tuple[str, ...] = ()
    models: tuple[_Model, ...] = field(name="items", default=())


class ModelCount(Struct, frozen=True, kw_only=True):
    """GPUs of one model by state, memory in bytes by state (``free``, ``fragmented``, ``taken``), and requests."""

    model: str
    gpus: Mapping[str, int]
    memory_bytes: Mapping[str, int]
    requests: Sequence[RequestCount]


def decode(text: bytes) -> tuple[ModelCount, ...]:
    """The models of a report. Raises ValueError for other content and for a report with gaps."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the survey's output is not JSON: {error}") from error
    report = from_wire(_Report, document) if isinstance(document, dict) else _Report()
    if report.kind != "CapacityReport":
        raise ValueError("the survey's output is not a CapacityReport")
    if report.gaps:
        raise ValueError(f"the survey lacks {report.gaps[0][:300]}")
    named = _by_name((item.model, item) for item in report.models)
    return tuple(_counted(name, item) for name, item in islice(named.items(), MAX_MODELS))


def _counted(name: str, item: _Model) -> ModelCount:
    memory = item.memory_bytes
    taken = max(0, memory.total - memory.free - memory.fragmented)
    requests = _by_name((each.request, each) for each in item.requests)
    return ModelCount(
        model=name,
        gpus=asdict(item.gpus),
        memory_bytes={"free": memory.free, "fragmented": memory.fragmented, "taken": taken},
        requests=tuple(replace(each, request=name) for name, each in islice(requests.items(), MAX_REQUESTS)),
    )


def _by_name(items: Iterable[tuple[str, _T]]) -> dict[str, _T]:
    """The first item of each non-empty name; names are printable and bounded."""
    found: dict[str, _T] = {}
    for text, item in items:
        if name := printable(text[:_MAX_NAME]):
            found.setdefault(name, item)
    return found


log = logging.getLogger(__name__)

THREAD_NAME: Final = "capacity"
_WAITING_S: Final = 5.0


Survey = Callable[[Callable[[], bool]], bytes]
"""Runs one survey, which ends when a call of the argument returns False."""


class CapacityGauges:
    def __init__(
        self,
        survey: Survey,
        leadership: Leadership,
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
        """Survey if it is due. Returns seconds until the next call, short for the probe and the leadership."""
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
    """Set every gauge to these numbers and remove the series of all other models and requests."""
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
