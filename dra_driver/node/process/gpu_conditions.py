"""Taint or withhold devices of GPUs that cannot serve new claims now.

- `FabricWatch`: CUDA fails with error 802 on a GPU whose NVLink fabric is not ready (``core/model/fabric.py``). A
prepare waits for the fabric (``claims/hardware/apply.py``); whole GPUs are tainted for longer waits. Partitions do not
use the fabric.

- `PartitionWithholding`: withholds partitions that could not be created (``hardware/mig/manager.py``), in memory.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.fabric import Fabric
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, WithheldPartitions, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.mig.manager import LIMIT, NO_REFUSALS, WITHHELD_S, WITHIN_S, CutRefusals, after_refusal, at
from dra_driver.node.process.node_events import Warn

log = logging.getLogger(__name__)

TAINT: Final = Taint(key="gpu.dra-driver.io/creation-refused", value="in-use", effect="NoSchedule")
KEY: Final = "gpu.dra-driver.io/fabric-not-ready"
GRACE_S: Final = 20.0
"""Seconds; a probe takes a few. Shorter than a prepare waits."""


class FabricHistory(Struct, frozen=True, kw_only=True):
    not_ready_since: float | None = None
    was_ready: bool = False


def after_look(history: FabricHistory, gpu: Gpu, now: float) -> FabricHistory:
    """The history after a poll of ``gpu`` at ``now``. A clock that jumps back restarts the grace period."""
    is_cut = bool(gpu.mig_instances) or (gpu.mig_enabled and not gpu.mig_mode_owned)
    if gpu.fabric is None or gpu.fabric.is_ready or is_cut:
        return FabricHistory(was_ready=True)
    since = now if history.not_ready_since is None else min(history.not_ready_since, now)
    return replace(history, not_ready_since=since)


def taint_of(history: FabricHistory, fabric: Fabric | None, now: float) -> Taint | None:
    """The taint of a GPU with that history and state, or None.

    A GPU whose fabric was ready, or whose last partition was destroyed, gets `GRACE_S`: it is probed again. A GPU is
    tainted immediately at its first poll and after a failed probe.
    """
    if history.not_ready_since is None or fabric is None:
        return None
    if fabric.has_failed:
        return Taint(key=KEY, value=f"status-{fabric.status}", effect="NoSchedule")
    if history.was_ready and now - history.not_ready_since < GRACE_S:
        return None
    return Taint(key=KEY, value="probing", effect="NoSchedule")


class FabricWatch:
    """The fabric of the node's GPUs. Thread-safe; no method raises."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # guards the fields below
        self._histories: dict[GpuUuid, FabricHistory] = {}
        self._tainted: dict[GpuUuid, str] = {}  # a sentence for each GPU
        self._news: dict[GpuUuid, str] = {}  # GPUs without an event yet

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        now = self._clock()
        with self._lock:
            before = self._histories
            self._histories = {
                gpu.uuid: after_look(before.get(gpu.uuid, FabricHistory()), gpu, now) for gpu in snapshot.gpus
            }
            taints = {gpu: taint_of(self._histories[gpu.uuid], gpu.fabric, now) for gpu in snapshot.gpus}
            self._note({gpu.uuid: _sentence(gpu) for gpu, taint in taints.items() if taint is not None})
            return {
                gpu.uuid: replace(terms_of(terms, gpu.uuid), whole_taints=(taint,))
                for gpu, taint in taints.items()
                if taint is not None
            }

    def report(self, warn: Warn) -> None:
        with self._lock:
            news = dict(self._news)
        for gpu, sentence in news.items():
            if warn("FabricNotReady", sentence):
                with self._lock:
                    self._news.pop(gpu, None)

    @property
    def remarks(self) -> list[str]:
        with self._lock:
            return list(self._tainted.values())

    def _note(self, tainted: dict[GpuUuid, str]) -> None:
        for gpu, sentence in tainted.items():
            if self._tainted.get(gpu) != sentence:
                self._news[gpu] = sentence
                log.warning("the NVLink fabric of a GPU is not ready", extra={"gpu": gpu, "reason": sentence})
        for gpu in self._tainted.keys() - tainted.keys():
            self._news.pop(gpu, None)
            log.info("the NVLink fabric of a GPU is ready", extra={"gpu": gpu})
        self._tainted = tainted
        metrics.fabric_not_ready.set(len(tainted))


def _sentence(gpu: Gpu) -> str:
    if gpu.fabric is not None and gpu.fabric.has_failed:
        effect = "it cannot use NVLink"
    else:
        effect = "CUDA fails on it with error 802 (system not yet initialized)"
    return (
        f"{gpu.device_name} gets no new claims as a whole: its NVLink fabric is not ready (probe {gpu.fabric}), so "
        f"{effect}; check that Fabric Manager runs on this node in the driver's version (systemctl status "
        "nvidia-fabricmanager, /var/log/fabricmanager.log); a successful probe removes the taint"
    )


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
            log.info("partitions are published again: one was created", extra={"gpu": partition.gpu_uuid})

    def amend(self, snapshot: Snapshot, terms: Terms) -> Mapping[GpuUuid, GpuTerms]:
        with self._lock:
            now = self._clock()
            for gpu, state in list(self._states.items()):
                current = self._states[gpu] = at(state, now)
                if current == NO_REFUSALS:
                    del self._states[gpu]
                    self._news.pop(gpu, None)
                if state.withheld and not current.withheld:
                    log.info("partitions are published again", extra={"gpu": gpu, "after_s": WITHHELD_S})
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
        """Record an event for each GPU whose partitions are newly withheld, once."""
        with self._lock:
            news = {gpu: (self._names.get(gpu, gpu), reason) for gpu, reason in self._news.items()}
        for gpu, (name, reason) in news.items():
            if warn("PartitionsWithheld", f"{_remark(name)}; the last refusal: {reason}"):
                with self._lock:
                    self._news.pop(gpu, None)

    @property
    def remarks(self) -> list[str]:
        with self._lock:
            return [_remark(name) for gpu, name in self._names.items() if self._states.get(gpu, NO_REFUSALS).withheld]


def _remark(name: str) -> str:
    return (
        f"MIG partitions of {name} that do not exist yet are withheld from new claims for {WITHHELD_S / 60:.0f} "
        f"minutes: {LIMIT} attempts to create one failed within {WITHIN_S / 60:.0f} minutes, because another process "
        "had the GPU open"
    )
