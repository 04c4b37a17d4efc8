"""Plan how each device of a claim is shared: shares by their policy, all other devices by their config. No I/O.

Configs of the device class come first, and a later config wins (kubernetes/dynamic-resource-allocation
``resourceclaim/resourceclaim.go``, ConfigForResult). An MPS daemon serves the GPU of one share, or all whole GPUs of a
claim under one config, or one partition; a shared partition has one daemon for all its claims. A container reaches one
daemon only (``CUDA_MPS_PIPE_DIRECTORY`` is one path).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct

from dra_driver.config.parameters import DeviceConfig, GpuConfig, GpuSharing, MigDeviceConfig, MpsLimits, decode
from dra_driver.core.errors import ClaimError, InvalidParametersError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef, OpaqueConfig
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import GpuTerms, Interval, SharingTerms, Strategy
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.sharing.mps import (
    group_daemon,
    memory_limits,
    shared_gpu_daemon,
    shared_partition_daemon,
)
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.kube.published import (
    ALL_PERCENT,
    COMPUTE_PERCENT,
    MEMORY,
    MIB,
    SHARES,
    default_percent,
    shareable_memory,
    total_memory,
)
from dra_driver.node.claims.entry import AssignedPartition, AssignedShare, AssignedSharing

_ORDER = {"FromClass": 0, "FromClaim": 1}
_WHAT = {GpuConfig: "a whole GPU", MigDeviceConfig: "a MIG partition"}

Kind = TypeVar("Kind", GpuConfig, MigDeviceConfig)


class DecodedConfig(Struct, frozen=True, kw_only=True):
    """One config with its parameters decoded; ``place`` is its location, for messages."""

    place: str
    requests: tuple[str, ...]
    parameters: DeviceConfig

    def names(self, result: AllocatedDevice) -> bool:
        """Return whether the config names the result's request, in full (``main/sub``) or by its base (``main``)."""
        return result.request in self.requests or result.base_request in self.requests


def decode_all(ref: ClaimRef, configs: Sequence[OpaqueConfig]) -> tuple[DecodedConfig, ...]:
    """Decode every config, lowest precedence first.

    Raises `InvalidParametersError` for the first invalid config, even where a later one would win: otherwise the
    mistake would show only when the later config is removed.
    """
    in_order = sorted(enumerate(configs), key=lambda item: _ORDER[item[1].source])  # stable
    return tuple(_decoded(ref, index, config) for index, config in in_order)


def config_for(
    result: AllocatedDevice, configs: Sequence[DecodedConfig], kind: type[Kind]
) -> tuple[DecodedConfig, Kind] | None:
    """Return the config of ``kind`` that applies to ``result``, and its parameters; or None.

    A config for all requests whose kind is for other devices is skipped. Raises `InvalidParametersError` when a config
    that names the request is of such a kind.
    """
    for config in reversed(configs):
        named = config.names(result)
        if not named and config.requests:
            continue
        if isinstance(config.parameters, kind):
            return config, config.parameters
        if named:
            raise InvalidParametersError(
                f"{config.place} is a {config.parameters.kind} for request {result.request}, "
                f"whose device {result.device} is {_WHAT[kind]}; use kind {kind.kind}"
            )
    return None


def _decoded(ref: ClaimRef, index: int, config: OpaqueConfig) -> DecodedConfig:
    place = f"config[{index}] ({config.source}) of claim {ref}"
    try:
        parameters = decode(config.parameters)
    except InvalidParametersError as error:
        owner = "device class" if config.source == "FromClass" else "claim"
        raise InvalidParametersError(f"{place}: {error}; correct the {owner}", source=config.source) from error
    return DecodedConfig(place=place, requests=config.requests, parameters=parameters)


class Granted(Struct, frozen=True, kw_only=True):
    """One result with its GPU, and its partition, share and sharing terms or None."""

    result: AllocatedDevice
    gpu: Gpu
    partition: AssignedPartition | None = None
    share: AssignedShare | None = None
    terms: SharingTerms | None = None


