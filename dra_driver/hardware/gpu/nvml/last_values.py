"""Keep the last good answers about one GPU for the time when NVML does not give new ones.

A GPU under load, or with trouble in its firmware (GSP), answers single calls with UNKNOWN or TIMEOUT. Withdrawing it
for that would take its devices from the scheduler and return them seconds later.
"""

import logging
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple, cast

import pynvml
from msgspec.structs import replace

from dra_driver.core.errors import DeviceLostError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.gpu.nvml import errors
from dra_driver.hardware.gpu.nvml.mig import MigFacts

log = logging.getLogger(__name__)
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

KEPT_LOOKS = 3  # reads in a row that a GPU may fail as a whole; about 30 s at the default poll interval
FIRST_TRIES = 3  # calls for a needed property without any value yet
MIG_FACTS = "MIG profiles"
GROWING_LOOKS = frozenset({1, 4, 16})


class LastValues:
    """The last good answers about one GPU, or with an empty name about the driver. Logs the first failure of each
    property and its end, and counts every failure. ``read`` and ``mig_facts`` need the GPU's lock; ``kept_gpu`` and the
    driver's values are for the thread that takes a snapshot."""

    def __init__(self, gpu: str) -> None:
        self.gpu: Gpu | None = None  # as the last good read described it; a new one ends the count of failed reads
        self._name = gpu
        self._generation = 0
        self._values: dict[str, tuple[int, object]] = {}  # by function: number of the session, answer
        self._reads: dict[str, int] = {}  # of growing properties
        self._failing: set[str] = set()
        self._failed_looks = 0
        self._kept: Gpu | None = None

    def renew(self, generation: int) -> None:
        self._generation = generation

    def read(
        self,
        call: Callable[[*Arguments], T],
        *arguments: *Arguments,
        needed: bool = False,
        name: str | None = None,
    ) -> T | None:
        """The answer of ``call``, else the last good one; None for a missing property (a code of ``ABSENT``, unless
        this session has read it) or one that was never read. A ``needed`` one gets ``FIRST_TRIES`` attempts. Raises
        DriverUnavailableError, and DeviceLostError for a code of ``WITHDRAWS`` or a needed property."""
        function = name or errors.exported_name(call)
        for left in reversed(range(FIRST_TRIES if needed and function not in self._values else 1)):
            try:
                answer = call(*arguments)
            except pynvml.NVMLError as error:
                known = self._values.get(function)
                if error.value in errors.ABSENT and (known is None or known[0] != self._generation):
                    self._values.pop(function, None)
                    return None
                if error.value in errors.WITHDRAWS or error.value in errors.DRIVER_TROUBLE:
                    errors.raise_translated(function, error)
                if needed and function not in self._values and not left:
                    errors.raise_translated(function, error)
                reason = errors.describe(error)
            except DeviceLostError as error:
                if errors.withdraws(error) or (needed and function not in self._values and not left):
                    raise
                reason = str(error)
            except pynvml.NVMLLibraryMismatchError:  # not an NVMLError: see `errors.optional`
                return None
            except ValueError as error:
                # A damaged board may report a name that is not UTF-8 or an invalid bus id.
                reason = f"the answer cannot be read: {error}"
            else:
                self._values[function] = (self._generation, answer)
                self._ended(function)
                return answer
        self._failed(function, reason)
        known = self._values.get(function)
        return None if known is None else cast("T", known[1])

    def constant(self, call: Callable[[*Arguments], T], *arguments: *Arguments, name: str | None = None) -> T | None:
        """As ``read``, but once per session, for a property that cannot change in it."""
        function = name or errors.exported_name(call)
        known = self._values.get(function)
        if known is not None and known[0] == self._generation:
            return cast("T", known[1])
        return self.read(call, *arguments, name=function)

    def growing(self, function: str, call: Callable[[], T], join: Callable[[T, T], T], *, every: int) -> T | None:
        """As ``read``, for a property that only grows: ``join`` adds an answer to the last one, which also outlives
        sessions. Read at the polls 1, 4 and 16, and at every ``every``-th."""
        looks = self._reads[function] = self._reads.get(function, 0) + 1
        known = self._values.get(function)
        if known is None:
            return self.read(call, name=function)
        last = cast("T", known[1])
        if looks % every and looks not in GROWING_LOOKS:
            return last
        self._values[function] = self._generation, last  # a driver that lacks the call now does not take it back
        return self.read(lambda: join(last, call()), name=function)

    def mig_facts(self, facts: MigFacts) -> MigFacts:
        """``facts`` when all could be read, else the last complete ones, marked as incomplete."""
        if facts.trouble is None:
            if facts.complete:
                self._values[MIG_FACTS] = (self._generation, facts)
            self._ended(MIG_FACTS)
            return facts
        self._failed(MIG_FACTS, facts.trouble)
        known = self._values.get(MIG_FACTS)
        return facts if known is None else replace(cast("MigFacts", known[1]), complete=False)

    def kept_gpu(self, error: DeviceLostError) -> Gpu | None:
        """Return the last description of a GPU whose read failed with ``error``; None to exclude the GPU."""
        if self.gpu is not self._kept:
            self._kept, self._failed_looks = self.gpu, 0
        self._failed_looks += 1
        if not errors.is_passing(error) or self._failed_looks > KEPT_LOOKS:
            self.gpu = self._kept = None
            return None
        if self.gpu is not None:
            metrics.gpu_read_errors_total.labels("gpu").inc()
            log.warning(
                "GPU cannot be read, keeping its last description",
                extra={"gpu": self._name, "reads": self._failed_looks, "limit": KEPT_LOOKS, "reason": str(error)},
            )
        return self.gpu

    def _failed(self, function: str, reason: str) -> None:
        metrics.gpu_read_errors_total.labels("property").inc()
        if function not in self._failing:
            self._failing.add(function)
            log.warning(
                "GPU property cannot be read",
                extra={
                    "gpu": self._name or "all",
                    "function": function,
                    "reason": reason,
                    "last_value": "kept" if function in self._values else "none",
                },
            )

    def _ended(self, function: str) -> None:
        if function in self._failing:
            self._failing.discard(function)
            log.info("GPU property can be read again", extra={"gpu": self._name or "all", "function": function})
