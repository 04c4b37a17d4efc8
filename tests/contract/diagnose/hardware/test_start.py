"""How processes of checks are started."""

import subprocess
from pathlib import Path

import pytest

from dra_driver.diagnose.hardware import runner
from dra_driver.diagnose.hardware.child import Task, own_module
from dra_driver.diagnose.hardware.cuda import run_probe
from dra_driver.diagnose.hardware.cuda_probe import ClaimView


def test_no_module_is_taken_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs as root, and the folder may belong to anybody."""
    (tmp_path / "dra_driver").mkdir()
    (tmp_path / "dra_driver/__init__.py").write_text("open('taken', 'w')")
    monkeypatch.chdir(tmp_path)
    task = Task(reader="files:read_kernel", folder="", proc_devices="/dev/null")
    reading = runner.run(task, 30.0)
    client = subprocess.run(own_module("client"), input="", capture_output=True, text=True, check=False)
    assert str(run_probe(ClaimView(library="/nonexistent"))["error"]).startswith("cannot load /nonexistent")
    assert "json.decoder" in client.stderr
    assert (reading.problem, reading.facts["proc_devices"]) == ("", "")
    assert not (tmp_path / "taken").exists()
