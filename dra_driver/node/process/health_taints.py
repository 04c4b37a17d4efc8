"""Conditions of GPUs and their instances as taints of published devices. Pure.

A condition of a GPU taints it in every form; one of a GPU instance taints the partition that is published for that
instance and no other. While the instance exists, counters keep what overlaps it from new claims; when it is destroyed,
its condition ends with it.

Keys are one per cause and stay. Those below ``gpu.nvidia.com`` are NVIDIA's driver's, so that tolerations written for
it work.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health import HealthCause, HealthCondition, Severity
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import Effect, GpuTerms, Taint, Terms, terms_of
from dra_driver.core.time import rfc3339
from dra_driver.kube.published import limits
from dra_driver.node.process.missing_gpus import Missing

KEYS: Final[Mapping[HealthCause, str]] = MappingProxyType(
    {
        HealthCause.XID: "gpu.nvidia.com/xid",
        HealthCause.LOST: "gpu.nvidia.com/gpu-lost",
        HealthCause.UNMONITORED: "gpu.nvidia.com/unmonitored",
        HealthCause.ECC: "gpu.dra-driver.io/ecc",
        HealthCause.HANG: "gpu.dra-driver.io/hung",
        HealthCause.ROW_REMAP: "gpu.dra-driver.io/row-remap",
        HealthCause.RETIRED_PAGES: "gpu.dra-driver.io/retired-pages",
        HealthCause.RECOVERY_ACTION: "gpu.dra-driver.io/recovery-action",
        HealthCause.NVLINK: "gpu.dra-driver.io/nvlink",
        HealthCause.FABRIC: "gpu.dra-driver.io/fabric-unhealthy",
    }
)
_GONE: Final = frozenset({HealthCause.LOST, HealthCause.HANG})


def amended(
    snapshot: Snapshot, terms: Terms, conditions: Iterable[HealthCondition], missing: Missing
) -> Mapping[GpuUuid, GpuTerms]:
    """New terms of the GPUs with conditions, and of missing ones, which are tainted in any case."""
    found: dict[GpuUuid, list[HealthCondition]] = defaultdict(list)
    for condition in conditions:
        found[condition.gpu_uuid].append(condition)
    affected = [gpu for gpu in snapshot.gpus if gpu.uuid in found or gpu.uuid in missing]
    return {gpu.uuid: _with(terms_of(terms, gpu.uuid), gpu, found[gpu.uuid], missing) for gpu in affected}


def taint_of(condition: HealthCondition) -> Taint | None:
    """The taint for a condition; None when it is only counted."""
    effect = _effect(condition)
    key, value = KEYS[condition.cause], condition.value
    if effect is None:
        return None
    return Taint(
        key=key,
        value=value if limits.is_taint(key, value) else "",
        effect=effect,
        time_added=rfc3339(condition.since),
    )


def partition_of(gpu: Gpu, gi_id: int) -> PartitionId | None:
    """The partition that is published for the GPU instance; None when it does not exist."""
    instance = next((each for each in gpu.mig_instances if each.gi_id == gi_id), None)
    return None if instance is None else PartitionId(gpu.uuid, instance.profile_id, instance.start)


def _effect(condition: HealthCondition) -> Effect | None:
    if condition.cause is HealthCause.UNMONITORED:
        return "None"
    match condition.severity:
        case Severity.EVICT:
            return "NoExecute"
        case Severity.NO_NEW_CLAIMS:
            return "NoSchedule"
        case Severity.COUNTED:
            return None


def _with(terms: GpuTerms, gpu: Gpu, conditions: Iterable[HealthCondition], missing: Missing) -> GpuTerms:
    whole: list[Taint] = []
    partitions: dict[PartitionId, list[Taint]] = defaultdict(list)
    for condition in conditions:
        place = None if condition.gi_id is None else partition_of(gpu, condition.gi_id)
        taint = taint_of(condition)
        if taint is None or (condition.gi_id is not None and place is None):
            continue
        (whole if place is None else partitions[place]).append(taint)
    gone = missing.get(gpu.uuid)
    if gone is not None and not {KEYS[cause] for cause in _GONE} & {taint.key for taint in whole}:
        # The condition follows at the next look. A taint that evicts only then would be written twice.
        evicts = HealthCause.LOST in terms.health.evicting_causes and not gone.awaited
        effect: Effect = "NoExecute" if evicts else "NoSchedule"
        whole.append(Taint(key=KEYS[HealthCause.LOST], effect=effect, time_added=rfc3339(gone.since)))
    return replace(
        terms,
        condition_taints=tuple(whole),
        partition_taints={place: tuple(taints) for place, taints in partitions.items()},
    )
