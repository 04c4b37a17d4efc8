"""Forks of tests/harness/forked.py beside processes that an interpreter starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import forked

COMMAND = [sys.executable, "-m", "dra_driver.kubectl.commands.kubectl", "lint", "-"]


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess.Popen, "_execute_child", forked.start_or_fork)


def ended(folder: Path, *command: str, **environ: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [*COMMAND[:2], *command], cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("dra_driver.core.command_line.main", "version"),
        ("dra_driver.core.command_line.main", "kubelet-plugin", "--simulate", "1xl4-24gb"),
        ("dra_driver.kubectl.commands.kubectl", "lint", "pod.yaml"),
        ("dra_driver.kubectl.commands.kubectl", "lint", "--unknown"),
    ],
)
def test_fork_answers_as_a_started_command(
    command: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\n")
    forked.are_new.set()
    started = ended(tmp_path, *command, NODE_NAME="Not_A_Name")
    forked.are_new.clear()
    request.getfixturevalue("forks")
    assert ended(tmp_path, *command, NODE_NAME="Not_A_Name") == started


def test_fork_is_a_child_with_its_own_session_directory_and_streams(forks: None, tmp_path: Path) -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, cwd=tmp_path, start_new_session=True) as child:
        process = Path(f"/proc/{child.pid}")
        assert "harness.forked" in (process / "cmdline").read_text()
        assert f"PPid:\t{os.getpid()}\n" in (process / "status").read_text()
        assert os.getsid(child.pid) == child.pid
        assert (process / "cwd").readlink() == tmp_path
        assert {path.name for path in (process / "fd").iterdir()} <= {"0", "1", "2", "3"}
        child.kill()
    assert child.returncode == -9


def test_commands_with_settings_of_the_interpreter_are_started(forks: None) -> None:
    environ = {"PYTHONHASHSEED": "0"}
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, env=environ) as child:
        assert "harness.forked" not in Path(f"/proc/{child.pid}/cmdline").read_text()
        child.kill()
