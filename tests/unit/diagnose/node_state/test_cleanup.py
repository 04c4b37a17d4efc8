"""When cleanup refuses, and what it removes where the plugin folder is gone."""

import os
from pathlib import Path

import pytest

from dra_driver.config.settings import NodeSettings, load_node_settings
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.files import lock_file
from dra_driver.diagnose.node_state.cleanup import clean_up
from dra_driver.diagnose.node_state.state import Places
from dra_driver.diagnose.node_state.stopped import no_mps_host
from tests.fakes.sharing import FakeHost
from tests.unit.diagnose.node_state.test_leftovers import places_in


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return places_in(tmp_path)


def settings_of(places: Places) -> NodeSettings:
    return load_node_settings({"node_name": "a", "cdi_dir": str(places.cdi)}, {})


def test_a_host_that_hangs_runs_as_well(places: Places) -> None:
    """Its daemons live, and would lose their folders and their file systems in memory."""
    host = FakeHost(places.mps).live()
    os.utime(places.mps / "host.lock", (0, 0))  # its last sign of life was long ago
    with pytest.raises(ConfigurationError, match="nothing was removed: an MPS host runs"):
        clean_up(settings_of(places), places)
    host.die()


def test_a_host_that_starts_during_the_cleanup_keeps_its_files(places: Places) -> None:
    """Its daemons would run on in folders that are gone. A shared lock hides it from the look before."""
    FakeHost(places.mps).live().die()
    held = lock_file(places.mps / "host.lock", shared=True)
    with pytest.raises(ConfigurationError, match="no file was removed: an MPS host runs"):
        clean_up(settings_of(places), places)
    assert (places.mps / "host.lock").exists()
    os.close(held)
    with no_mps_host(places.mps), pytest.raises(BlockingIOError):
        lock_file(places.mps / "host.lock")
    assert clean_up(settings_of(places), places).problems == ()
    assert not places.plugin.exists()


def test_without_the_folder_everything_else_is_removed(places: Places) -> None:
    """A person who removed the folder by hand finds the rest, and a dry run says the same as what is done then."""
    places.plugin.rmdir()
    (places.cdi / "k8s.gpu.nvidia.com-device_base.json").write_text("{}")
    (places.run / "left").mkdir()
    planned = clean_up(settings_of(places), places, dry_run=True).removed
    assert not places.plugin.exists()
    done = clean_up(settings_of(places), places)
    assert [text for text in planned if text not in done.removed] == []
    assert (done.problems, list(places.cdi.iterdir())) == ((), [])
    assert not places.run.exists()
    assert not places.plugin.exists()
    assert clean_up(settings_of(places), places).removed == ()
