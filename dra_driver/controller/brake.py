"""Two limits that keep a false alarm from emptying the cluster. Pure.

*The pace.* At most N evictions a minute, spread evenly: one each 60/N s, and the first of a new leader 60/N s after it
began to lead. So the limit also holds across a restart or a takeover, without any memory of earlier evictions.

*The brake.* No eviction while more than a part of the fleet's GPUs became tainted within a window: broken hardware
comes one by one, while a wrong rule, a wrong policy or a broken driver version comes everywhere at once. The times are
those of the taints (``timeAdded``), so nothing is forgotten by a restart. At least `LEAST_GPUS` must be concerned: in a
fleet of four GPUs one broken GPU is 25 %, and it is the ordinary case for which eviction exists. Taints that a person
asked for (a drain) do not count.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from dra_driver.controller.fleet import Fleet, TaintedDevice
from dra_driver.model.drain import DRAINED_TAINT
from dra_driver.model.terms import DETACHED_TAINT

LEAST_GPUS: Final = 2
ASKED_FOR: Final = frozenset({DRAINED_TAINT, DETACHED_TAINT})
"""Keys of taints that a person asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeRules:
    """``percent`` of the fleet's GPUs within ``window_s`` seconds; 100 % switches the brake off."""

    percent: int
    window_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BrakeState:
    """``recent`` of ``fleet`` GPUs became tainted within the window; ``until`` is when the oldest leaves it."""

    on: bool
    recent: int
    fleet: int
    until: datetime | None = None


def brake_state(fleet: Fleet, rules: BrakeRules, now: datetime) -> BrakeState:
    """The brake at ``now``. Times ahead of ``now`` (a node's clock) count as recent."""
    begin = now - timedelta(seconds=rules.window_s)
    times = [at for at in _newest_by_gpu(fleet.tainted.values()).values() if at > begin]
    too_many = len(times) * 100 > rules.percent * len(fleet.gpus) and len(times) >= LEAST_GPUS
    until = min(times) + timedelta(seconds=rules.window_s) if too_many else None
    return BrakeState(on=too_many, recent=len(times), fleet=len(fleet.gpus), until=until)


def pace_s(per_minute: int) -> float:
    """Seconds between two evictions."""
    return 60.0 / per_minute


def _newest_by_gpu(devices: Iterable[TaintedDevice]) -> dict[str, datetime]:
    """When each GPU became tainted last; a partition's taint counts for its GPU."""
    newest: dict[str, datetime] = {}
    for device in devices:
        for taint in device.taints:
            if taint.key not in ASKED_FOR:
                newest[device.gpu] = max(taint.added, newest.get(device.gpu, taint.added))
    return newest
