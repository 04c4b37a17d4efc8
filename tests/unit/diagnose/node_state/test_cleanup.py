"""Files that cleanup removes, and its refusals."""

import os
from pathlib import Path

import pytest

from dra_driver.config.settings import NodeSettings, load_node_settings
from dra_driver.core.errors import ConfigurationError
from dra_driver.core.files import lock_file
from dra_driver.diagnose.node_state.cleanup import clean_up, find_leftovers, foreign_files
from dra_driver.diagnose.node_state.state import Places
from dra_driver.diagnose.node_state.stopped import no_mps_host
from tests.fakes.sharing import FakeHost
from tests.harness.raising import fails

OWN = (
    "claim-status.json",
    "state.db",
    "state.db-wal",
    "state.db.damaged-20260101T000000Z",
    "claim-names",
    ".claim-names.0a1b2c3d.tmp",
    "health.json",
    "second-publisher.json",
    "owner-1.lock",
    "process.lock",
)
FOREIGN = ("checkpoint.json", "state.db2", ".other.tmp", "owner-1.txt")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    paths = {name: tmp_path / name for name in ("plugin", "registry", "cdi", "run", "shm")}
    for path in paths.values():
        path.mkdir()
    return Places(driver="gpu.nvidia.com", **paths)


def names(places: Places) -> list[str]:
    return [each.path.name for each in find_leftovers(places, lambda _: None)]


def test_files_of_other_programs_stay_and_keep_the_folder(places: Places) -> None:
    """NVIDIA's own driver has the same name, and so the same folder."""
    for name in (*OWN, *FOREIGN):
        (places.plugin / name).write_text("")
    (places.plugin / "made").mkdir()
    (places.plugin / "usage").mkdir()
    (places.cdi / "k8s.gpu.nvidia.com-claim_1.json").write_text("")
    (places.cdi / "k8s.gpu.nvidia.com-other.json").write_text("")
    (places.cdi / "nvidia.yaml").write_text("")
    (places.registry / "gpu.nvidia.com-reg.sock").write_text("no socket")
    assert sorted(names(places)) == sorted([*OWN, "made", "usage", "k8s.gpu.nvidia.com-claim_1.json", "run", "shm"])
    assert sorted(path.name for path in foreign_files(places)) == sorted(FOREIGN)
    for name in FOREIGN:
        (places.plugin / name).unlink()
    assert names(places)[-1] == "plugin"
    for each in list(find_leftovers(places, lambda _: None)):
        each.remove()
    assert not places.plugin.exists()


def test_locks_are_removed_last(places: Places) -> None:
    """Until then no node process starts on what is half removed."""
    for name in OWN:
        (places.plugin / name).write_text("")
    found = names(places)
    assert found.index("process.lock") > max(found.index(name) for name in OWN if not name.endswith(".lock"))


def test_a_link_in_shared_memory_is_not_followed(places: Places) -> None:
    """Any user makes files there; cleanup runs as root."""
    places.shm.rmdir()
    places.shm.symlink_to(places.cdi)
    assert "shm" not in names(places)


def settings_of(places: Places) -> NodeSettings:
    return load_node_settings({"node_name": "a", "cdi_dir": str(places.cdi)}, {})


def test_a_host_that_hangs_runs_as_well(places: Places) -> None:
    """Its daemons live, and would lose their folders and their file systems in memory."""
    host = FakeHost(places.mps).live()
    os.utime(places.mps / "host.lock", (0, 0))  # its last sign of life was long ago
    with fails(ConfigurationError, "CleanupRefused"):
        clean_up(settings_of(places), places)
    host.die()


def test_a_host_that_starts_during_the_cleanup_keeps_its_files(places: Places) -> None:
    """Its daemons would run on in folders that are gone. A shared lock hides it from the look before."""
    FakeHost(places.mps).live().die()
    held = lock_file(places.mps / "host.lock", shared=True)
    with fails(ConfigurationError, "MpsHostRuns"):
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
