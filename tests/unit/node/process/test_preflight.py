"""What is checked on the machine before anything starts, and what of the disks is reported before a prepare fails."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.node.process import preflight
from dra_driver.node.process.preflight import ClaimFiles, Folder, ProcessLock, Space, StorageHealth, space
from tests.fakes.stand_in import present


def test_a_missing_directory_or_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    preflight.check_host_dev(None)
    preflight.check_host_dev(tmp_path)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match=r"is not a directory: set --host-dev \(HOST_DEV\)"):
            preflight.check_host_dev(path)
    with pytest.raises(ConfigurationError, match="--kubelet-registrar-dir"):
        preflight.check_registrar_dir(tmp_path / "reg")
    assert not (tmp_path / "reg").exists(), "no kubelet would read it"
    with pytest.raises(ConfigurationError, match=r"cannot create the CDI directory .*/file: .*--cdi-dir"):
        preflight.make_cdi_dir(tmp_path / "file")


def test_a_directory_that_the_kubelet_made_is_closed_to_other_users(tmp_path: Path) -> None:
    """A hostPath volume is created with mode 0755, and the journal names every claim."""
    made = tmp_path / "plugins/gpu.nvidia.com"
    made.mkdir(parents=True)
    for before, after in ((0o755, 0o750), (0o700, 0o700)):
        made.chmod(before)
        preflight.make_plugin_dir(tmp_path / "plugins", "gpu.nvidia.com")
        assert made.stat().st_mode & 0o777 == after
    assert preflight.make_plugin_dir(tmp_path / "new", "gpu.nvidia.com").stat().st_mode & 0o777 == 0o750
    preflight.make_cdi_dir(tmp_path / "run" / "cdi")
    assert (tmp_path / "run" / "cdi").stat().st_mode & 0o755 == 0o755, "runtimes read it"


def test_driver_root_must_be_a_directory_or_may_become_one(tmp_path: Path) -> None:
    preflight.check_driver_root(tmp_path)
    preflight.check_driver_root(tmp_path / "driver")  # a driver container makes it in /run/nvidia when it starts
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "missing" / "driver", Path("/missing")):
        with pytest.raises(ConfigurationError, match="DRIVER_ROOT"):
            preflight.check_driver_root(wrong)


def test_second_process_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    first, second = ProcessLock(tmp_path, shared=False), ProcessLock(tmp_path, shared=False)
    first.acquire()
    with pytest.raises(ConfigurationError, match=r"held by process \d+\)"):
        second.acquire()
    first.release()
    first.release()
    second.acquire()
    second.release()


def test_processes_of_pods_share_and_exclude_one_without_a_pod(tmp_path: Path) -> None:
    old, new, alone = (ProcessLock(tmp_path, shared=shared) for shared in (True, True, False))
    old.acquire()
    new.acquire()
    with pytest.raises(ConfigurationError):
        alone.acquire()
    old.release()
    new.release()
    alone.acquire()
    with pytest.raises(ConfigurationError):
        old.acquire()
    alone.release()


def test_lock_through_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("precious")
    (tmp_path / preflight.LOCK_NAME).symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="lock file"):
        ProcessLock(tmp_path, shared=False).acquire()
    assert (tmp_path / "target").read_text() == "precious"


PLENTY = Space(bytes=2**30, files=None)


class Node:
    """A usable directory until a test changes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "cdi"
        self.folder.mkdir()
        self.left: Space | OSError = PLENTY
        self.missing: Sequence[str] | StorageError = ()
        self.looks = 0
        watched = Folder(path=self.folder, what="the CDI directory", setting="--cdi-dir")
        self.disk = StorageHealth([watched], self.bring_back, self.space)

    def bring_back(self) -> Sequence[str]:
        self.looks += 1
        if isinstance(self.missing, StorageError):
            raise self.missing
        return self.missing

    def space(self, _: Path) -> Space:
        if isinstance(self.left, OSError):
            raise self.left
        return self.left

    def problem(self) -> str | None:
        self.disk.check()
        return self.disk.problem


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_a_usable_directory_is_no_problem_and_stays_untouched(node: Node) -> None:
    before = node.folder.stat().st_mtime_ns
    assert node.problem() is None
    assert (node.looks, node.folder.stat().st_mtime_ns) == (1, before)
    assert space(node.folder).bytes > 0