class PartitionGroup(Struct, frozen=True, kw_only=True):
    """Partitions (positions in the claim) under one MPS config. Their daemons need the UUIDs of existing partitions.
    ``limits`` None: partitions that the claim shares with others, each of whose shares has its own limits."""

    positions: tuple[int, ...]
    limits: MpsLimits | None


class SharingPlan(Struct, frozen=True, kw_only=True):
    """The sharing of each device, in the order of the results; None where nothing must be set up."""

    devices: tuple[AssignedSharing | None, ...]
    partition_groups: tuple[PartitionGroup, ...] = ()


class _Wish(Struct, frozen=True, kw_only=True):
    """A config's request for one device beyond the default."""

    position: int
    config: DecodedConfig
    strategy: Strategy
    mps: MpsLimits | None
    interval: Interval = Interval.DEFAULT


def sharing_plan(ref: ClaimRef, granted: Sequence[Granted], configs: Sequence[DecodedConfig]) -> SharingPlan:
    """Plan the sharing of the claim's devices. Admin access sets nothing up, whatever its config.

    Raises `InvalidParametersError` (a config of the wrong kind, one that contradicts the policy, limits that fit no
    device) and `ClaimError` (a container would have to reach several daemons).
    """
    found: dict[int, AssignedSharing] = dict(_shares(granted, configs))
    wishes = [wish for position, each in enumerate(granted) if (wish := _wish(position, each, configs))]
    for wish in wishes:
        found[wish.position] = AssignedSharing(strategy=wish.strategy, interval=wish.interval)
    groups = [group for group in _groups(wishes) if group[0].mps is not None]
    shared = tuple(at for at, each in found.items() if granted[at].partition and each.strategy is Strategy.MPS)
    of_partitions = [PartitionGroup(positions=shared, limits=None)] if shared else []
    for group in groups:
        positions, limits = tuple(wish.position for wish in group), group[0].mps or MpsLimits()
        if granted[positions[0]].partition is not None:
            _check_limits(group[0].config, limits, granted, positions)
            of_partitions.append(PartitionGroup(positions=positions, limits=limits))
            continue
        daemon = _gpu_daemon(ref.uid, group[0].config, [granted[at].gpu.uuid for at in positions], limits)
        found |= {at: AssignedSharing(strategy=Strategy.MPS, daemon=daemon) for at in positions}
    devices = tuple(found.get(position) for position in range(len(granted)))
    _check_reachable(ref, granted, devices)
    return SharingPlan(devices=devices, partition_groups=tuple(of_partitions))


def partition_daemons(claim: ClaimUid, group: PartitionGroup, uuids: Sequence[str]) -> Iterator[tuple[int, MpsDaemon]]:
    """The daemon of each partition of the group, by position. ``uuids`` are the partitions' UUIDs, in that order.

    Positions in per-device limits count in the group's sorted list of UUIDs. Raises `InvalidParametersError`.
    """
    if group.limits is None:
        yield from ((at, shared_partition_daemon(uuid)) for at, uuid in zip(group.positions, uuids, strict=True))
        return
    mib = memory_limits(group.limits, sorted(uuids))
    for position, uuid in zip(group.positions, uuids, strict=True):
        own = {uuid: f"{mib[uuid]}Mi"} if uuid in mib else {}
        limits = MpsLimits(default_percentage=group.limits.default_percentage, per_device=own)
        yield position, group_daemon(claim, gpus=(), partitions=(uuid,), limits=limits)


def _shares(granted: Sequence[Granted], configs: Sequence[DecodedConfig]) -> Iterator[tuple[int, AssignedSharing]]:
    for position, each in enumerate(granted):
        if each.share is not None and each.terms is not None:
            _check_share_config(each.result, each.terms, _config_of(each, configs))
            is_mps = each.terms.strategy is Strategy.MPS
            daemon = shared_gpu_daemon(each.gpu.uuid) if is_mps and each.partition is None else None
            interval = Interval.DEFAULT if is_mps else each.terms.interval
            yield (
                position,
                AssignedSharing(strategy=each.terms.strategy, interval=interval, share=each.share, daemon=daemon),
            )


