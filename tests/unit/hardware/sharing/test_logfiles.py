"""Logs of daemons stay short, and their end stays readable."""

import os
from pathlib import Path

from dra_driver.hardware.sharing import supervise


def test_long_files_are_cut_and_their_end_is_kept(tmp_path: Path) -> None:
    """A chatty daemon must not fill the disk that the kubelet lives on."""
    line = b"0123456789abcde\n"
    descriptor = supervise.open_output(tmp_path)
    try:
        os.write(descriptor, line * (supervise.MAX_FILE // len(line) + 1000))
        os.write(descriptor, b"the last words\n")
        supervise.shorten_logs(tmp_path)
        os.write(descriptor, b"and on it goes\n")
    finally:
        os.close(descriptor)
    assert (tmp_path / "output.log").read_bytes() == b"and on it goes\n"
    kept = (tmp_path / "output.log.1").read_bytes()
    assert len(kept) == supervise.KEPT
    assert kept.endswith(b"the last words\n")


def test_short_files_links_and_folders_are_left_alone(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"x" * (supervise.MAX_FILE + 4096))
    folder = tmp_path / "log"
    folder.mkdir()
    (folder / "control.log").write_text("short\n")
    (folder / "link.log").symlink_to(outside)
    (folder / "folder").mkdir()
    supervise.shorten_logs(folder)
    supervise.shorten_logs(tmp_path / "missing")
    assert (folder / "control.log").read_text() == "short\n"
    assert outside.stat().st_size > supervise.MAX_FILE
    assert sorted(path.name for path in folder.iterdir()) == ["control.log", "folder", "link.log"]


def test_last_lines_are_the_end_of_what_was_printed_or_else_of_the_control_log(tmp_path: Path) -> None:
    assert supervise.last_lines(tmp_path) == ""
    (tmp_path / "control.log").write_text("started\nstopped\n")
    assert supervise.last_lines(tmp_path) == "started stopped"
    (tmp_path / "output.log").write_text("".join(f"line {number}\n" for number in range(1000)))
    assert supervise.last_lines(tmp_path) == "line 997 line 998 line 999"


def test_a_line_that_every_restart_repeats_is_shown_once(tmp_path: Path) -> None:
    """Kubernetes counts events with the same text as one, so the text does not grow with the restarts."""
    (tmp_path / "output.log").write_text("no such folder\n" * 3)
    assert supervise.last_lines(tmp_path) == "no such folder"
