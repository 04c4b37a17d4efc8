"""What a GPU may be published as: whole, shared, as partitions that could be made, as partitions that somebody made.

Pure. Owns the rule, per GPU:

=======================  ==================================================================================
MIG mode off             whole; every placement besides where the mode can be switched while the node runs
on, switched by us       the same, so that slices do not change while partitions come and go
on, switched by others   placements only: taking the mode away from its owner is not ours to do
=======================  ==================================================================================

A partition that somebody else made is published as it is, takes its placement and everything that overlaps it away, and
keeps the whole GPU back. Two forms that exclude each other are only published while counters tell the scheduler so, and
a GPU with shares in use only as one to be shared.
What the terms do not allow is left out silently: whoever wrote them knows, unless nothing at all is left although they
allow something. Everything else that is left out has a sentence. Refuses to know wire objects (``devices.py``).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dra_driver.mig.order import Placement, placement_order
from dra_driver.model.gpu import Gpu
from dra_driver.model.mig import MigInstance, PartitionId
from dra_driver.model.terms import GpuTerms, SharingTerms
from dra_driver.published.limits import MAX_DEVICES, MAX_TAINTS, is_taint
from dra_driver.slices import counters
from dra_driver.slices.gates import ApiServerFeatures


@dataclass(frozen=True, slots=True, kw_only=True)
class Forms:
    """What one GPU is published as, in this order, and why not as more.

    ``sharing`` belongs to the whole. ``left`` are the counters of ``placements``, empty where there are none.
    ``max_devices`` is the greatest number of devices that these terms allow whatever happens on the hardware.
    """

    whole: bool = False
    sharing: SharingTerms | None = None
    foreign_instances: tuple[MigInstance, ...] = ()
    placements: tuple[Placement, ...] = ()
    left: counters.Amounts
    max_devices: int = 1
    reasons: tuple[str, ...] = ()


def forms_of(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> Forms:
    """The rule. Deterministic; the order of placements is the order in which they are to be used."""
    if terms.policy and not terms.offered:
        return Forms(left={})  # hidden, as its policy says
    withheld = _withheld(gpu, terms, features)
    if withheld is not None:
        return Forms(left={}, reasons=(withheld,))
    reasons = _Reasons()
    foreign = [instance for instance in gpu.mig_instances if not instance.owned]
    whole = terms.whole and reasons.allowed_unless(_why_not_whole(gpu, foreign, features))
    sharing = terms.sharing if whole and reasons.allowed_unless(_why_not_shared(gpu, terms, features)) else None
    usable = [instance for instance in foreign if _is_usable(gpu, instance, reasons) and _allows(gpu, instance, terms)]
    allowed = _allowed(gpu, terms)
    left = counters.available(gpu, foreign) if allowed and features.counters else {}
    placements: Sequence[Placement] = ()
    if allowed and reasons.allowed_unless(_why_not_cut(gpu, features)):
        placements = [place for place in allowed if _is_free(place, foreign) and counters.leaves_enough(*place, left)]
    kept = MAX_DEVICES - len(usable) - whole
    if len(placements) > kept:
        reasons.allowed_unless(
            f"{gpu.device_name} has {len(placements)} placements, of which the first {kept} are offered: a slice "
            f"has room for {MAX_DEVICES} devices, and all of one GPU are in one slice"
        )
    if not (whole or usable or placements or reasons.found):
        reasons.allowed_unless(_why_nothing(gpu, terms, allowed))
    return Forms(
        whole=whole,
        sharing=sharing,
        foreign_instances=tuple(usable),
        placements=tuple(placements[:kept]),
        left=left if placements else {},
        max_devices=_max_devices(gpu, len(allowed), features),
        reasons=tuple(reasons.found),
    )


class _Reasons:
    """Collects sentences; a missing sentence is permission."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def allowed_unless(self, sentence: str | None) -> bool:
        """Whether there is nothing in the way."""
        if sentence is not None:
            self.found.append(sentence)
        return sentence is None


