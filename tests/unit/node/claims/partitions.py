"""What the tests of partitions have in common."""

from dra_driver.core.model.mig import MigInstance
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from tests.unit.node.claims.conftest import Run

SMALL, HALF = "1g.10gb", "3g.40gb"


def hardware(run: Run) -> SimulatedBackend:
    assert run.node.backend is not None
    return run.node.backend


def instances(run: Run, minor: int = 0) -> tuple[MigInstance, ...]:
    return run.node.gpus[minor].mig_instances
