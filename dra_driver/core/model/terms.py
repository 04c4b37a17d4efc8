"""Values for the terms of a GPU (the forms that may be published) and for its uses."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct, field

from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, UsageRules

AttributeValue = str | int | bool
Effect = Literal["NoSchedule", "NoExecute", "None"]


class Strategy(StrEnum):
    """Strategy for several claims on one device. Names of ``GpuConfig`` (resource.nvidia.com/v1beta1)."""

    TIME_SLICING = "TimeSlicing"
    MPS = "MPS"


class Interval(StrEnum):
    """Length of a process's time slice while other processes wait; 0 to 3 in ``nvidia-smi compute-policy``."""

    DEFAULT = "Default"
    SHORT = "Short"
    MEDIUM = "Medium"
    LONG = "Long"

    @property
    def number(self) -> int:
        return list(Interval).index(self)


class Form(StrEnum):
    """The part of a GPU that a claim has."""

    WHOLE = "whole"
    PARTITION = "partition"
    SHARE = "share"


class DefaultShareTerms(Struct, frozen=True, kw_only=True):
    """The share of a claim without amounts: one of ``parts`` equal parts of the GPU, or ``memory_bytes`` and
    ``percent`` of the compute, where None is the percentage of the memory."""

    parts: int | None = None
    memory_bytes: int = 0
    percent: int | None = None


class SharingTerms(Struct, frozen=True, kw_only=True):
    """Sharing of a GPU by several claims. ``max_shares`` None: only memory and compute limit the number.
    ``default_percent`` is the compute of a claim that requests none: 100 leaves none for others, 0 is unlimited.
    ``reserved_bytes`` of the memory belong to no share; None for the needs of the driver and the MPS server. Without
    ``default_share``, a claim that requests no memory gets all of it. ``mig_devices``: partitions are shared, too."""

    strategy: Strategy
    interval: Interval = Interval.DEFAULT
    max_shares: int | None = None
    default_percent: int = 100
    reserved_bytes: int | None = None
    default_share: DefaultShareTerms | None = None
    mig_devices: bool = False


class Taint(Struct, frozen=True, kw_only=True):
    """A taint of the published device (KEP-5055). ``time_added`` is RFC 3339 in UTC; None: the API server sets it."""

    key: str
    effect: Effect
    value: str = ""
    time_added: str | None = None


DETACHED_TAINT: Final = "gpu.dra-driver.io/detached"
"""Key of the taint of all devices while this driver has no NVIDIA driver to prepare claims with, or is about to have
none; its value says why in a word."""


class WithheldPartitions(Struct, frozen=True, kw_only=True):
    """New claims must not get partitions that do not exist yet, for the ``reason``, a sentence.

    They stay published with ``taint``: the scheduler counts an unpublished partition as free, and a claim may already
    wait for one. Where the API server keeps no taints they are omitted, except ``refused``, which are allocated to such
    claims.
    """

    reason: str
    taint: Taint
    refused: frozenset[PartitionId] = frozenset()


class GpuTerms(Struct, frozen=True, kw_only=True):
    """The forms in which one GPU may be published. Default without a policy: whole or partitions, not shared.

    ``monitor``: a device for admin access only is published, too. ``profiles`` are ids of allowed MIG profiles, None
    for all; ``layout`` are the only placements, None for any. ``mig_mode`` is the wanted MIG mode of a GPU that needs a
    reset for it, None to leave it. ``sharing`` None is exclusive. ``host_memory_bytes`` is memory of the node that each
    pod with a device of the GPU is charged. ``kept`` are partitions in use that stay published although ``profiles``
    lacks them. ``shares_in_use``: claims have shares of the GPU, or all of it as a share; schedulers count those only
    while the GPU is published as shared. ``partition_sharing`` is the sharing of partitions, ``kept_sharing`` of
    partitions in use. ``policy`` is the applied policy, '' for none; ``waiting`` describes newer terms that wait until
    the GPU is free. ``health`` and ``usage`` apply immediately.

    Taints: ``condition_taints`` of the unhealthy GPU in every form, ``whole_taints`` of the whole GPU and its shares,
    ``partition_taints`` of single partitions. ``withheld`` is about partitions that do not exist yet.
    """

    policy: str = ""
    offered: bool = True
    whole: bool = True
    monitor: bool = False
    profiles: frozenset[int] | None = None
    layout: frozenset[tuple[int, int]] | None = None
    mig_mode: bool | None = None
    sharing: SharingTerms | None = None
    host_memory_bytes: int | None = None
    taints: tuple[Taint, ...] = ()
    attributes: Mapping[str, AttributeValue] = field(default_factory=lambda: MappingProxyType({}))
    kept: frozenset[PartitionId] = frozenset()
    shares_in_use: bool = False
    partition_sharing: SharingTerms | None = None
    kept_sharing: Mapping[PartitionId, SharingTerms | None] = field(default_factory=lambda: MappingProxyType({}))
    waiting: str | None = None
    health: HealthRules = DEFAULT_RULES
    usage: UsageRules = DEFAULT_USAGE
    condition_taints: tuple[Taint, ...] = ()
    whole_taints: tuple[Taint, ...] = ()
    partition_taints: Mapping[PartitionId, tuple[Taint, ...]] = field(default_factory=lambda: MappingProxyType({}))
    withheld: WithheldPartitions | None = None

    def allows(self, partition: PartitionId) -> bool:
        if partition in self.kept:
            return True
        if self.layout is not None and (partition.profile_id, partition.start) not in self.layout:
            return False
        return self.profiles is None or partition.profile_id in self.profiles

    def sharing_of(self, partition: PartitionId) -> SharingTerms | None:
        return self.kept_sharing.get(partition, self.partition_sharing)


Terms = Mapping[GpuUuid, GpuTerms]  # terms by GPU; a GPU without an entry has the default terms

DEFAULT_TERMS = GpuTerms()


def terms_of(terms: Terms, gpu_uuid: GpuUuid) -> GpuTerms:
    return terms.get(gpu_uuid, DEFAULT_TERMS)


class Use(Struct, frozen=True, kw_only=True):
    """A claim's use of one device, from the journal (admin access excluded), in any state of the claim. ``partition``
    is set for `Form.PARTITION`; ``created_by_driver`` is False for an instance that another claim or manager created.
    ``sharing`` are the terms of a share, of a GPU or of a partition. ``of_shared`` is True if the device was published
    as shared and the claim consumed all of it."""

    gpu_uuid: GpuUuid
    form: Form
    partition: PartitionId | None = None
    created_by_driver: bool = False
    sharing: SharingTerms | None = None
    of_shared: bool = False
