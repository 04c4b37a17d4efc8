"""Withholds partitions of GPUs that cannot be cut, and tells the node's owner.

What is decided when is in ``hardware/mig/refusals.py``. The state is in memory: after a restart all partitions are
offered, and withheld again after three more refusals.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, WithheldPartitions, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.mig.refusals import LIMIT, NO_REFUSALS, WITHHELD_S, WITHIN_S, CutRefusals, after_refusal, at
from dra_driver.node.process.node_events import Warn

log = logging.getLogger(__name__)

TAINT: Final = Taint(key="gpu.dra-driver.io/creation-refused", value="in-use", effect="NoSchedule")
EVENT: Final = "PartitionsWithheld"


class PartitionWithholding:
    """A ``mig.manager.CreationWatch``. Thread-safe; no method raises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._states: dict[GpuUuid, CutRefusals] = {}
        self._news: dict[GpuUuid, str] = {}  # why partitions were withheld, until the event is recorded
        self._names: dict[GpuUuid, str] = {}

    def refused(self, partition: PartitionId, reason: str) -> None:
        gpu = partition.gpu_uuid
        metrics.partition_refusals_total.inc()
        with self._lock:
            before = at(self._states.get(gpu, NO_REFUSALS), self._clock())
            now = self._states[gpu] = after_refusal(before, partition, self._clock())
            begins = now.withheld and not before.withheld
            if begins:
                self._news[gpu] = reason
        if begins:
            log.warning("partitions that do not exist yet are withheld", extra={"gpu": gpu, "reason": reason})

    def created(self, partition: PartitionId) -> None:
        with self._lock:
            state = self._states.pop(partition.gpu_uuid, NO_REFUSALS)
            self._news.pop(partition.gpu_uuid, None)
        if state.withheld:
            log.info("partitions are offered again: one was created", extra={"gpu": partition.gpu_uuid})

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        """Terms that withhold partitions, of the GPUs that cannot be cut now."""
        with self._lock:
            self._forget_what_is_over()
            self._names = {gpu.uuid: gpu.device_name for gpu in snapshot.gpus if gpu.uuid in self._states}
            held = {gpu: self._states[gpu] for gpu in self._names if self._states[gpu].withheld}
            metrics.partitions_withheld.set(len(held))
            return {
                gpu: replace(
                    terms_of(terms, gpu),
                    withheld=WithheldPartitions(
                        reason=_remark(self._names[gpu]), taint=TAINT, refused=state.partitions
                    ),
                )
                for gpu, state in held.items()
            }

    def report(self, warn: Warn) -> None:
        """Record an event for each GPU whose partitions began to be withheld, once."""
        with self._lock:
            news = {gpu: (self._names.get(gpu, gpu), reason) for gpu, reason in self._news.items()}
        for gpu, (name, reason) in news.items():
            if warn(EVENT, f"{_remark(name)}; the last refusal: {reason}"):
                with self._lock:
                    self._news.pop(gpu, None)

    @property
    def remarks(self) -> list[str]:
        """One sentence for each GPU whose partitions are withheld."""
        with self._lock:
            return [_remark(name) for gpu, name in self._names.items() if self._states.get(gpu, NO_REFUSALS).withheld]

    def _forget_what_is_over(self) -> None:
        now = self._clock()
        for gpu, state in list(self._states.items()):
            current = self._states[gpu] = at(state, now)
            if current == NO_REFUSALS:
                del self._states[gpu]
                self._news.pop(gpu, None)
            if state.withheld and not current.withheld:
                log.info("partitions are offered again", extra={"gpu": gpu, "after_s": WITHHELD_S})


def _remark(name: str) -> str:
    return (
        f"MIG partitions of {name} that do not exist yet are withheld from new claims for {WITHHELD_S / 60:.0f} "
        f"minutes: {LIMIT} times within {WITHIN_S / 60:.0f} minutes none could be created, because another process had "
        "the GPU open"
    )
