"""Which hardware is chosen."""

from pathlib import Path

import pytest

from dra_driver.config.settings import load_node_settings
from dra_driver.errors import ConfigurationError
from dra_driver.kubelet import hardware

SETTINGS = load_node_settings({"node_name": "node-a", "simulate": "2xh100-sxm5-80gb"}, {})


def test_simulated_gpus_bring_their_own_driver_root(tmp_path: Path) -> None:
    """No file of the machine's own driver is used."""
    found = hardware.choose(SETTINGS, tmp_path)
    assert found.root().here("/").startswith(str(tmp_path / hardware.SIMULATED_ROOT))
    assert len(found.backend.snapshot().gpus) == 2
    assert Path(found.proc_devices).is_file()


def test_driver_root_that_cannot_be_written_is_a_wrong_configuration(tmp_path: Path) -> None:
    """It ends with status 2, as every start does that needs a person."""
    (tmp_path / hardware.SIMULATED_ROOT).write_text("in the way")
    with pytest.raises(ConfigurationError, match="cannot start without a driver root"):
        hardware.choose(SETTINGS, tmp_path)
