"""What a GpuNode says about the use of its GPUs, as values: what the exporter found and the node process believes.

The controller evicts from what stands here and nothing else. The schema is generated from
``config/schemas/gpu_node_usage.py``.
"""

from typing import Final

from msgspec import Struct

from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction

MAX_TOLD: Final = 32
"""Of each kind, so that the object stays small."""
MAX_TOLD_PODS: Final = 4


class ToldPod(Struct, frozen=True, kw_only=True):
    """A pod in the claim's namespace."""

    name: str
    uid: str


class ToldOverGrant(Struct, frozen=True, kw_only=True):
    """A claim over its grant on ``gpu`` (``gpu-0``). ``used`` and ``granted`` are quantities, ``since`` is RFC 3339.

    ``pods`` are those with processes there, the one with most memory first. With ``action`` Evict the controller evicts
    the first of them when this still stands after ``grace_s`` seconds.
    """

    namespace: str
    claim: str
    claim_uid: str
    gpu: str
    pods: tuple[ToldPod, ...]
    used: str
    granted: str
    processes: int
    since: str
    action: OverGrantAction = OverGrantAction.REPORT
    grace_s: int = 60


class ToldForeign(Struct, frozen=True, kw_only=True):
    """Processes on ``gpu`` that belong to no claim; ``memory`` is a quantity, None where it is not known."""

    gpu: str
    processes: int
    memory: str | None
    since: str
    commands: tuple[str, ...] = ()


class ToldIdle(Struct, frozen=True, kw_only=True):
    """A claim without use since ``since``. With ``action`` Reclaim the controller evicts its pods when this still
    stands after ``after_min`` minutes more."""

    namespace: str
    claim: str
    claim_uid: str
    since: str
    after_min: int
    action: IdleAction = IdleAction.REPORT


class ToldUsage(Struct, frozen=True, kw_only=True):
    """All of one node.

    ``checked_at`` (RFC 3339) is renewed several times a minute while the controller is asked to act: without that, an
    entry of a node process that has ended would stand for ever. None while it is not asked.
    """

    over_grant: tuple[ToldOverGrant, ...] = ()
    unattributed: tuple[ToldForeign, ...] = ()
    idle: tuple[ToldIdle, ...] = ()
    checked_at: str | None = None

    @property
    def asks(self) -> bool:
        """Whether the controller is asked to act."""
        evicts = any(each.action is OverGrantAction.EVICT for each in self.over_grant)
        return evicts or any(each.action is IdleAction.RECLAIM for each in self.idle)


NO_USAGE: Final = ToldUsage()
