"""DRM nodes from sysfs."""

from pathlib import Path

import pytest

from dra_driver.hardware.cdi.found_nodes import DrmNode, drm_nodes
from dra_driver.hardware.device_nodes.numbers import NodeNumbers


def test_drm_nodes_come_from_sysfs(tmp_path: Path) -> None:
    """The GPU's own nodes only, with the numbers that sysfs gives; connectors and damaged files are left out."""
    folder = tmp_path / "bus/pci/devices/0000:65:00.0/drm"
    for name, content in {"card1": "226:1\n", "renderD129": "226:129\n", "card1-DP-1": "1:1\n", "card2": "x"}.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "dev").write_text(content)
    assert drm_nodes("0000:65:00.0", str(tmp_path)) == (
        DrmNode(name="card1", numbers=NodeNumbers(major=226, minor=1)),
        DrmNode(name="renderD129", numbers=NodeNumbers(major=226, minor=129)),
    )


@pytest.mark.parametrize("bus_id", [None, "", "../../../etc", "0000:65:00.0/..", "0000:66:00.0"])
def test_no_drm_nodes_without_a_gpu_of_that_address(tmp_path: Path, bus_id: str | None) -> None:
    """Compute-only modules and hostile addresses alike."""
    assert drm_nodes(bus_id, str(tmp_path)) == ()
