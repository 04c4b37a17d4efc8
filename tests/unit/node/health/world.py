"""Events, readings and clocks of one node, in short form for tests."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_driver.core.model.health import (
    HealthCause,
    HealthCondition,
    HealthEvent,
    HealthEventKind,
    HealthReading,
    RecoveryAction,
    Severity,
)
from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.core.model.ids import GpuUuid
from dra_driver.node.health import NodeHealth
from dra_driver.node.health.fault import FaultKey, FaultPhase, Faults, HealthFault
from dra_driver.node.health.machine import Moment

GPU = GpuUuid("GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")
OTHER = GpuUuid("GPU-00000000-0000-0000-0000-000000000001")
WALL = 1_700_000_000.0


def at(clock: float, rules: HealthRules = DEFAULT_RULES, longest_calm_s: float | None = None) -> Moment:
    return Moment(clock=clock, wall=WALL + clock, rules=rules, longest_calm_s=longest_calm_s)


def xid(number: int, *, gi_id: int | None = None, gpu: GpuUuid = GPU, count: int = 1) -> HealthEvent:
    return HealthEvent(kind=HealthEventKind.XID, gpu_uuid=gpu, xid=number, gi_id=gi_id, count=count)


def ecc(*, gi_id: int | None = None) -> HealthEvent:
    return HealthEvent(kind=HealthEventKind.DOUBLE_BIT_ECC, gpu_uuid=GPU, gi_id=gi_id)


def condition(**changes: Any) -> HealthCondition:
    given = {"cause": HealthCause.XID, "gpu_uuid": GPU, "severity": Severity.NO_NEW_CLAIMS, "value": "79", "since": 1.0}
    return HealthCondition(**{**given, "message": "XID 79", **changes})


def reading(**fields: Any) -> HealthReading:
    return HealthReading(**{"gpu_uuid": GPU, **fields})


FINE = {
    "recovery_action": RecoveryAction.NONE,
    "rows_pending": False,
    "rows_failed": False,
    "pages_pending": False,
    "links_down": (),
    "fabric_unhealthy": "",
}
"""Fields of a reading of a healthy GPU whose driver reports everything."""


def fault(faults: Faults, cause: HealthCause, number: int = 0, gi_id: int | None = None) -> HealthFault:
    return faults[FaultKey(gi_id, cause, number)]


def phase(faults: Faults, cause: HealthCause, number: int = 0, gi_id: int | None = None) -> FaultPhase:
    return fault(faults, cause, number, gi_id).phase


@dataclass
class Node:
    """The clocks and the boot of a node; ``rules`` are those of every GPU."""

    folder: Path
    now: float = 1000.0
    boot_id: str = "boot-1"
    wall_shift: float = WALL
    rules: dict[GpuUuid, HealthRules] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.folder / "health.json"

    def open(self, calm_s: float | None = None) -> NodeHealth:
        return NodeHealth.open(
            self.path,
            boot_id=self.boot_id,
            wall_clock=lambda: self.now + self.wall_shift,
            clock=lambda: self.now,
            calm_s=calm_s,
            rules=self.rules_of,
        )

    def rules_of(self, gpu: GpuUuid) -> HealthRules:
        return self.rules.get(gpu, DEFAULT_RULES)

    def reboot(self) -> None:
        self.boot_id = f"{self.boot_id}+"
        self.now = 5.0

    def run(self, health: NodeHealth, seconds: float, look: Callable[[], HealthReading] | None = None) -> None:
        for second in range(int(seconds)):
            self.now += 1.0
            if look is not None and second % 5 == 0:
                health.look([look()], {})
            health.tick()


def told(health: NodeHealth) -> list[tuple[str, str, str]]:
    return [(one.cause.value, one.value, one.severity.value) for one in health.conditions()]
