"""What is checked on the machine before anything starts."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.node.process import preflight
from dra_driver.node.process.preflight import ProcessLock


def test_a_host_dev_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A mistyped mount: nodes would be made nowhere."""
    preflight.check_host_dev(None)
    preflight.check_host_dev(tmp_path)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "missing"):
        with pytest.raises(ConfigurationError, match=r"is not a directory: set --host-dev \(HOST_DEV\)"):
            preflight.check_host_dev(path)


def test_registry_is_never_created(tmp_path: Path) -> None:
    """In a registry that no kubelet reads, the driver would stay unregistered for ever."""
    with pytest.raises(ConfigurationError, match="--kubelet-registrar-dir"):
        preflight.check_registrar_dir(tmp_path / "reg")
    assert not (tmp_path / "reg").exists()


def test_own_directories_are_created(tmp_path: Path) -> None:
    plugin_dir = preflight.make_plugin_dir(tmp_path / "plugins", "gpu.nvidia.com")
    assert plugin_dir.stat().st_mode & 0o777 == 0o750, "only root reads the journal"
    preflight.make_cdi_dir(tmp_path / "run" / "cdi")
    assert (tmp_path / "run" / "cdi").stat().st_mode & 0o755 == 0o755, "runtimes read it"


def test_a_directory_that_the_kubelet_made_is_closed_to_other_users(tmp_path: Path) -> None:
    """A hostPath volume is created with mode 0755, and the journal names every claim."""
    made = tmp_path / "plugins/gpu.nvidia.com"
    made.mkdir(parents=True)
    for before, after in ((0o755, 0o750), (0o700, 0o700)):
        made.chmod(before)
        preflight.make_plugin_dir(tmp_path / "plugins", "gpu.nvidia.com")
        assert made.stat().st_mode & 0o777 == after


def test_file_in_a_directorys_place_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot create the CDI directory .*/cdi: .*--cdi-dir"):
        preflight.make_cdi_dir(tmp_path / "cdi")


def test_driver_root_must_be_a_directory(tmp_path: Path) -> None:
    preflight.check_driver_root(tmp_path)
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", tmp_path / "missing" / "driver", Path("/missing")):
        with pytest.raises(ConfigurationError, match="DRIVER_ROOT"):
            preflight.check_driver_root(wrong)


def test_a_driver_container_may_create_the_driver_root_later(tmp_path: Path) -> None:
    """Only /run/nvidia is mounted, so /run/nvidia/driver does not exist before the driver container has started."""
    preflight.check_driver_root(tmp_path / "driver")


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
    """Only a rolling update may overlap."""
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
    """A symbolic link must not lead the write to another file."""
    (tmp_path / "target").write_text("precious")
    (tmp_path / preflight.LOCK_NAME).symlink_to(tmp_path / "target")
    with pytest.raises(ConfigurationError, match="lock file"):
        ProcessLock(tmp_path, shared=False).acquire()
    assert (tmp_path / "target").read_text() == "precious"
