"""Sentences about what a GpuNode says of the use of its GPUs. Pure."""

from collections.abc import Iterator

from dra_driver.core.model.gpu_node import ToldForeign, ToldIdle, ToldOverGrant, ToldUsage
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction


def of_gpu(usage: ToldUsage, gpu: str) -> Iterator[str]:
    """Claims over their grant on ``gpu`` (``gpu-0``), and processes of no claim."""
    yield from (_over_grant(each) for each in usage.over_grant if each.gpu == gpu)
    yield from (_foreign(each) for each in usage.unattributed if each.gpu == gpu)


def of_node(usage: ToldUsage) -> Iterator[str]:
    """All of the node, with the names of the GPUs, and idle claims."""
    yield from (f"{each.gpu}: {_over_grant(each)}" for each in usage.over_grant)
    yield from (f"{each.gpu}: {_foreign(each)}" for each in usage.unattributed)
    yield from map(_idle, usage.idle)


def _over_grant(found: ToldOverGrant) -> str:
    ends = f"; a pod is evicted after {found.grace_s} s" if found.action is OverGrantAction.EVICT else ""
    since = f" since {found.since}" if found.since else ""
    return f"claim {found.namespace}/{found.claim} uses {found.used} of {found.granted}{since}{ends}"


def _foreign(found: ToldForeign) -> str:
    count = "1 process belongs" if found.processes == 1 else f"{found.processes} processes belong"
    commands = f" ({', '.join(found.commands)})" if found.commands else ""
    memory = f" with {found.memory}" if found.memory else ""
    return f"{count} to no claim{memory}{commands}, since {found.since}"


def _idle(found: ToldIdle) -> str:
    ends = f"; its pods are evicted after {found.after_min} minutes more" if found.action is IdleAction.RECLAIM else ""
    return f"claim {found.namespace}/{found.claim} is idle since {found.since}{ends}"
