"""How each device of a claim will be shared: shares by their policy, all other devices by their config. Pure.

An MPS daemon serves the GPU of one share, or all whole GPUs of a claim to which one config applies, or one partition. A
container can talk to one daemon only (``CUDA_MPS_PIPE_DIRECTORY`` is one path). So a request whose devices are under
several daemons is refused: a container that uses the request gets all its devices.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from dra_driver.config.parameters import GpuConfig, MigDeviceConfig, MpsLimits
from dra_driver.core.errors import ClaimError, InvalidParametersError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.core.model.terms import Interval, SharingTerms, Strategy
from dra_driver.hardware.sharing.mps import group_daemon, memory_limits, shared_gpu_daemon
from dra_driver.hardware.sharing.mps_files import MpsDaemon
from dra_driver.node.claims.entry import AssignedPartition, AssignedShare, AssignedSharing
from dra_driver.node.claims.planning.configs import DecodedConfig, config_for


class Granted(Struct, frozen=True, kw_only=True):
    """One result with its GPU, and its partition, share and sharing terms or None."""

    result: AllocatedDevice
    gpu: Gpu
    partition: AssignedPartition | None = None
    share: AssignedShare | None = None
    terms: SharingTerms | None = None


class PartitionGroup(Struct, frozen=True, kw_only=True):
    """Partitions (positions in the claim) under one MPS config.

    Their daemons need UUIDs, which exist once the partitions do.
    """

    positions: tuple[int, ...]
    limits: MpsLimits


class SharingPlan(Struct, frozen=True, kw_only=True):
    """How each device is shared, in the order of the results; None where nothing has to be set up."""

    devices: tuple[AssignedSharing | None, ...]
    partition_groups: tuple[PartitionGroup, ...] = ()


class _Wish(Struct, frozen=True, kw_only=True):
    """What a config asks for one device beyond the default."""

    position: int
    config: DecodedConfig
    strategy: Strategy
    mps: MpsLimits | None
    interval: Interval = Interval.DEFAULT


def sharing_plan(ref: ClaimRef, granted: Sequence[Granted], configs: Sequence[DecodedConfig]) -> SharingPlan:
    """What to set up for the claim's devices. With admin access nothing is set up, whatever a config says.

    Raises `InvalidParametersError` (a config of the wrong kind, one that contradicts the policy, limits that fit no
    device) and `ClaimError` (a container would have to reach several daemons).
    """
    found: dict[int, AssignedSharing] = dict(_shares(granted, configs))
    wishes = [wish for position, each in enumerate(granted) if (wish := _wish(position, each, configs))]
    for wish in wishes:
        found[wish.position] = AssignedSharing(strategy=wish.strategy, interval=wish.interval)
    groups = [group for group in _groups(wishes) if group[0].mps is not None]
    of_partitions = []
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
    """The daemon of each partition of the group, by position. ``uuids`` are those of the partitions, in that order.

    Positions in per-device limits count in the group's sorted list of UUIDs. Raises `InvalidParametersError`.
    """
    mib = memory_limits(group.limits, sorted(uuids))
    for position, uuid in zip(group.positions, uuids, strict=True):
        own = {uuid: f"{mib[uuid]}Mi"} if uuid in mib else {}
        limits = MpsLimits(default_percentage=group.limits.default_percentage, per_device=own)
        yield position, group_daemon(claim, gpus=(), partitions=(uuid,), limits=limits)


def _shares(granted: Sequence[Granted], configs: Sequence[DecodedConfig]) -> Iterator[tuple[int, AssignedSharing]]:
    for position, each in enumerate(granted):
        if each.share is not None and each.terms is not None:
            _check_share_config(each.result, each.terms, config_for(each.result, configs, GpuConfig))
            daemon = shared_gpu_daemon(each.gpu.uuid) if each.terms.strategy is Strategy.MPS else None
            interval = each.terms.interval if daemon is None else Interval.DEFAULT
            yield (
                position,
                AssignedSharing(strategy=each.terms.strategy, interval=interval, share=each.share, daemon=daemon),
            )


def _wish(position: int, each: Granted, configs: Sequence[DecodedConfig]) -> _Wish | None:
    """What its config asks for a device that is not shared by policy; None for the default."""
    if each.share is not None:
        return None
    if each.partition is not None:
        of_partition = config_for(each.result, configs, MigDeviceConfig)
        if of_partition is None or each.result.admin_access:
            return None
        shared = of_partition[1].sharing
        if shared is None or shared.asks_for is None:
            return None
        return _Wish(position=position, config=of_partition[0], strategy=shared.strategy, mps=shared.mps)
    of_gpu = config_for(each.result, configs, GpuConfig)
    if of_gpu is None or each.result.admin_access:
        return None
    sharing = of_gpu[1].sharing
    if sharing is None or sharing.asks_for is None:
        return None
    return _Wish(
        position=position,
        config=of_gpu[0],
        strategy=sharing.strategy,
        interval=sharing.interval,
        mps=sharing.mps,
    )


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
    """Refuse before anything is created what `partition_daemons` would refuse. Names stand for UUIDs to come."""
    parts = (granted[at].partition for at in positions)
    names = [part.live.uuid if part and part.live else f"MIG-{at}" for part, at in zip(parts, positions, strict=True)]
    try:
        memory_limits(limits, sorted(names))
    except InvalidParametersError as error:
        raise InvalidParametersError(f"{config.place}: {error}") from error


def _check_share_config(
    result: AllocatedDevice, terms: SharingTerms, found: tuple[DecodedConfig, GpuConfig] | None
) -> None:
    """Refuse a config that would change how the policy shares the GPU: other claims use the GPU too."""
    if found is None or found[1].sharing is None:
        return
    config, sharing = found[0], found[1].sharing
    if sharing.strategy is not terms.strategy:
        wrong = f"asks for {sharing.strategy}, but the node's policy shares that GPU by {terms.strategy}"
    elif sharing.interval is not Interval.DEFAULT and sharing.interval is not terms.interval:
        wrong = f"asks for interval {sharing.interval}, but the node's policy sets {terms.interval} for all its shares"
    elif sharing.mps is not None and sharing.mps != MpsLimits():
        wrong = "sets MPS limits, but those of a share are the memory and computePercent that its request asks for"
    else:
        return
    raise InvalidParametersError(
        f"{config.place} {wrong}, and {result.device} is a share of it: remove the sharing section, or ask for all of "
        "the GPU"
    )


def _check_reachable(ref: ClaimRef, granted: Sequence[Granted], devices: Sequence[AssignedSharing | None]) -> None:
    pairs = [(each, sharing) for each, sharing in zip(granted, devices, strict=True) if sharing]
    under_mps = [(each, sharing) for each, sharing in pairs if sharing.strategy is Strategy.MPS]
    shares = [each.result.device for each, sharing in under_mps if sharing.share is not None]
    if len(shares) > 1:
        raise ClaimError(
            f"claim {ref} has {len(shares)} MPS shares ({', '.join(shares)}), but a container can talk to one MPS "
            "daemon only, and limits hold for one share: ask for one larger share, or for the others in other pods"
        )
    daemons = {
        (each.result.base_request, sharing.daemon.id if sharing.daemon else each.result.device)
        for each, sharing in under_mps
    }
    for request, count in Counter(request for request, _ in daemons).items():
        if count > 1:
            raise ClaimError(
                f"request {request} of claim {ref} has devices under {count} MPS daemons, one for each, but a "
                "container can talk to one only: ask for each device in a request of its own, or do not use MPS"
            )