def _wish(position: int, each: Granted, configs: Sequence[DecodedConfig]) -> _Wish | None:
    """The request of its config for a device that is not shared by policy; None for the default."""
    if each.share is not None:
        return None
    found = _config_of(each, configs)
    sharing = found[1].sharing if found is not None and not each.result.admin_access else None
    if found is None or sharing is None or sharing.asks_for is None:
        return None
    interval = sharing.interval if isinstance(sharing, GpuSharing) else Interval.DEFAULT
    return _Wish(position=position, config=found[0], strategy=sharing.strategy, interval=interval, mps=sharing.mps)


def _config_of(
    each: Granted, configs: Sequence[DecodedConfig]
) -> tuple[DecodedConfig, GpuConfig | MigDeviceConfig] | None:
    if each.partition is not None:
        return config_for(each.result, configs, MigDeviceConfig)
    return config_for(each.result, configs, GpuConfig)


def _groups(wishes: Iterable[_Wish]) -> list[list[_Wish]]:
    groups: dict[int, list[_Wish]] = {}
    for wish in wishes:
        groups.setdefault(id(wish.config), []).append(wish)
    return list(groups.values())


def _gpu_daemon(claim: ClaimUid, config: DecodedConfig, gpus: Sequence[GpuUuid], limits: MpsLimits) -> MpsDaemon:
    try:
        return group_daemon(claim, gpus=sorted(set(gpus)), partitions=(), limits=limits)
    except InvalidParametersError as error:
        raise InvalidParametersError(f"{config.place}: {error}") from error


def _check_limits(
    config: DecodedConfig, limits: MpsLimits, granted: Sequence[Granted], positions: Sequence[int]
) -> None:
    """Refuse before anything is created limits that `partition_daemons` refuses. Names replace future UUIDs."""
    parts = (granted[at].partition for at in positions)
    names = [part.live.uuid if part and part.live else f"MIG-{at}" for part, at in zip(parts, positions, strict=True)]
    try:
        memory_limits(limits, sorted(names))
    except InvalidParametersError as error:
        raise InvalidParametersError(f"{config.place}: {error}") from error


def _check_share_config(
    result: AllocatedDevice, terms: SharingTerms, found: tuple[DecodedConfig, GpuConfig | MigDeviceConfig] | None
) -> None:
    """Refuse a config that would change how the policy shares the device with other claims."""
    if found is None or found[1].sharing is None:
        return
    config, sharing = found[0], found[1].sharing
    interval = sharing.interval if isinstance(sharing, GpuSharing) else Interval.DEFAULT
    if sharing.strategy is not terms.strategy:
        wrong = f"requests {sharing.strategy}, but the node's policy shares that device by {terms.strategy}"
    elif interval is not Interval.DEFAULT and interval is not terms.interval:
        wrong = f"requests interval {interval}, but the node's policy sets {terms.interval} for all its shares"
    elif sharing.mps is not None and sharing.mps != MpsLimits():
        wrong = "sets MPS limits, but a share's limits are the memory and computePercent of its request"
    else:
        return
    raise InvalidParametersError(
        f"{config.place} {wrong}, and {result.device} is a share of it: remove the sharing section, or request all of "
        "the GPU",
        reason="SharingConflict",
    )


def _check_reachable(ref: ClaimRef, granted: Sequence[Granted], devices: Sequence[AssignedSharing | None]) -> None:
    pairs = [(each, sharing) for each, sharing in zip(granted, devices, strict=True) if sharing]
    under_mps = [(each, sharing) for each, sharing in pairs if sharing.strategy is Strategy.MPS]
    shares = [each.result.device for each, sharing in under_mps if sharing.share is not None]
    if len(shares) > 1:
        raise ClaimError(
            f"claim {ref} has {len(shares)} MPS shares ({', '.join(shares)}), but a container can talk to one MPS "
            "daemon only, and limits hold for one share: request one larger share, or put the shares into separate pods"
        )
    daemons = {
        (each.result.base_request, sharing.daemon.id if sharing.daemon else each.result.device)
        for each, sharing in under_mps
    }
    for request, count in Counter(request for request, _ in daemons).items():
        if count > 1:
            raise ClaimError(
                f"request {request} of claim {ref} has devices under {count} MPS daemons, one for each, but a "
                "container can talk to one only: use a separate request for each device, or do not use MPS"
            )