def _withheld(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    """Why nothing of the GPU is published at all."""
    by = _source(terms)
    if not terms.offered:
        return f"{gpu.device_name} is not offered, because its policies cannot be used; the log says why"
    if len(terms.taints) > MAX_TAINTS:
        return f"{gpu.device_name} is not offered: {by} gives it {len(terms.taints)} taints, at most {MAX_TAINTS} go"
    bad = next((taint.key for taint in terms.taints if not is_taint(taint.key, taint.value)), None)
    if bad is not None:
        return (
            f"{gpu.device_name} is not offered: {by} gives it the taint {bad!r}, which is not a label key with a value"
        )
    if terms.shares_in_use and not features.multi_allocation:
        # What shares consume is counted of a device that is published as shared. Exclusive, the GPU would look free to
        # a scheduler whose gate is still on, and so would its partitions, which only the shared device keeps away.
        return (
            f"{gpu.device_name} is not offered until its last share is released: the API server does not keep what "
            "sharing needs any more (feature gate DRAConsumableCapacity), without which its shares would not count"
        )
    if not features.taints and any(taint.effect != "None" for taint in terms.taints):
        # Without its taint it would be offered to everybody.
        if terms.waiting is not None:
            return (
                f"{gpu.device_name} is not offered until it is free ({terms.waiting}): the API server does not keep "
                "the taint that would keep new claims away (feature gate DRADeviceTaints)"
            )
        return (
            f"{gpu.device_name} is not offered: {by} taints it, and the API server does not keep taints "
            "(feature gate DRADeviceTaints)"
        )
    return None


def _why_nothing(gpu: Gpu, terms: GpuTerms, allowed: Sequence[Placement]) -> str:
    """For terms that allow only what this GPU cannot become now."""
    nothing = f"nothing of {gpu.device_name} is offered: {_source(terms)} allows MIG partitions only, and"
    if allowed:
        return f"{nothing} MIG instances that somebody else made are where they would be"
    if gpu.mig_profiles and not (gpu.mig_enabled or gpu.mig_resetless):
        return (
            f"{nothing} its MIG mode is off, which takes a reset of the GPU to change: an administrator can switch it "
            f"on (nvidia-smi -i {gpu.uuid} -mig 1)"
        )
    has = ", ".join(profile.name for profile in gpu.mig_profiles) or "none"
    return f"{nothing} no MIG profile that it has; it has {has}"


def _source(terms: GpuTerms) -> str:
    return f"policy {terms.policy}" if terms.policy else "its terms"


def _why_not_whole(gpu: Gpu, foreign: Sequence[MigInstance], features: ApiServerFeatures) -> str | None:
    name = gpu.device_name
    if gpu.mig_enabled and not gpu.mig_mode_owned:
        # In MIG mode the whole GPU runs nothing: only its instances do.
        return f"{name} is in MIG mode, which somebody else switched on: it is not offered whole until MIG mode is off"
    if foreign:
        return f"{name} is not offered whole while it has {len(foreign)} MIG instances that somebody else made"
    if gpu.mig_instances and not features.counters:
        return f"{name} is not offered whole until claims have given back their MIG partitions of it"
    return None


def _why_not_shared(gpu: Gpu, terms: GpuTerms, features: ApiServerFeatures) -> str | None:
    if terms.sharing is None or features.multi_allocation:
        return None
    return (
        f"{gpu.device_name} is offered to one claim at a time: the API server does not keep what sharing needs "
        "(feature gate DRAConsumableCapacity)"
    )


def _why_not_cut(gpu: Gpu, features: ApiServerFeatures) -> str | None:
    if not features.counters:
        return (
            f"MIG partitions of {gpu.device_name} that could be made are not offered: the API server does not keep "
            "counters (feature gate DRAPartitionableDevices), so they would be given away beside the whole GPU"
        )
    if gpu.memory_slices > counters.MAX_MEMORY_SLICES:
        return (
            f"MIG partitions of {gpu.device_name} are not offered: it has {gpu.memory_slices} memory slices, "
            f"a counter set has room for {counters.MAX_MEMORY_SLICES}"
        )
    return None


def _is_usable(gpu: Gpu, instance: MigInstance, reasons: _Reasons) -> bool:
    """Neither half made, nor cut in another way than into one device, nor of a size that nobody knows."""
    where = f"MIG instance {instance.profile_name} at memory slice {instance.start} of {gpu.device_name}"
    if instance.device is None:
        why = f"{where} is not offered: it has not exactly one compute instance that spans it; somebody else made it"
        return reasons.allowed_unless(why)
    if counters.profile_of(gpu, instance) is None:
        # Without capacities, a selector that compares one would end the allocation of its claim with an error of CEL.
        return reasons.allowed_unless(
            f"{where} is not offered: the driver tells neither its profile's size (nvmlDeviceGetGpuInstanceProfileInfo)"
            " nor its own (nvmlDeviceGetAttributes)"
        )
    return True


def _allows(gpu: Gpu, instance: MigInstance, terms: GpuTerms) -> bool:
    return terms.allows(PartitionId(gpu.uuid, instance.profile_id, instance.start))


def _allowed(gpu: Gpu, terms: GpuTerms) -> list[Placement]:
    """Placements that the terms allow, where the GPU can be cut without resetting it."""
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


def _max_devices(gpu: Gpu, allowed: int, features: ApiServerFeatures) -> int:
    """Without counters, only partitions that exist are published, of which none overlap."""
    if not allowed:
        return 1
    return min(MAX_DEVICES, 1 + allowed) if features.counters else max(1, gpu.memory_slices)
