"""Decide a GPU's published forms: whole, shared, partitions that can be created, unmanaged partitions. No I/O.

    MIG mode off              whole; every placement, too, if the mode can be switched while the node runs
    on, enabled by driver     the same, so that ResourceSlices do not change when partitions are created or destroyed
    on, enabled by others     placements only: the driver does not disable a mode that it did not enable

An unmanaged instance is published as it is, excludes overlapping placements, and withholds the whole GPU. Forms that
exclude each other are published only while counters enforce it, and a device with shares in use only as shared. Each
omitted form has a reason, except forms that the terms do not allow while they allow another one.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MONITOR_SUFFIX, MigInstance, PartitionId
from dra_driver.core.model.terms import DETACHED_TAINT, GpuTerms, SharingTerms, Taint
from dra_driver.hardware.mig.order import Placement, placement_order
from dra_driver.kube.published import limits
from dra_driver.node.slices import counters
from dra_driver.node.slices.gates import ApiServerFeatures


class Forms(Struct, frozen=True, kw_only=True):
    """The forms of one GPU, in the order in which they are published, and reasons for omitted ones.

    ``sharing`` belongs to the whole GPU, ``shared`` are the partitions that claims may share. ``left`` are the counters
    of ``placements``, empty when there are none. ``withheld`` placements are tainted, because they do not exist and
    cannot be created now. ``max_devices`` is the most that these terms allow, whatever happens on the hardware.
    """

    whole: bool = False
    monitor: bool = False
    sharing: SharingTerms | None = None
    shared: frozenset[PartitionId] = frozenset()
    foreign_instances: tuple[MigInstance, ...] = ()
    placements: tuple[Placement, ...] = ()
    withheld: frozenset[Placement] = frozenset()
    left: counters.Amounts
    max_devices: int = 1
    reasons: tuple[str, ...] = ()


def forms_of(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> Forms:
    """Decide the forms of ``gpu``. Deterministic; placements are in order of preference."""
    if terms.policy and not terms.offered:
        return Forms(left={})  # hidden, as its policy says
    withheld = _withheld(gpu, terms, features)
    if withheld is not None:
        return Forms(left={}, reasons=(withheld,))
    reasons = _Reasons()
    foreign = [instance for instance in gpu.mig_instances if not instance.owned]
    monitor = terms.monitor and reasons.allowed_unless(_why_no_monitor(gpu, features))
    whole = terms.whole and reasons.allowed_unless(_why_not_whole(gpu, foreign, features))
    sharing = terms.sharing if whole and reasons.allowed_unless(_why_not_shared(gpu, terms, features)) else None
    usable = [
        instance
        for instance in foreign
        if _is_usable(gpu, instance, reasons)
        and terms.allows(PartitionId(gpu.uuid, instance.profile_id, instance.start))
        and reasons.allowed_unless(_why_unhealthy(gpu, instance, terms, features))
    ]
    allowed = _allowed(gpu, terms)
    left = counters.available(gpu, foreign) if allowed and features.counters else {}
    placements: Sequence[Placement] = ()
    if allowed and reasons.allowed_unless(_why_not_cut(gpu, terms, features)):
        placements = [place for place in allowed if _is_free(place, foreign) and counters.leaves_enough(*place, left)]
    placements, uncut = _withhold(gpu, terms, features, placements, reasons)
    kept, room = _room(features, placements, left, whole=whole, beside=len(usable) + whole + monitor)
    if len(placements) > kept:
        reasons.allowed_unless(
            f"{gpu.device_name} has {len(placements)} placements, of which the first {kept} are offered: a "
            f"ResourceSlice has room for {room}, and all of one GPU are in one ResourceSlice"
        )
    if not (whole or usable or placements or reasons.found):
        reasons.allowed_unless(_why_nothing(gpu, terms, allowed))
    if terms.partition_sharing is not None and (usable or placements):
        reasons.allowed_unless(_why_parts_not_shared(gpu, features, cut=bool(placements)))
    max_devices = 1
    if allowed:  # without counters, only existing partitions are published, which never overlap
        max_devices = min(limits.MAX_DEVICES, 1 + len(allowed)) if features.counters else max(1, gpu.memory_slices)
    return Forms(
        whole=whole,
        monitor=monitor,
        sharing=sharing,
        shared=_shared(gpu, terms, features, usable, placements),
        foreign_instances=tuple(usable),
        placements=tuple(placements[:kept]),
        withheld=uncut if features.taints else frozenset(),
        left=left if placements else {},
        max_devices=min(limits.MAX_DEVICES, max_devices + monitor),
        reasons=tuple(reasons.found),
    )


class _Reasons:
    def __init__(self) -> None:
        self.found: list[str] = []

    def allowed_unless(self, sentence: str | None) -> bool:
        """True without a reason; otherwise keep the reason."""
        if sentence is not None:
            self.found.append(sentence)
        return sentence is None


def _withhold(
    gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures, placements: Sequence[Placement], reasons: _Reasons
) -> tuple[Sequence[Placement], frozenset[Placement]]:
    """Return the placements to publish, and the missing placements among them that the node cannot create now."""
    if terms.withheld is None:
        return placements, frozenset()
    existing = {(instance.profile_id, instance.start) for instance in gpu.mig_instances}
    uncut = frozenset(place for place in placements if (place[0].profile_id, place[1]) not in existing)
    if uncut:
        reasons.allowed_unless(terms.withheld.reason)
        if not features.taints:  # withdraw forms that need a taint, except refused ones: they would seem free again
            refused = terms.withheld.refused
            placements = [
                (profile, start)
                for profile, start in placements
                if (profile, start) not in uncut or PartitionId(gpu.uuid, profile.profile_id, start) in refused
            ]
    return placements, uncut


def _room(
    features: ApiServerFeatures, placements: Sequence[Placement], left: counters.Amounts, *, whole: bool, beside: int
) -> tuple[int, str]:
    """Return the number of placements beside ``beside`` other devices in a ResourceSlice, and the limit in words."""
    kept = limits.MAX_DEVICES - beside
    if features.counters_beside_devices:
        fitting = counters.placements_within(placements, left, limits.MAX_CONSUMED_COUNTERS_1_34, whole=whole)
        if fitting < kept:
            return fitting, f"{limits.MAX_CONSUMED_COUNTERS_1_34} counters consumed by its devices"
    return kept, f"{limits.MAX_DEVICES} devices"


def _shared(
    gpu: Gpu,
    terms: GpuTerms,
    features: ApiServerFeatures,
    usable: Sequence[MigInstance],
    placements: Sequence[Placement],
) -> frozenset[PartitionId]:
    """Return the partitions that several claims can share."""
    if not features.multi_allocation:
        return frozenset()
    places = [PartitionId(gpu.uuid, instance.profile_id, instance.start) for instance in usable]
    if not features.shares_hide_counters:
        places += [PartitionId(gpu.uuid, profile.profile_id, start) for profile, start in placements]
    return frozenset(place for place in places if terms.sharing_of(place))


def _withheld(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    """The reason why no form of the GPU is published."""
    by = _source(terms)
    if not terms.offered:
        return f"{gpu.device_name} is not offered, because its policies cannot be used; the log says why"
    if len(terms.taints) > limits.MAX_TAINTS:
        given = f"{by} gives it {len(terms.taints)} taints, expected at most {limits.MAX_TAINTS}"
        return f"{gpu.device_name} is not offered: {given}"
    bad = next((taint.key for taint in terms.taints if not limits.is_taint(taint.key, taint.value)), None)
    if bad is not None:
        return (
            f"{gpu.device_name} is not offered: {by} gives it the taint {bad!r}, which is not a label key with a value"
        )
    if features.shares_hide_counters and features.multi_allocation and _counted_shares(gpu, terms):
        return (
            f"{gpu.device_name} is not offered until the last share of its MIG devices is released: the scheduler of "
            "Kubernetes 1.35 does not charge counters for shares, and would allocate partitions beside them"
        )
    if not features.multi_allocation and (terms.shares_in_use or any(terms.kept_sharing.values())):
        # The scheduler counts shares against a device that is published as shared. Published as exclusive, the GPU and
        # its partitions would look free to a scheduler whose gate is still on.
        return (
            f"{gpu.device_name} is not offered until its last share is released: the API server no longer keeps the "
            "fields of shared devices (feature gate DRAConsumableCapacity), without which its shares would not count"
        )
    if not features.taints and (shown := _blocking(terms.condition_taints)):
        return (
            f"{gpu.device_name} is not offered while it is not healthy ({shown}): the API server does not keep the "
            "taint that would keep new claims away (feature gate DRADeviceTaints)"
        )
    if not features.taints and _blocking(terms.taints):
        # Without its taint it would be offered to all claims.
        if terms.waiting is not None:
            return (
                f"{gpu.device_name} is not offered until it is free ({terms.waiting}): the API server does not keep "
                "the taint that would keep new claims away (feature gate DRADeviceTaints)"
            )
        if any(taint.key == DETACHED_TAINT for taint in terms.taints):
            return (
                f"{gpu.device_name} is not offered while this driver has no NVIDIA driver to prepare claims with: the "
                "API server does not keep the taint that would keep new claims away (feature gate DRADeviceTaints)"
            )
        return (
            f"{gpu.device_name} is not offered: {by} taints it, and the API server does not keep taints "
            "(feature gate DRADeviceTaints)"
        )
    return None


def _why_nothing(gpu: Gpu, terms: GpuTerms, allowed: Sequence[Placement]) -> str:
    """For terms that allow only forms that this GPU cannot have now."""
    nothing = f"nothing of {gpu.device_name} is offered: {_source(terms)} allows MIG partitions only, and"
    if allowed:
        return f"{nothing} MIG instances of another manager take their place"
    if gpu.mig_capable and not (gpu.mig_enabled or gpu.mig_resetless):
        if terms.mig_mode:
            return f"{nothing} its MIG mode is off: the node process switches it on when nothing uses the GPU"
        return (
            f"{nothing} its MIG mode is off, and switching it on takes a reset of the GPU: run kubectl dra gpu "
            f"mig-mode NODE/{gpu.uuid} on, or set mig.mode: WhenFree in the policy"
        )
    has = ", ".join(profile.name for profile in gpu.mig_profiles) or "none"
    return f"{nothing} no MIG profile that it has; it has {has}"


def _source(terms: GpuTerms) -> str:
    return f"policy {terms.policy}" if terms.policy else "its terms"


def _why_not_whole(gpu: Gpu, foreign: Sequence[MigInstance], features: ApiServerFeatures) -> str | None:
    name = gpu.device_name
    if gpu.mig_enabled and not gpu.mig_mode_owned:
        # In MIG mode the whole GPU runs nothing: only its instances do.
        return (
            f"{name} is in MIG mode, which this driver did not switch on: it is not offered whole until MIG mode is off"
        )
    if foreign:
        return f"{name} is not offered whole while it has {len(foreign)} MIG instances of another manager"
    if gpu.mig_instances and not features.counters:
        return f"{name} is not offered whole until claims have released their MIG partitions of it"
    return None


def _why_no_monitor(gpu: Gpu, features: ApiServerFeatures) -> str | None:
    if features.taints:
        return None
    return (
        f"{gpu.device_name}{MONITOR_SUFFIX} is not published: the API server does not keep the taint that would keep"
        " claims without admin access away (feature gate DRADeviceTaints)"
    )


def _why_not_shared(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    if terms.sharing is None or features.multi_allocation:
        return None
    return (
        f"{gpu.device_name} is offered to one claim at a time: the API server does not keep the fields of shared "
        "devices (feature gate DRAConsumableCapacity)"
    )


def _why_parts_not_shared(gpu: Gpu, features: ApiServerFeatures, *, cut: bool) -> str | None:
    offered = f"MIG devices of {gpu.device_name} are offered to one claim at a time"
    if not features.multi_allocation:
        return (
            f"{offered}: the API server does not keep the fields of shared devices (feature gate DRAConsumableCapacity)"
        )
    if features.shares_hide_counters and cut:
        return (
            f"{offered}, except MIG devices of another manager: the scheduler of Kubernetes 1.35 does not charge "
            "counters for shares, and would allocate overlapping partitions"
        )
    return None


def _counted_shares(gpu: Gpu, terms: GpuTerms) -> bool:
    """Return whether claims share partitions that consume counters."""
    foreign = {(one.profile_id, one.start) for one in gpu.mig_instances if not one.owned}
    shared = (place for place, sharing in terms.kept_sharing.items() if sharing is not None)
    return any((place.profile_id, place.start) not in foreign for place in shared)


def _why_not_cut(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    if features.counters_refused:
        return (
            f"MIG partitions of {gpu.device_name} that do not exist yet are not offered: the API server keeps counters "
            "(feature gate DRAPartitionableDevices is on) but refuses how this driver arranges them (as Kubernetes "
            "1.34 or as 1.35 wants it); use a version of the driver that supports this version of Kubernetes"
        )
    if not features.counters:
        return (
            f"MIG partitions of {gpu.device_name} that do not exist yet are not offered: the API server does not "
            "keep counters (feature gate DRAPartitionableDevices), so they would be allocated beside the whole GPU"
        )
    if terms.shares_in_use and features.shares_hide_counters:
        return (
            f"MIG partitions of {gpu.device_name} are not offered until its last share is released: the scheduler of "
            "Kubernetes 1.35 does not charge counters for shares, and would allocate partitions beside them"
        )
    if gpu.memory_slices > counters.MAX_MEMORY_SLICES:
        return (
            f"MIG partitions of {gpu.device_name} are not offered: it has {gpu.memory_slices} memory slices, "
            f"a counter set has room for {counters.MAX_MEMORY_SLICES}"
        )
    return None


def _is_usable(gpu: Gpu, instance: MigInstance, reasons: _Reasons) -> bool:
    """False for an instance that is incomplete, split into several devices, or of unknown size."""
    where = f"MIG instance {instance.profile_name} at memory slice {instance.start} of {gpu.device_name}"
    if instance.device is None:
        why = f"{where} is not published: expected one compute instance that spans it; another manager created it"
        return reasons.allowed_unless(why)
    if counters.profile_of(gpu, instance) is None:
        # Without capacities, a selector that compares one would fail its claim's allocation with a CEL error.
        return reasons.allowed_unless(
            f"{where} is not published: the NVIDIA driver reports its size neither for the profile "
            "(nvmlDeviceGetGpuInstanceProfileInfo) nor for the instance (nvmlDeviceGetAttributes)"
        )
    return True


def _why_unhealthy(gpu: Gpu, instance: MigInstance, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    """For an unmanaged instance that cannot be tainted; it uses no counters. An instance of this driver belongs to a
    claim, and stays published so that its placement counts as taken."""
    taints = terms.partition_taints.get(PartitionId(gpu.uuid, instance.profile_id, instance.start), ())
    if features.taints or not (shown := _blocking(taints)):
        return None
    return (
        f"MIG instance {instance.profile_name} at memory slice {instance.start} of {gpu.device_name} is not offered "
        f"while it is not healthy ({shown}): the API server does not keep the taint that would keep new claims away "
        "(feature gate DRADeviceTaints)"
    )


def blocks(taint: Taint) -> bool:
    """Return whether it keeps new claims away."""
    return taint.effect != "None"


def _blocking(taints: Iterable[Taint]) -> str:
    """Keys and values of the taints that keep new claims away; "" for none."""
    return ", ".join(f"{taint.key}={taint.value}" if taint.value else taint.key for taint in taints if blocks(taint))


def _allowed(gpu: Gpu, terms: GpuTerms) -> list[Placement]:
    """Placements that the terms allow, where the GPU can be partitioned without a reset."""
    if not (gpu.mig_enabled or gpu.mig_resetless):
        return []
    return [
        (profile, start)
        for profile, start in placement_order(gpu.mig_profiles)
        if terms.allows(PartitionId(gpu.uuid, profile.profile_id, start))
    ]


def _is_free(place: Placement, foreign: Iterable[MigInstance]) -> bool:
    profile, start = place
    return not any(instance.overlaps(start, profile.memory_slices) for instance in foreign)
