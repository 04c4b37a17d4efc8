"""Taints whole GPUs whose NVLink fabric is not ready, and reports them as events on the Node.

CUDA fails with error 802 on such a GPU (``core/model/fabric.py``). A prepare waits for the fabric (``claims/hardware/
fabric.py``). The taint keeps new claims away from what takes longer:

- A GPU whose fabric was ready, or whose last partition was destroyed, is probed again: it gets ``GRACE_S``.
- At the first look at a GPU, and after a probe that failed, it is tainted immediately.

Partitions do not use the fabric and are not tainted. The taint ends with the first look that finds the fabric ready.
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
from dra_driver.core.model.terms import GpuTerms, Taint, Terms, terms_of
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.node_events import Warn

log = logging.getLogger(__name__)

KEY: Final = "gpu.dra-driver.io/fabric-not-ready"
EVENT: Final = "FabricNotReady"
GRACE_S: Final = 20.0
"""Seconds; a probe takes a few. Shorter than a prepare waits."""


class FabricHistory(Struct, frozen=True, kw_only=True):
    """What is known about the fabric of one GPU: since when it is not ready, and whether it was before."""

    not_ready_since: float | None = None
    was_ready: bool = False


def after_look(history: FabricHistory, gpu: Gpu, now: float) -> FabricHistory:
    """The history after a look at ``gpu`` at ``now``. Pure. A clock that jumps back begins the grace again."""
    is_cut = bool(gpu.mig_instances) or (gpu.mig_enabled and not gpu.mig_mode_owned)
    if gpu.fabric is None or gpu.fabric.is_ready or is_cut:
        return FabricHistory(was_ready=True)
    since = now if history.not_ready_since is None else min(history.not_ready_since, now)
    return replace(history, not_ready_since=since)


def taint_of(history: FabricHistory, fabric: Fabric | None, now: float) -> Taint | None:
    """The taint of a GPU with that history and state, or None. Pure."""
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
        self._news: dict[GpuUuid, str] = {}  # those without an event yet

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
        """Record an event for each GPU that began to be tainted, once."""
        with self._lock:
            news = dict(self._news)
        for gpu, sentence in news.items():
            if warn(EVENT, sentence):
                with self._lock:
                    self._news.pop(gpu, None)

    @property
    def remarks(self) -> list[str]:
        """One sentence for each GPU that is tainted."""
        with self._lock:
            return list(self._tainted.values())

    def _note(self, tainted: dict[GpuUuid, str]) -> None:
        for gpu, sentence in tainted.items():
            if self._tainted.get(gpu) != sentence:
                self._news[gpu] = sentence
                log.warning("the NVLink fabric of a GPU is not ready", extra={"gpu": gpu, "reason": sentence})
        for gpu in self._tainted.keys() - tainted.keys():
            self._news.pop(gpu, None)
            log.info("the NVLink fabric of the GPU is ready", extra={"gpu": gpu})
        self._tainted = tainted
        metrics.fabric_not_ready.set(len(tainted))


def _sentence(gpu: Gpu) -> str:
    if gpu.fabric is not None and gpu.fabric.has_failed:
        effect = "it takes no part in NVLink"
    else:
        effect = "CUDA fails on it with error 802 (system not yet initialized)"
    return (
        f"{gpu.device_name} gets no new claims as a whole: its NVLink fabric is not ready (probe {gpu.fabric}), so "
        f"{effect}; see that Fabric Manager runs on this node in the driver's version (systemctl status "
        "nvidia-fabricmanager, /var/log/fabricmanager.log); the taint goes once the probe has succeeded"
    )
