"""What cleanup counts as this driver's."""

from pathlib import Path

from dra_driver.diagnose.node_state.cleanup import find_leftovers, foreign_files
from dra_driver.diagnose.node_state.state import Places

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


def places_in(folder: Path) -> Places:
    names = ("plugin", "registry", "cdi", "run", "shm")
    for name in names:
        (folder / name).mkdir()
    paths = {name: folder / name for name in names}
    return Places(driver="gpu.nvidia.com", **paths)


def names(places: Places) -> list[str]:
    return [each.path.name for each in find_leftovers(places, lambda _: None)]


def test_files_of_other_programs_stay_and_keep_the_folder(tmp_path: Path) -> None:
    """NVIDIA's own driver has the same name, and so the same folder."""
    places = places_in(tmp_path)
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


def test_locks_are_removed_last(tmp_path: Path) -> None:
    """Until then no node process starts on what is half removed."""
    places = places_in(tmp_path)
    for name in OWN:
        (places.plugin / name).write_text("")
    found = names(places)
    assert found.index("process.lock") > max(found.index(name) for name in OWN if not name.endswith(".lock"))


def test_a_link_in_shared_memory_is_not_followed(tmp_path: Path) -> None:
    """Any user makes files there; cleanup runs as root."""
    places = places_in(tmp_path)
    places.shm.rmdir()
    places.shm.symlink_to(places.cdi)
    assert "shm" not in names(places)
