"""The host's ``nvidia-ctk``, asked from a pod."""

import json
from pathlib import Path

from msgspec.structs import replace

from dra_driver.diagnose.hardware import files
from dra_driver.diagnose.hardware.child import Task
from tests.fakes.driver_root import make_small_root


def test_the_hosts_program_is_read_whatever_it_logs_and_however_much_it_prints(tmp_path: Path) -> None:
    """It logs to stderr, and lists hundreds of files; the host's root may be mounted read-only."""
    host, folder = tmp_path / "host", tmp_path / "folder"
    for path in (host / "usr/bin", folder):
        path.mkdir(parents=True)
    make_small_root(host)
    mounts = [
        {"hostPath": f"/usr/lib/{number:040}", "containerPath": f"/usr/lib/{number:040}"} for number in range(500)
    ]
    (host / "document").write_text(json.dumps({"containerEdits": {"mounts": mounts}}) + "\n")
    program = host / "usr/bin/nvidia-ctk"
    program.write_text('#!/bin/sh\necho "level=info" >&2\nwhile read -r line; do echo "$line"; done </document\n')
    program.chmod(0o755)
    found = files._ctk(replace(Task(reader="", folder=str(folder)), host=str(host)))
    assert "error" not in found, found
    assert len(found["mounts"]) == 500
