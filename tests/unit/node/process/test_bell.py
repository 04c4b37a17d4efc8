"""A wait ends at a ring and when a folder changes, and not otherwise."""

import threading
from pathlib import Path

from dra_driver.node.process.bell import Bell
from dra_driver.node.process.maintenance import Chore, Maintenance

LONG_S, NOW_S = 20.0, 0.0


def test_a_ring_ends_one_wait(tmp_path: Path) -> None:
    bell = Bell([str(tmp_path)])
    assert bell.hears_folders
    assert not bell.wait(NOW_S)
    bell.ring()
    bell.ring()
    assert bell.wait(LONG_S)
    assert not bell.wait(NOW_S)


def test_files_that_come_and_go_end_the_wait(tmp_path: Path) -> None:
    """A socket that is removed, a file that is moved in; what is written into a file does not."""
    bell = Bell([str(tmp_path)])
    file = tmp_path / "dra.sock"
    file.write_text("")
    assert bell.wait(LONG_S)
    file.write_text("more")
    assert not bell.wait(NOW_S)
    file.unlink()
    assert bell.wait(LONG_S)
    assert not bell.wait(NOW_S)


def test_a_folder_that_is_replaced_is_watched_again(tmp_path: Path) -> None:
    """As when the plugins folder is wiped."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    bell = Bell([str(folder)])
    folder.rmdir()
    assert bell.wait(LONG_S)
    folder.mkdir()
    assert bell.wait(LONG_S)
    while bell.wait(NOW_S):
        pass
    (folder / "dra.sock").write_text("")
    assert bell.wait(LONG_S)


def test_a_bell_wakes_the_chores_and_their_end(tmp_path: Path) -> None:
    """A whole thread: the chore has an hour until it is due."""
    done = threading.Event()
    chore = Chore(name="c", every_s=3600.0, heard_s=3600.0, work=done.set)
    maintenance = Maintenance("test", [chore], bell=Bell([str(tmp_path)]))
    maintenance.start()
    (tmp_path / "detach").write_text("")
    assert done.wait(LONG_S)
    maintenance.stop(LONG_S)
    assert not maintenance._thread.is_alive()
