"""Finding nvidia-smi below a driver root, and what is said when it does not do its work."""

from pathlib import Path

import pytest

from dra_driver.core.errors import CommandError
from dra_driver.hardware.driver_root import search
from dra_driver.hardware.sharing.timeslice import Smi


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_folders_are_searched_in_the_order_of_nvidias_tools(tmp_path: Path) -> None:
    expected = [script(tmp_path / folder.lstrip("/") / "nvidia-smi", "true") for folder in search.PROGRAM_FOLDERS]
    for path in expected:
        assert search.find_program(str(tmp_path), "nvidia-smi") == str(path)
        path.unlink()
    assert search.find_program(str(tmp_path), "nvidia-smi") is None


def test_links_stay_inside_the_root(tmp_path: Path) -> None:
    """Debian's /usr/bin/nvidia-smi is an absolute link into /etc/alternatives, which is below the root."""
    real = script(tmp_path / "usr/lib/nvidia/current/nvidia-smi", "true")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "etc/alternatives/nvidia-smi").symlink_to("/usr/lib/nvidia/current/nvidia-smi")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia-smi")
    assert search.find_program(str(tmp_path), "nvidia-smi") == str(real)


def test_what_cannot_be_executed_is_no_program(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", "true").chmod(0o644)
    (tmp_path / "bin/nvidia-smi").mkdir(parents=True)
    assert search.find_program(str(tmp_path), "nvidia-smi") is None


def test_a_missing_program_says_what_to_install_and_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"not below {tmp_path} .*/opt/bin, /usr/bin.* install .*--driver-root"):
        Smi(str(tmp_path)).run(["-L"], within_s=1.0)


def test_output_comes_back_and_arguments_go_in(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", 'echo "$#:$*:$LC_ALL:$EXTRA"')
    assert Smi(str(tmp_path), environment={"EXTRA": "x y"}).run(["a", "b c"], within_s=5.0) == "2:a b c:C:x y\n"


def test_failure_tells_status_and_output(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", 'echo "No permission"; exit 4')
    with pytest.raises(CommandError, match=r"`nvidia-smi -L` ended with status 4, expected status 0.*No permission"):
        Smi(str(tmp_path)).run(["-L"], within_s=5.0)
    script(tmp_path / "usr/bin/nvidia-smi", "kill -SEGV $$")
    with pytest.raises(CommandError, match="ended with signal 11"):
        Smi(str(tmp_path)).run(["-L"], within_s=5.0)


def test_a_hanging_program_is_killed_and_the_message_says_where_to_look(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", "echo waiting; sleep 60")
    with pytest.raises(CommandError, match=r"did not end within 0\.1 s and was killed; it printed: waiting.*Xid"):
        Smi(str(tmp_path)).run(["-L"], within_s=0.05)


def test_a_program_of_another_machine_is_a_sentence(tmp_path: Path) -> None:
    path = script(tmp_path / "usr/bin/nvidia-smi", "")
    path.write_bytes(b"\x7fELFnothing")
    with pytest.raises(CommandError, match="cannot be started: Exec format error"):
        Smi(str(tmp_path)).run(["-L"], within_s=1.0)


def test_the_roots_library_is_preloaded_unless_the_root_is_our_own(tmp_path: Path) -> None:
    """The program's own dependency would be looked for in this container, where there is none."""
    library = tmp_path / "usr/lib64/libnvidia-ml.so.580.65.06"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    library.with_name("libnvidia-ml.so.1").symlink_to(library.name)
    assert Smi(str(tmp_path))._surroundings()["LD_PRELOAD"] == str(library)
    assert "LD_PRELOAD" not in Smi("/")._surroundings()
    spaced = tmp_path / "with space"
    library.parent.parent.rename(spaced)
    assert "LD_PRELOAD" not in Smi(str(spaced))._surroundings()
