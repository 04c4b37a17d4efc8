"""Files are complete or missing after any failure, and files of other programs stay."""

import errno
import json
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.core.errors import ClaimError, InvalidSpecError, StorageError
from dra_driver.hardware.cdi.folder import STALE_AFTER_S, Files
from dra_driver.hardware.cdi.names import CdiNames
from dra_driver.hardware.cdi.spec import CdiDevice, CdiSpec, ContainerEdits
from dra_driver.hardware.cdi.writer import CdiWriter, render
from tests.fakes.fuse import WRITE_STEPS, FlakyFiles, Killed, error
from tests.harness.raising import fails

NAMES = CdiNames("gpu.nvidia.com")
UID = "0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e"
OTHER = "9d6a2c1e-11aa-4b5f-8c0d-d1e2f3a4b5c6"
NOW = 1_800_000_000.0
# A claim's file is not synced, so those steps are taken for the base file alone.
DOCUMENT_STEPS = [("base", step) for step in WRITE_STEPS] + [
    ("claim", step) for step in WRITE_STEPS if step not in ("sync", "sync_folder")
]


def claim(text: str = "1", uid: str = UID) -> CdiSpec:
    device = CdiDevice(name=f"{uid}-gpu-0", container_edits=ContainerEdits(env=(f"TEXT={text}",)))
    return CdiSpec(kind=NAMES.claim_kind, devices=(device,))


def base(text: str = "1") -> CdiSpec:
    device = CdiDevice(name="common", container_edits=ContainerEdits(env=(f"TEXT={text}",)))
    return CdiSpec(kind=NAMES.device_kind, devices=(device,))


def writer(folder: Path, files: FlakyFiles | None = None) -> CdiWriter:
    return CdiWriter(str(folder), NAMES, files=files, now=lambda: NOW)


def claim_path(folder: Path, uid: str = UID) -> Path:
    return folder / NAMES.claim_file_name(uid)


def put(one: CdiWriter, document: str, text: str) -> bool:
    return one.write_base(base(text)) if document == "base" else one.write_claim(UID, claim(text))


def path_of(folder: Path, document: str) -> Path:
    return folder / NAMES.base_file_name if document == "base" else claim_path(folder)


def content(document: str, text: str) -> bytes:
    return render(base(text) if document == "base" else claim(text), "x")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_directory_is_made_when_it_is_missing(tmp_path: Path) -> None:
    """/var/run is empty after a reboot; the umask of the process does not matter."""
    folder = tmp_path / "run/cdi"
    before = os.umask(0o077)
    try:
        writer(folder).write_claim(UID, claim())
    finally:
        os.umask(before)
    path = claim_path(folder)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (folder, path)] == [0o755, 0o644]
    assert json.loads(path.read_text()) == claim().to_wire()
    assert names(folder) == [path.name]


def test_an_unchanged_file_is_not_touched(tmp_path: Path) -> None:
    """A repeated prepare must not make every runtime on the node read its directory again."""
    one = writer(tmp_path)
    one.write_claim(UID, claim())
    before = claim_path(tmp_path).stat()
    assert not one.write_claim(UID, claim())
    after = claim_path(tmp_path).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


@pytest.mark.parametrize("damage", ["missing", "other", "longer", "empty", "link", "fifo"])
def test_a_missing_or_different_file_is_rewritten(tmp_path: Path, damage: str) -> None:
    """After a reboot, a careless hand, or a hostile link the repeated prepare makes it right."""
    one, path = writer(tmp_path), claim_path(tmp_path)
    one.write_claim(UID, claim())
    whole = path.read_bytes()
    victim = tmp_path / "victim"
    victim.write_bytes(whole)
    path.unlink()
    damages: dict[str, Callable[[], object]] = {
        "missing": lambda: None,
        "other": lambda: path.write_bytes(whole.replace(b"TEXT=1", b"TEXT=2")),
        "longer": lambda: path.write_bytes(whole + b"\n"),
        "empty": path.touch,
        "link": lambda: path.symlink_to(victim),
        "fifo": lambda: os.mkfifo(path),
    }
    damages[damage]()
    assert one.write_claim(UID, claim())
    assert path.read_bytes() == whole == victim.read_bytes()
    assert not path.is_symlink()


