"""Choose the policy that applies to each GPU, derive the GPU's terms, and keep a form in use until it is free. No I/O.

The matching policy of highest priority applies, whole: nothing is merged. Two of the same highest priority conflict
unless they give the same terms. Selection uses plain matchers: a CEL engine would need more memory on each node than
the rest of this package.

Newer terms never change a device of a running pod. They apply when the form in use is free:

    in use as          published until it is free
    whole, exclusive   the whole GPU, exclusive
    all of a shared    the whole GPU, shared by the newest terms: its claim consumed all capacity, which a scheduler
                       counts only for a shared GPU; otherwise it would allocate the GPU again
    shared             the whole GPU, shared with the same strategy and interval; the number of shares is the newest
    partitions         those partitions, each exclusive or shared with its strategy; everything else follows the
                       newest terms

Until then the remaining devices carry a taint (``gpu.dra-driver.io/draining``, NoSchedule): otherwise new claims would
keep the GPU in use.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from msgspec.structs import replace

from dra_driver.config.policy import Availability, GpuPolicy, GpuSelection
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.health_rules import DEFAULT_GRACE_S, GRACE_ATTRIBUTE
from dra_driver.core.model.mig import PartitionId
from dra_driver.core.model.terms import (
    DEFAULT_TERMS,
    Form,
    GpuTerms,
    Interval,
    SharingTerms,
    Strategy,
    Taint,
    Terms,
    Use,
)
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.mig.order import fixed_placements
from dra_driver.kube.published import names, shareable_memory

RESERVED_TAINT = "gpu.dra-driver.io/reserved"
CLOSED_TERMS = GpuTerms(offered=False)
_MAX_SHOWN_CONFLICTS = 3
_SPEC = {
    "whole": "forms.whole",
    "monitor": "forms.monitor",
    "mig_profiles": "forms.migProfiles",
    "mig_layout": "mig.layout",
    "mig_when_free": "mig.mode",
    "host_memory_bytes": "hostMemoryPerPod",
} | {name: name for name in ("availability", "sharing", "taints", "attributes", "rails", "health", "usage")}
"""Attributes of a policy that decide terms, and their fields in its spec."""


def resolve(policies: Sequence[GpuPolicy], snapshot: Snapshot, uses: Iterable[Use], node_name: str) -> Terms:
    """The terms of GPUs, except default terms; a form in use stays until it is free.

    Raises ConfigurationError, naming policies and GPU, when policies conflict for a GPU of this node, or one reserves
    all memory of a GPU.
    """
    terms, conflicts = survey(policies, snapshot, uses, node_name)
    if conflicts:
        raise ConfigurationError(first_of(conflicts, _MAX_SHOWN_CONFLICTS, " GPUs"))
    return terms


def first_of(sentences: Sequence[str], most: int, noun: str = "") -> str:
    """The first ``most`` sentences, and the number of omitted ones."""
    more = len(sentences) - most
    return "; ".join([*sentences[:most], *([f"and {more} more{noun}"] if more > 0 else [])])


def survey(
    policies: Sequence[GpuPolicy], snapshot: Snapshot, uses: Iterable[Use], node_name: str
) -> tuple[Terms, tuple[str, ...]]:
    """As `resolve`, but a GPU with conflicting policies is not offered; also returns the conflicts as sentences."""
    wanted: dict[str, GpuTerms] = {}
    conflicts: list[str] = []
    for gpu in snapshot.gpus:
        try:
            wanted[gpu.uuid] = wanted_terms(policies, gpu, node_name)
        except ConfigurationError as error:
            conflicts.append(str(error))
            wanted[gpu.uuid] = CLOSED_TERMS
    terms = _in_use(wanted, snapshot, uses)
    return {gpu: found for gpu, found in terms.items() if found != DEFAULT_TERMS}, tuple(conflicts)


def closed(snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
    return _in_use({gpu.uuid: CLOSED_TERMS for gpu in snapshot.gpus}, snapshot, uses)


def _in_use(wanted: Mapping[str, GpuTerms], snapshot: Snapshot, uses: Iterable[Use]) -> Terms:
    by_gpu: dict[str, list[Use]] = {}
    for use in uses:
        by_gpu.setdefault(use.gpu_uuid, []).append(use)
    return {gpu.uuid: keep_in_use(wanted[gpu.uuid], gpu, by_gpu.get(gpu.uuid, ())) for gpu in snapshot.gpus}


def wanted_terms(policies: Sequence[GpuPolicy], gpu: Gpu, node_name: str) -> GpuTerms:
    """The terms of a GPU by policies only, without its uses. Raises ConfigurationError as `resolve` does."""
    matching = sorted(
        (policy for policy in policies if matches(policy.select, gpu, node_name)),
        key=lambda policy: (-policy.priority, policy.name),
    )
    if not matching:
        return DEFAULT_TERMS
    first = matching[0]
    terms = _terms(first, gpu)
    _check_reserve(terms, gpu)
    _check_default_share(terms, gpu)
    for other in matching[1:]:
        if other.priority != first.priority:
            break
        if not agree((first, other), gpu):
            # Two that reserve a GPU differ in the taint, which names the policy.
            fields = {f"spec.{_SPEC[name]}" for name in _SPEC if getattr(first, name) != getattr(other, name)}
            different = ", ".join(sorted(fields))
            raise ConfigurationError(
                f"policies {first.name} and {other.name} both match {gpu.device_name} ({gpu.uuid}) with priority"
                f" {first.priority} and differ in {different or 'spec.availability'}:"
                " give one of them a higher priority, or let only one match"
            )
    return terms


def agree(policies: Sequence[GpuPolicy], gpu: Gpu) -> bool:
    if len(policies) < 2:
        return True
    first = _terms(policies[0], gpu)
    return all(_terms(other, gpu) == replace(first, policy=other.name) for other in policies[1:])


def matches(select: GpuSelection, gpu: Gpu, node_name: str) -> bool:
    """Return whether every set field matches. An unreported property does not match."""
    memory = gpu.memory_bytes
    return (
        like(node_name, select.node_names)
        and (select.uuids is None or gpu.uuid.lower() in select.uuids)
        and (select.minors is None or gpu.minor in select.minors)
        and (select.pci_bus_ids is None or (gpu.pci_bus_id or "").lower() in select.pci_bus_ids)
        and like(gpu.product_name, select.product_names)
        and like(gpu.architecture, select.architectures)
        and (select.min_memory_bytes is None or (memory is not None and memory >= select.min_memory_bytes))
        and (select.max_memory_bytes is None or (memory is not None and memory <= select.max_memory_bytes))
        and (select.mig_capable is None or gpu.mig_capable is select.mig_capable)
    )


def like(name: str | None, patterns: Sequence[str] | None) -> bool:
    """Return whether the name matches a shell pattern; without patterns every name does."""
    return patterns is None or (name is not None and any(fnmatchcase(name, pattern) for pattern in patterns))


def _terms(policy: GpuPolicy, gpu: Gpu) -> GpuTerms:
    if policy.availability is Availability.HIDDEN:
        return GpuTerms(policy=policy.name, offered=False, health=policy.health, usage=policy.usage)
    reserved = (Taint(key=RESERVED_TAINT, value=policy.name, effect="NoSchedule"),)
    profiles = (
        None
        if policy.mig_profiles is None
        else frozenset(p.profile_id for p in gpu.mig_profiles if like(p.name, policy.mig_profiles))
    )
    attributes = policy.attributes
    if policy.health.grace_s != DEFAULT_GRACE_S:  # the controller has to know it
        attributes = MappingProxyType({**attributes, GRACE_ATTRIBUTE: int(policy.health.grace_s)})
    rail = policy.rails.get((gpu.pci_bus_id or "").lower(), policy.rails.get(gpu.pcie_root or ""))
    if rail is not None:
        attributes = MappingProxyType({**attributes, names.RAIL: rail})
    return GpuTerms(
        policy=policy.name,
        whole=policy.whole,
        monitor=policy.monitor,
        profiles=profiles,
        layout=None if policy.mig_layout is None else _layout(policy, gpu),
        mig_mode=not policy.whole if policy.mig_when_free and gpu.mig_capable else None,
        sharing=policy.sharing if policy.whole else None,
        partition_sharing=_of_partitions(policy.sharing),
        host_memory_bytes=policy.host_memory_bytes,
        taints=(*(reserved if policy.availability is Availability.RESERVED else ()), *policy.taints),
        attributes=attributes,
        health=policy.health,
        usage=policy.usage,
    )


def _of_partitions(sharing: SharingTerms | None) -> SharingTerms | None:
    """The sharing of partitions, whose memory has no reserve of the driver, and whose GPU no time slice is set for."""
    if sharing is None or not sharing.mig_devices:
        return None
    return replace(sharing, interval=Interval.DEFAULT, reserved_bytes=None)


def _layout(policy: GpuPolicy, gpu: Gpu) -> frozenset[tuple[int, int]]:
    """The placements of the policy's layout on this GPU, none while NVML does not report its profiles (MIG mode off).
    Raises ConfigurationError when they do not fit."""
    if not gpu.mig_profiles and gpu.mig_capable and not gpu.mig_enabled:
        return frozenset()
    wanted = dict(policy.mig_layout or {})
    known = {profile.name: profile for profile in gpu.mig_profiles}
    unknown = [name for name in wanted if name not in known]
    every = [] if unknown else [known[name] for name, count in wanted.items() for _ in range(count)]
    found = fixed_placements(every)
    if found is not None:
        return frozenset((profile.profile_id, start) for profile, start in found)
    text = ", ".join(f"{count} x {name}" for name, count in wanted.items())
    why = f"it has no profile {', '.join(unknown)}" if unknown else "they do not fit on it together"
    raise ConfigurationError(
        f"policy {policy.name} divides {gpu.device_name} ({gpu.uuid}) into {text} (mig.layout), but {why}: its profiles"
        f" are {', '.join(known) or 'none'}; change the layout, or select other GPUs"
    )


def _check_reserve(terms: GpuTerms, gpu: Gpu) -> None:
    wanted = terms.sharing.reserved_bytes if terms.sharing is not None else None
    if wanted is None or gpu.memory_bytes is None or wanted < gpu.memory_bytes:
        return
    raise ConfigurationError(
        f"policy {terms.policy} reserves {Quantity.from_bytes(wanted)} of {gpu.device_name} ({gpu.uuid}), which has"
        f" {Quantity.from_bytes(gpu.memory_bytes)}: sharing.reservedMemory must leave memory for claims"
    )


def _check_default_share(terms: GpuTerms, gpu: Gpu) -> None:
    share = terms.sharing.default_share if terms.sharing is not None else None
    memory = shareable_memory(gpu, terms.sharing) if terms.sharing is not None else None
    if share is None or memory is None or share.memory_bytes <= memory:
        return
    raise ConfigurationError(
        f"policy {terms.policy} gives a claim without amounts {Quantity.from_bytes(share.memory_bytes)} of"
        f" {gpu.device_name} ({gpu.uuid}), which has {Quantity.from_bytes(memory)} for claims: lower"
        " sharing.defaultShare.memory, or exclude the GPU with select.minMemory"
    )


DRAINING_TAINT: Final = "gpu.dra-driver.io/draining"
_MAX_SHOWN: Final = 3
_SHARED_UNTIL_FREE: Final = SharingTerms(strategy=Strategy.TIME_SLICING)
"""For a shared GPU that one claim has as a whole, when newer terms do not share it: no claim gets a share of it."""


def keep_in_use(wanted: GpuTerms, gpu: Gpu, uses: Sequence[Use]) -> GpuTerms:
    """``wanted``, with the form that ``uses`` of this GPU keep; ``waiting`` says which terms wait for what."""
    partitions = frozenset(use.partition for use in uses if use.partition is not None)
    whole = [use for use in uses if use.form is not Form.PARTITION]
    if whole:
        held = _held(whole, wanted.sharing)
        return _whole_in_use(replace(wanted, shares_in_use=held is not None), held, partitions)
    if not partitions:
        return wanted
    sharing = {
        part: _held([use for use in uses if use.partition == part], wanted.partition_sharing) for part in partitions
    }
    return _cut_in_use(wanted, gpu, partitions, sharing)


def _held(uses: Sequence[Use], wanted: SharingTerms | None) -> SharingTerms | None:
    """The sharing of a device in use: of its shares, of one claim that has all of it, or None."""
    held = next((use.sharing for use in uses if use.sharing is not None), None)
    if held is None and any(use.of_shared for use in uses):
        return wanted or _SHARED_UNTIL_FREE
    return held


def _whole_in_use(wanted: GpuTerms, held: SharingTerms | None, partitions: frozenset[PartitionId]) -> GpuTerms:
    in_use, asked = ((each.strategy, each.interval) if each is not None else None for each in (held, wanted.sharing))
    if wanted.offered and wanted.whole and in_use == asked:
        return wanted
    kept = held
    if held is not None and wanted.sharing is not None and held.strategy is wanted.sharing.strategy:
        kept = replace(wanted.sharing, interval=held.interval)
    last = "its last share is" if held is not None else "it is"
    return replace(
        wanted,
        offered=True,
        whole=True,
        sharing=kept,
        profiles=wanted.profiles if wanted.offered else frozenset(),
        kept=partitions,
        taints=(*wanted.taints, _draining(wanted)),
        waiting=f"the GPU stays {_words(held)} until {last} released; then {_next(wanted, 'it')}",
    )


def _cut_in_use(
    wanted: GpuTerms,
    gpu: Gpu,
    partitions: frozenset[PartitionId],
    sharing: Mapping[PartitionId, SharingTerms | None],
) -> GpuTerms:
    kept = frozenset(part for part in partitions if not wanted.offered or not wanted.allows(part))
    after = wanted.partition_sharing
    other = {part: held for part, held in sharing.items() if (held and held.strategy) != (after and after.strategy)}
    if after is not None or other:
        wanted = replace(wanted, kept_sharing={part: other.get(part, after) for part in partitions})
    if not kept and not other:
        return wanted
    ends = f"the GPU is only what policy {wanted.policy} allows" if wanted.offered else _next(wanted, "the GPU")
    if not kept:
        ends = f"MIG devices are offered {_words(after)}" + (f" (policy {wanted.policy})" if wanted.policy else "")
    waiting = f"{_named(gpu, kept or frozenset(other))} until released; then {ends}"
    # Claims that share a partition under older terms would otherwise keep it in use.
    drain = not wanted.offered or wanted.profiles == frozenset() or any(other.values())
    return replace(
        wanted,
        offered=True,
        whole=wanted.whole and wanted.offered,
        profiles=wanted.profiles if wanted.offered else frozenset(),
        sharing=wanted.sharing if wanted.offered else None,
        kept=kept,
        taints=(*wanted.taints, *((_draining(wanted),) if drain else ())),
        waiting=waiting,
    )


def _draining(wanted: GpuTerms) -> Taint:
    return Taint(key=DRAINING_TAINT, value=wanted.policy, effect="NoSchedule")


def _named(gpu: Gpu, kept: frozenset[PartitionId]) -> str:
    names = []
    for part in sorted(kept):
        profile = gpu.profile(part.profile_id)
        names.append(f"{profile.name if profile else f'profile {part.profile_id}'} at memory slice {part.start}")
    more = len(names) - _MAX_SHOWN
    text = ", ".join(names[:_MAX_SHOWN]) + (f" and {more} more" if more > 0 else "")
    return f"MIG {text} {'stays' if len(names) == 1 else 'stay'}"


def _next(wanted: GpuTerms, subject: str) -> str:
    """The terms that apply when the GPU is free."""
    source = f" (policy {wanted.policy})" if wanted.policy else ""
    if not wanted.offered:
        return f"{subject} is no longer offered{source}"
    if not wanted.whole:
        return f"{subject} is offered as MIG partitions only{source}"
    return f"{subject} is offered {_words(wanted.sharing)}{source}"


def _words(sharing: SharingTerms | None) -> str:
    if sharing is None:
        return "exclusive"
    if sharing.strategy is Strategy.MPS:
        return "shared by MPS"
    return "time-sliced" if sharing.interval is Interval.DEFAULT else f"time-sliced with interval {sharing.interval}"
