"""Metadata files on disk: modes, links, failures, and whose files are removed."""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.core.errors import ClaimError, StorageError
from dra_driver.hardware.cdi.folder import STALE_AFTER_S
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.writer import CdiWriter
from tests.fakes.fuse import FlakyFiles, error
from tests.harness.raising import fails

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"
OTHER = "9d6a2c1e-11aa-4b5f-8c0d-d1e2f3a4b5c6"
NOW = 1_800_000_000.0
DATA = b'{"kind": "DeviceMetadata"}\n'


def writer(root: Path, files: FlakyFiles | None = None) -> CdiWriter:
    return CdiWriter(str(root / "cdi"), NAMES, metadata_dir=str(root / "metadata"), files=files, now=lambda: NOW)


def path(root: Path, request: str = "gpu", uid: str = UID) -> Path:
    return root / "metadata" / f"{uid}_{request}.json"


def test_every_user_of_a_container_can_read_the_file(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        writer(tmp_path).write_metadata(UID, {"gpu": DATA})
    finally:
        os.umask(before)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "metadata", path(tmp_path))] == [0o755, 0o644]
    assert writer(tmp_path).metadata(UID, "gpu") == path(tmp_path).read_bytes() == DATA
    assert writer(tmp_path).metadata_path(UID, "gpu") == str(path(tmp_path))


def test_equal_file_is_not_written_again(tmp_path: Path) -> None:
    writer(tmp_path).write_metadata(UID, {"gpu": DATA})
    before = path(tmp_path).stat()
    writer(tmp_path).write_metadata(UID, {"gpu": DATA})
    assert path(tmp_path).stat().st_ino == before.st_ino
    writer(tmp_path).write_metadata(UID, {"gpu": DATA * 2})
    assert path(tmp_path).read_bytes() == DATA * 2


def _link_folder(root: Path) -> None:
    (root / "victim").mkdir()
    (root / "victim" / path(root, uid=OTHER).name).write_bytes(b"kept")
    (root / "metadata").symlink_to(root / "victim")


def _link_file(root: Path) -> None:
    (root / "metadata").mkdir()
    (root / "victim").write_bytes(b"kept")
    path(root).symlink_to(root / "victim")


def _folder_as_file(root: Path) -> None:
    path(root).mkdir(parents=True)


def _file_as_folder(root: Path) -> None:
    (root / "metadata").write_bytes(b"kept")


@pytest.mark.parametrize(
    ("obstacle", "code"),
    [(_link_folder, "ELOOP"), (_link_file, "ELOOP"), (_folder_as_file, "EISDIR"), (_file_as_folder, "ENOTDIR")],
)
def test_obstacle_fails_the_write_and_stays(tmp_path: Path, obstacle: Callable[[Path], None], code: str) -> None:
    obstacle(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with fails(StorageError, "Storage", match=str(path(tmp_path)), errno=code):
        writer(tmp_path).write_metadata(UID, {"gpu": DATA})
    assert [writer(tmp_path).metadata(uid, "gpu") for uid in (UID, OTHER)] == [None, None]
    writer(tmp_path).remove_claim(OTHER)
    writer(tmp_path).remove_orphans([UID])
    assert sorted(tmp_path.rglob("*")) == before
    assert all(each.read_bytes() == b"kept" for each in before if each.is_file())


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("step", ["create_temporary", "write", "set_mode", "replace"])
def test_failed_write_leaves_no_part(tmp_path: Path, step: str, number: int) -> None:
    writer(tmp_path).write_metadata(OTHER, {"gpu": DATA})
    with fails(StorageError, "Storage", match=str(path(tmp_path)), errno=errno.errorcode[number]):
        writer(tmp_path, FlakyFiles(step, error(number))).write_metadata(UID, {"gpu": DATA})
    assert list((tmp_path / "metadata").iterdir()) == [path(tmp_path, uid=OTHER)]


def test_claim_is_removed_with_all_of_its_files(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.write_metadata(UID, {"gpu": DATA, "nic": DATA})
    one.write_metadata(OTHER, {"gpu": DATA})
    one.remove_claim(UID)
    assert list((tmp_path / "metadata").iterdir()) == [path(tmp_path, uid=OTHER)]


def test_files_whose_names_only_begin_as_the_claims_stay(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.write_metadata(f"{UID}-0", {"gpu": DATA})
    foreign = tmp_path / "metadata" / f"{UID}_gpu.json.old"
    foreign.write_bytes(DATA)
    one.remove_claim(UID)
    assert sorted((tmp_path / "metadata").iterdir()) == sorted([path(tmp_path, uid=f"{UID}-0"), foreign])


def test_orphans_are_removed_and_files_of_others_stay(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for uid in (UID, OTHER):
        one.write_metadata(uid, {"gpu": DATA})
    foreign = [tmp_path / "metadata" / name for name in ("default_claim", f"{OTHER}.json", f"{OTHER}_gpu.json.old")]
    stale = tmp_path / "metadata" / f"{NAMES.temporary_prefix}0123abcd.tmp"
    for each in (*foreign, stale):
        each.write_bytes(DATA)
    os.utime(stale, (NOW - STALE_AFTER_S - 1,) * 2)
    neighbour = tmp_path / "other-driver" / path(tmp_path, uid=OTHER).name
    neighbour.parent.mkdir()
    neighbour.write_bytes(DATA)
    one.remove_orphans([UID])
    assert sorted((tmp_path / "metadata").iterdir()) == sorted([path(tmp_path), *foreign])
    assert neighbour.exists()


@pytest.mark.parametrize("step", ["list", "remove"])
def test_file_that_cannot_be_removed_does_not_keep_the_claim(
    tmp_path: Path, step: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its pod would stay in Terminating for a file that no container can see."""
    writer(tmp_path).write_metadata(UID, {"gpu": DATA})

    class Picky(FlakyFiles):
        def remove(self, path: str) -> bool:
            return super().remove(path) if "metadata" in path else False

    assert not writer(tmp_path, Picky(step, error(errno.EPERM))).remove_claim(UID)
    assert "EPERM" in str([record.__dict__.get("reason") for record in caplog.records])
    assert path(tmp_path).exists()


@pytest.mark.parametrize("request_name", ["../gpu", "", "gpu/sub", "x" * 64])
def test_request_that_is_no_label_touches_no_file(tmp_path: Path, request_name: str) -> None:
    with pytest.raises(ClaimError):
        writer(tmp_path).write_metadata(UID, {request_name: DATA})
    assert list(tmp_path.iterdir()) == []
