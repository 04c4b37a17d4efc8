"""The face of the package: what the node process and the metrics use."""

from pathlib import Path

from dra_driver.health import NodeHealth
from dra_driver.model.health import HealthCause, HealthEvent, HealthEventKind
from dra_driver.model.ids import GpuUuid

GPU = GpuUuid("GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")


def test_an_xid_of_the_hardware_becomes_a_condition_and_an_application_error_does_not(tmp_path: Path) -> None:
    health = NodeHealth.open(tmp_path / "health.json", boot_id="boot-1")

    assert not health.observe([HealthEvent(kind=HealthEventKind.XID, gpu_uuid=GPU, xid=31)])
    assert health.observe([HealthEvent(kind=HealthEventKind.XID, gpu_uuid=GPU, xid=79)])
    assert [(c.cause, c.value) for c in health.conditions()] == [(HealthCause.XID, "79")]
    assert health.status().xids == {(GPU, "31"): 1, (GPU, "79"): 1}