def test_the_base_file_is_compared_byte_for_byte(tmp_path: Path) -> None:
    one, spec = writer(tmp_path), base()
    path = tmp_path / NAMES.base_file_name
    assert one.write_base(spec)
    assert not one.write_base(spec)
    path.write_text("{}")
    assert one.write_base(spec)
    assert one.write_base(base("2"))
    assert json.loads(path.read_text()) == base("2").to_wire()


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "the file system is full: free space there (ENOSPC)"),
        (errno.EROFS, "read-only: mount the directory writable into the node process (EROFS)"),
        (errno.EACCES, "permission is denied: the node process must run as root"),
        (errno.EDQUOT, "the quota is used up"),
        (errno.EIO, "input/output error (EIO)"),
    ],
)
@pytest.mark.parametrize(("document", "step"), DOCUMENT_STEPS)
def test_a_refusing_file_system_is_one_sentence_and_leaves_the_old_file(
    tmp_path: Path, document: str, step: str, number: int, advice: str
) -> None:
    put(writer(tmp_path), document, "old")
    path = path_of(tmp_path, document)
    with pytest.raises(StorageError) as raised:
        put(writer(tmp_path, FlakyFiles(step, error(number))), document, "new")
    assert advice in str(raised.value)
    assert f"cannot write CDI file {path}" in str(raised.value)
    # After the rename the new file is in place, only not yet safe from a power cut.
    assert path.read_bytes() == content(document, "new" if step == "sync_folder" else "old")
    assert names(tmp_path) == [path.name]
    put(writer(tmp_path), document, "new")
    assert path.read_bytes() == content(document, "new")


@pytest.mark.parametrize(("document", "step"), DOCUMENT_STEPS)
@pytest.mark.parametrize("existed", [False, True])
def test_dying_between_any_two_steps_leaves_no_half_file(
    tmp_path: Path, document: str, step: str, existed: bool
) -> None:
    if existed:
        put(writer(tmp_path), document, "old")
    with pytest.raises(Killed):
        put(writer(tmp_path, FlakyFiles(step, Killed())), document, "new")
    path = path_of(tmp_path, document)
    if path.exists():
        assert path.read_bytes() in (content(document, "old"), content(document, "new"))
    assert path.exists() or not existed
    leftovers = [name for name in names(tmp_path) if name != path.name]
    assert all(not name.endswith((".json", ".yaml")) for name in leftovers)
    assert len(leftovers) == (step in ("write", "set_mode", "sync", "close", "replace"))
    for name in leftovers:
        os.utime(tmp_path / name, (NOW - STALE_AFTER_S - 1,) * 2)
    writer(tmp_path).remove_orphans([UID])
    assert [name for name in names(tmp_path) if name != path.name] == []


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with fails(StorageError, match="file/k8s", errno="ENOTDIR"):
        writer(tmp_path / "file").write_claim(UID, claim())
    with fails(StorageError, errno="ENOSPC"):
        writer(tmp_path / "new", FlakyFiles("make_folder")).write_claim(UID, claim())


def test_a_directory_in_the_files_place_is_a_sentence(tmp_path: Path) -> None:
    claim_path(tmp_path).mkdir()
    with fails(StorageError, errno="EISDIR"):
        writer(tmp_path).write_claim(UID, claim())
    with pytest.raises(StorageError, match="cannot remove CDI file"):
        writer(tmp_path).remove_claim(UID)
    assert names(tmp_path) == [NAMES.claim_file_name(UID)]


def test_two_threads_writing_one_claim_leave_one_whole_document(tmp_path: Path) -> None:
    one, path = writer(tmp_path), claim_path(tmp_path)
    documents = {text: render(claim(text), "x") for text in ("a" * 10, "b" * 5000)}
    seen: set[bytes] = set()
    start = threading.Barrier(3, timeout=10)

    def write(text: str) -> None:
        start.wait()
        for _ in range(50):
            one.write_claim(UID, claim(text))

    threads = [threading.Thread(target=write, args=(text,)) for text in documents]
    for thread in threads:
        thread.start()
    start.wait()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            seen.add(path.read_bytes())
    for thread in threads:
        thread.join(10)
    assert seen <= set(documents.values())
    assert path.read_bytes() in documents.values()
    assert names(tmp_path) == [path.name]


def test_a_hostile_uid_touches_nothing(tmp_path: Path) -> None:
    """The UID comes from outside; a path with it could name any file."""
    folder = tmp_path / "cdi"
    folder.mkdir()
    (tmp_path / "x.json").touch()
    one = writer(folder)
    for uid in ("../x", "../../etc/x", "/etc/x", ""):
        with pytest.raises(ClaimError):
            one.write_claim(uid, claim())
        with pytest.raises(ClaimError):
            one.remove_claim(uid)
    assert names(folder) == []
    assert names(tmp_path) == ["cdi", "x.json"]


def test_an_invalid_document_is_never_written(tmp_path: Path) -> None:
    files = FlakyFiles()
    one = writer(tmp_path, files)
    with pytest.raises(InvalidSpecError, match=rf"{tmp_path}.*devices: none"):
        one.write_claim(UID, CdiSpec(kind=NAMES.claim_kind))
    with pytest.raises(InvalidSpecError, match=r"expected 'k8s\.gpu\.nvidia\.com/claim'"):
        one.write_claim(UID, base())
    with pytest.raises(InvalidSpecError, match=r"expected 'k8s\.gpu\.nvidia\.com/device'"):
        one.write_base(claim())
    assert files.calls == []