def share_of(ref: ClaimRef, result: AllocatedDevice, gpu: Gpu, terms: GpuTerms) -> AssignedShare | None:
    """Read the share of ``gpu``, or of a partition (`memory_view`), from the capacity that the scheduler wrote as
    consumed; None when it is the whole device.

    Source: ``consumedCapacity`` of ``DeviceRequestAllocationResult`` (KEP-5075). Published capacity is less than the
    GPU's memory by a reserve that a policy or another NVIDIA driver changes, so a share may exceed the capacity
    published now. Raises `ClaimError` for numbers that no scheduler can have written, and for a share of a GPU that is
    not shared.
    """
    total = total_memory(gpu)
    memory = _consumed(ref, result, MEMORY)
    percent = _consumed(ref, result, COMPUTE_PERCENT, least=0)
    count = _consumed(ref, result, SHARES)
    if _is_all(memory, gpu, terms) and percent in _alone(gpu, terms):
        return None
    if terms.sharing is None:
        policy = f"policy {terms.policy} does not share" if terms.policy else "no policy shares"
        raise ClaimError(
            f"device {result.device} of claim {ref} is allocated as a share, but {policy} that device now; "
            "delete the pod so that it is scheduled again",
            reason="GpuNotShared",
        )
    if percent is not None and percent > ALL_PERCENT:
        raise _broken(ref, result, f"{COMPUTE_PERCENT} is {percent}, expected 0 to {ALL_PERCENT}")
    if memory is not None and memory < MIB:
        raise _broken(ref, result, f"{MEMORY} is {memory} bytes, expected at least 1Mi")
    return AssignedShare(
        memory=memory,
        percent=ALL_PERCENT if percent is None else percent,
        # None where it was granted before there was a limit: the scheduler does not count it against a later one.
        count=0 if count is None else count,
        total_memory=total,
        max_shares=terms.sharing.max_shares,
    )


def _is_all(memory: int | None, gpu: Gpu, terms: GpuTerms) -> bool:
    """Return whether it is all of the GPU, or all that is published of it (by default, if it is no longer shared)."""
    total = total_memory(gpu)
    if memory is None or (total is not None and memory >= total):
        return True
    sharings = [terms.sharing] if terms.sharing is not None else [SharingTerms(strategy=each) for each in Strategy]
    return any(memory == shareable_memory(gpu, sharing) for sharing in sharings)


def _alone(gpu: Gpu, terms: GpuTerms) -> tuple[int | None, ...]:
    """The values of ``computePercent`` with which a claim for all memory requests no part of compute."""
    if terms.sharing is None or terms.sharing.default_share is not None:  # the default is a part of the GPU
        return (None, ALL_PERCENT)
    return (None, ALL_PERCENT, default_percent(gpu, terms.sharing))


def _consumed(ref: ClaimRef, result: AllocatedDevice, name: str, *, least: int = 1) -> int | None:
    """A consumed capacity, rounded up as the scheduler does; None when the device has no such capacity."""
    text = result.consumed_capacity.get(name) or result.consumed_capacity.get(f"{result.driver}/{name}")
    if text is None:
        return None
    try:
        amount = Quantity.parse(text).as_int()
    except ValueError as error:
        raise _broken(ref, result, f"{name}: {error}") from error
    if not least <= amount < 2**63:
        raise _broken(ref, result, f"{name} is {text}, expected at least {least} and less than 8Ei")
    return amount


def _broken(ref: ClaimRef, result: AllocatedDevice, what: str) -> ClaimError:
    return ClaimError(
        f"the allocation of claim {ref} is invalid: consumed capacity of {result.device}: {what}; "
        "delete the claim and create it again"
    )