@pytest.mark.parametrize(
    ("left", "sentence"),
    [
        (Space(bytes=4096, files=None), "is on a full file system (4 KiB free)"),
        (Space(bytes=2**30, files=0), "is on a file system without free inodes"),
        (OSError(5, "Input/output error"), "cannot be checked: Input/output error; see --cdi-dir"),
    ],
)
def test_a_full_file_system_is_a_problem_until_space_is_freed(node: Node, left: Space | OSError, sentence: str) -> None:
    node.left = left
    problem = present(node.problem())
    assert f"the CDI directory {node.folder} {sentence}" in problem
    node.left = PLENTY
    assert node.problem() is None


def test_a_missing_directory_or_a_file_in_its_place_is_a_problem(node: Node) -> None:
    node.folder.rmdir()
    assert node.problem() == f"the CDI directory {node.folder} is not writable: it does not exist; see --cdi-dir"
    node.folder.write_text("")
    assert node.problem() == f"the CDI directory {node.folder} is not writable: it is not a directory; see --cdi-dir"


def test_a_claims_file_that_stays_missing_is_a_problem(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    """Its container could not restart; the problem is logged once, however often it is checked."""
    node.missing = ["the CDI file of claim a/b is missing and cannot be written"]
    assert node.problem() == node.missing[0]
    node.missing = StorageError("the journal cannot be read")
    assert (node.problem(), node.problem()) == ("the journal cannot be read",) * 2
    assert len(caplog.records) == 2


class Files:
    """A CDI directory whose files are looked for in rounds of 5 s; what stays missing, and when it was listed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 0.0
        self.missing: Sequence[str] | StorageError = ()
        self.listed: list[float] = []
        self.files = ClaimFiles(str(folder), self.rewrite, lambda: self.now)

    def rewrite(self, *, may_miss: bool) -> Sequence[str]:
        if not may_miss:
            return ()
        self.listed.append(self.now)
        if isinstance(self.missing, StorageError):
            raise self.missing
        return self.missing

    def rounds(self, count: int) -> list[float]:
        self.listed.clear()
        for _ in range(count):
            with suppress(StorageError):
                self.files.bring_back()
            self.now += 5.0
        return self.listed


@pytest.mark.usefixtures("inotify")
def test_the_cdi_directory_is_listed_after_a_change_and_once_a_minute(tmp_path: Path) -> None:
    files = Files(tmp_path)
    assert files.rounds(12) == [0.0]
    assert files.rounds(12) == [60.0]
    (tmp_path / "file").write_text("")
    assert files.rounds(5) == [120.0]
    (tmp_path / "file").unlink()
    assert files.rounds(5) == [145.0]


@pytest.mark.usefixtures("inotify")
@pytest.mark.parametrize("missing", [["a file stays missing"], StorageError("the journal cannot be read")])
def test_a_file_that_stays_missing_is_tried_in_every_round(
    tmp_path: Path, missing: Sequence[str] | StorageError
) -> None:
    files = Files(tmp_path)
    files.missing = missing
    assert files.rounds(3) == [0.0, 5.0, 10.0]
    files.missing = ()
    assert files.rounds(3) == [15.0]


@pytest.mark.usefixtures("inotify")
def test_a_directory_that_is_made_again_is_listed(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    folder.mkdir()
    files = Files(folder)
    files.rounds(2)
    folder.rmdir()
    assert files.rounds(1) == [10.0]
    folder.mkdir()
    assert files.rounds(2) == [15.0]
    (folder / "file").write_text("")
    assert files.rounds(2) == [25.0]