def test_removing_a_claim_is_idempotent(tmp_path: Path) -> None:
    one = writer(tmp_path)
    one.write_claim(UID, claim())
    assert one.remove_claim(UID)
    assert not one.remove_claim(UID)
    assert not writer(tmp_path / "missing").remove_claim(UID)
    assert names(tmp_path) == []


def test_orphans_are_removed_and_the_rest_stays(tmp_path: Path) -> None:
    one = writer(tmp_path)
    for uid in (UID, OTHER):
        one.write_claim(uid, claim(uid=uid))
    one.write_base(base())
    foreign = [
        "nvidia.yaml",
        "k8s.gpu.nvidia.com-claim_abc.yaml",
        "k8s.gpu.nvidia.com-claim_a.b.json",
        *("k8s.gpu.nvidia.com-claim_.json", "k8s.gpu.nvidia.com-claim_a.json.bak", "k8s.gpu.nvidia.com-claim_a.json\n"),
        *(
            "k8sXgpu.nvidia.com-claim_a.json",
            "xk8s.gpu.nvidia.com-claim_a.json",
            "k8s.other.gpu.nvidia.com-claim_a.json",
        ),
        "k8s.gpu.example.com-claim_0b7f2a6e-7a3c-4c6c-9d0e-1f2a3b4c5d6e.json",
        "spec.1234567890.tmp",
        ".k8s.gpu.example.com_abcdefgh.tmp",
        "a.tmp",
    ]
    for name in foreign:
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (0, 0))
    assert one.claim_uids() == {UID, OTHER}
    assert one.remove_orphans([UID]) == (OTHER,)
    assert names(tmp_path) == sorted([*foreign, NAMES.base_file_name, NAMES.claim_file_name(UID)])
    assert one.remove_orphans([UID]) == ()


def test_only_old_unfinished_plain_files_of_ours_are_removed(tmp_path: Path) -> None:
    """During a rolling update two processes write; the other's file of this moment is not a leftover."""
    ages = {"aaaaaaaa": STALE_AFTER_S + 1, "bbbbbbbb": STALE_AFTER_S - 1, "cccccccc": -100.0}
    for name, age in ages.items():
        path = tmp_path / f"{NAMES.temporary_prefix}{name}.tmp"
        path.touch()
        os.utime(path, (NOW - age, NOW - age))
    folder = tmp_path / f"{NAMES.temporary_prefix}dddddddd.tmp"
    folder.mkdir()
    os.utime(folder, (0, 0))
    writer(tmp_path).remove_orphans([])
    left = {name.removeprefix(NAMES.temporary_prefix).removesuffix(".tmp") for name in names(tmp_path)}
    assert left == {"bbbbbbbb", "cccccccc", "dddddddd"}


def test_a_missing_directory_has_no_claims(tmp_path: Path) -> None:
    one = writer(tmp_path / "missing")
    assert one.claim_uids() == frozenset()
    assert one.remove_orphans([UID]) == ()


@pytest.mark.parametrize("step", ["list", "remove"])
def test_failures_of_the_clean_up_are_sentences(tmp_path: Path, step: str) -> None:
    writer(tmp_path).write_claim(UID, claim())
    with pytest.raises(StorageError, match=r"cannot (list CDI files|remove CDI file) .*read-only"):
        writer(tmp_path, FlakyFiles(step, error(errno.EROFS))).remove_orphans([])


NAME = ".gpu.nvidia.com-00000000.tmp"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "urandom", lambda size: b"\0" * size)
    folder = tmp_path / "cdi"
    folder.mkdir()
    return folder


def test_a_temporary_file_is_new_and_for_its_owner_alone(folder: Path) -> None:
    descriptor, path = Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    os.close(descriptor)
    assert path == str(folder / NAME)
    assert (folder / NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_exists_is_not_taken_for_a_temporary_one(folder: Path) -> None:
    """Another process may still write into it; two writers in one file make a document that nothing can read."""
    (folder / NAME).write_text("of another process")
    with pytest.raises(FileExistsError):
        Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    assert (folder / NAME).read_text() == "of another process"


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_at_the_temporary_name_is_not_followed(folder: Path, exists: bool) -> None:
    """The node process is root: following the link would create or overwrite any file of the node."""
    target = folder.parent / "target"
    if exists:
        target.write_text("precious")
    (folder / NAME).symlink_to(target)
    with pytest.raises(OSError, match=r"."):
        Files().create_temporary(str(folder), ".gpu.nvidia.com-")
    assert target.exists() is exists
