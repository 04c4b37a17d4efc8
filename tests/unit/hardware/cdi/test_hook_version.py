"""Reading the version of NVIDIA's hook, whatever the program does."""

import os
import time
from pathlib import Path

import pytest

from dra_driver.core.semver import Semver
from dra_driver.hardware.cdi.hook import HookVersions, UnknownVersionError, parse_version, print_version


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        # As the programs of NVIDIA/nvidia-container-toolkit print it (d34b3046, and v1.17.0 in its issue 204's report).
        ("NVIDIA CDI Hook version 1.20.0\ncommit: d34b3046758cb1a5db606b2a39519c731bbf9f56\n", Semver(1, 20, 0)),
        (
            "NVIDIA Container Toolkit CLI version 1.17.0\ncommit: 5bc031544833253e3ab6a36daec376dc13a4f479\n",
            Semver(1, 17, 0),
        ),
        ("NVIDIA CDI Hook version v1.18.2", Semver(1, 18, 2)),
        ("NVIDIA CDI Hook version 1.18.0-rc.1\n", Semver(1, 18, 0, ("rc", "1"))),
        ("a warning\nNVIDIA CDI Hook version 1.17.8\r\n", Semver(1, 17, 8)),
    ],
)
def test_the_version_is_read_from_its_line(printed: str, version: Semver) -> None:
    """The commit and warnings around it do not matter."""
    assert parse_version(printed.encode()) == version


@pytest.mark.parametrize(
    "printed",
    [
        b"",
        b"NVIDIA CDI Hook version unknown\n",
        b"NVIDIA CDI Hook version 1.17\n",
        b"NVIDIA CDI Hook version 01.17.8\n",
        b"NVIDIA CDI Hook version 99999999999999999999999.0.0\n",
        b"NVIDIA CDI Hook version 1.17.8 or so\n",
        b"1.18.0\n",
        b"\xff\xfe\x00\x1b[31mversion 1.18.0",
        b"NVIDIA CDI Hook version " + b"1" * 5000,
        b"x" * 10_000_000,
    ],
)
def test_nonsense_is_an_unknown_version_in_printable_words(printed: bytes) -> None:
    """The sentence goes to logs, so it holds no control characters and stays short."""
    with pytest.raises(UnknownVersionError) as caught:
        parse_version(printed)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_a_program_is_asked_for_its_version(tmp_path: Path) -> None:
    """Its standard error does not count."""
    path = program(tmp_path / "hook", 'echo noise >&2; [ "$1" = --version ] && echo "NVIDIA CDI Hook version 1.18.1"')
    assert HookVersions().read("/", path, path) == Semver(1, 18, 1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exit 3", "printed nothing and ended with status 3"),
        ("sleep 60", "did not end within"),
        ("trap '' TERM; echo NVIDIA; sleep 60 & wait", "did not end within"),
        ("while :; do echo nonsense nonsense nonsense; done", "did not end within"),
    ],
)
def test_a_program_that_misbehaves_takes_bounded_time(tmp_path: Path, body: str, said: str) -> None:
    """It is killed with its children, and the node goes on without the hook."""
    path = program(tmp_path / "hook", body)
    before = time.monotonic()
    with pytest.raises(UnknownVersionError, match=said):
        HookVersions(lambda root, program: print_version(root, program, 0.3)).read("/", path, path)
    assert time.monotonic() - before < 5


def test_a_program_that_cannot_start_is_one_sentence(tmp_path: Path) -> None:
    """A script without its interpreter, a file of another machine, a file that is gone."""
    broken = tmp_path / "hook"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    with pytest.raises(UnknownVersionError, match="cannot be started: Exec format error"):
        HookVersions().read("/", str(broken), str(broken))
    with pytest.raises(UnknownVersionError, match="cannot be read: No such file"):
        HookVersions().read("/", "/missing", str(tmp_path / "missing"))


def test_below_another_root_the_program_runs_in_that_root(tmp_path: Path) -> None:
    """A program of the host needs the host's libraries and paths; this root has none, so nothing of it can run."""
    program(tmp_path / "hook", "echo NVIDIA CDI Hook version 1.18.0")
    with pytest.raises(UnknownVersionError, match="its --version printed"):
        HookVersions().read(str(tmp_path), "/hook", str(tmp_path / "hook"))


def test_the_program_runs_again_only_after_its_file_changed(tmp_path: Path) -> None:
    """The base document is searched again after every change of the driver root; a failure is tried again each time."""
    ran: list[str] = []
    answers = [b"nonsense", b"NVIDIA CDI Hook version 1.17.7", b"NVIDIA CDI Hook version 1.18.0"]

    def run(root: str, path: str) -> bytes:
        ran.append(path)
        return answers[len(ran) - 1]

    file = tmp_path / "hook"
    file.write_bytes(b"")
    versions = HookVersions(run)
    with pytest.raises(UnknownVersionError):
        versions.read("/", "/hook", str(file))
    assert [versions.read("/", "/hook", str(file)) for _ in range(3)] == [Semver(1, 17, 7)] * 3
    os.utime(file, (1, 1))
    assert versions.read("/", "/hook", str(file)) == Semver(1, 18, 0)
    assert len(ran) == 3
