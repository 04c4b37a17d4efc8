"""The file with the last policies that could be applied."""

import os
import stat
from pathlib import Path

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.node.policy.policy_set import decode_set, load_set, save_set

POLICY = {
    "apiVersion": "gpu.dra-driver.io/v1alpha1",
    "kind": "GpuPolicy",
    "metadata": {"name": "p"},
    "spec": {"forms": {"whole": False}},
}


def test_a_saved_set_is_on_disk_before_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after it must not bring back older policies, or none, which would hide every GPU."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        same = os.path.samestat(status, tmp_path.stat())
        seen.append(f"sync {kind}" if kind == "file" or same else "sync of something else")
        assert kind == "folder" or b'"name":"p"' in Path(f"/proc/self/fd/{descriptor}").read_bytes()
        fsync(descriptor)

    def recorded_replace(source: str, target: str) -> None:
        seen.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    save_set(tmp_path / "policies.json", decode_set([POLICY]))
    assert seen == ["sync file", "rename", "sync folder"]


def test_a_saved_set_comes_back_as_it_was(tmp_path: Path) -> None:
    """A restart with a broken policy folder keeps it."""
    path = tmp_path / "policies.json"
    assert load_set(path) is None
    save_set(path, decode_set([POLICY]))
    assert load_set(path) == decode_set([POLICY])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_set_that_cannot_be_saved_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policies.json"
    save_set(path, decode_set([POLICY]))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=f"{path} cannot be written: No space left on device"):
        save_set(path, decode_set([]))
    assert load_set(path) == decode_set([POLICY])
