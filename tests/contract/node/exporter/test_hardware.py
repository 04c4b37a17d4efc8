"""Which GPUs an exporter reads: through NVML, from the library below the driver root."""

from pathlib import Path

import pytest

from dra_driver.config.exporter_settings import ExporterSettings
from dra_driver.config.options import load
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.node.exporter.process import choose
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.fakes.nvml.sysfs import write_sysfs


def test_real_gpus_are_read_through_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason := library.reason_why_not():
        pytest.skip(reason)
    folder = tmp_path / "root/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    library.build(folder)
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "state"))
    node = parse_groups("2xh100-sxm5-80gb", "node-a")
    write_sysfs(tmp_path / "sys", node)
    state = State.create(tmp_path / "state", node)
    settings = load(ExporterSettings, {"node_name": "node-a", "driver_root": str(tmp_path / "root")}, {})
    backend = choose(settings, tmp_path)
    try:
        assert {each.gpu_uuid for each in backend.usage()} == {item.gpu.uuid for item in node.gpus}
        backend.close()
        assert not state.opened()
        assert len(backend.usage()) == 2
    finally:
        backend.close()
        state.close()
