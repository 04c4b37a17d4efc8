"""Liveness of runs, and opening the claims service in a directory."""

import threading
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.node.claims.entry import OwnerId
from dra_driver.node.claims.processes import ProcessRegistry, read_boot_id
from dra_driver.node.claims.workflow.service import Claims, open_claims
from tests.fakes.claims import NAMES, POOL, FakeCdiProvider, FakeCdiWriter, FakeClaims, claim, machine, ref, uid


def test_a_run_is_alive_until_it_ends(tmp_path: Path) -> None:
    first, second = ProcessRegistry.register(tmp_path, "one"), ProcessRegistry.register(tmp_path, "two")
    assert second.is_alive(first.own)
    assert second.is_alive(first.own)
    assert second.is_alive(second.own)
    first.close()
    first.close()
    assert not second.is_alive(first.own)
    assert not second.is_alive(OwnerId("never-was"))
    second.close()


def test_concurrent_checks_do_not_make_a_dead_run_look_alive(tmp_path: Path) -> None:
    dead = tmp_path / "owner-dead.lock"
    asker, other = ProcessRegistry.register(tmp_path, "one"), ProcessRegistry.register(tmp_path, "two")
    dead.write_text("")
    assert not asker.is_alive(OwnerId("dead"))
    assert not other.is_alive(OwnerId("dead"))
    asker.close()
    other.close()


def test_a_run_whose_file_cannot_be_opened_counts_as_alive(tmp_path: Path) -> None:
    """Its claims stay: a teardown would end a living run's containers during an update."""
    asker = ProcessRegistry.register(tmp_path, "one")
    (tmp_path / "owner-linked.lock").symlink_to(tmp_path / "elsewhere")  # opening it fails with ELOOP
    assert asker.is_alive(OwnerId("linked"))
    asker.close()


def test_files_of_dead_runs_are_swept_at_the_next_start(tmp_path: Path) -> None:
    """Crashes leave one file each, and a start removes them; living runs keep theirs."""
    (tmp_path / "owner-dead.lock").write_text("")
    living = ProcessRegistry.register(tmp_path, "living")
    ProcessRegistry.register(tmp_path, "new").close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner-living.lock"]
    living.close()


def test_an_unusable_directory_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot register this process in"):
        ProcessRegistry.register(tmp_path / "file" / "below", "one")


def test_runs_that_start_together_do_not_sweep_each_other_away(tmp_path: Path) -> None:
    """A file that was created but not locked yet looks dead; its run must still register."""
    for attempt in range(5):
        registered: list[ProcessRegistry] = []
        gate = threading.Barrier(4)

        def start(number: int, attempt: int = attempt, gate: threading.Barrier = gate) -> None:
            gate.wait(10)
            registered.append(ProcessRegistry.register(tmp_path, f"run-{attempt}-{number}"))  # noqa: B023 - joined below

        threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(registered) == 4
        assert all(one.is_alive(other.own) for one in registered for other in registered)
        assert len(list(tmp_path.glob("owner-*"))) == 4
        for one in registered:
            one.close()


def open_at(folder: Path, api: FakeClaims, writer: FakeCdiWriter) -> Claims:
    return open_claims(
        folder,
        pool=POOL,
        names=NAMES,
        reader=api,
        writer=writer,  # type: ignore[arg-type]
        provider=FakeCdiProvider(),
        snapshot=lambda: machine(2),
    )


def test_a_closed_service_opens_again_with_all_claims(tmp_path: Path) -> None:
    api, writer = FakeClaims(claim(1)), FakeCdiWriter()
    folder = tmp_path / "plugins" / "gpu.nvidia.com"
    first = open_at(folder, api, writer)
    first.service.recover()
    answer = first.service.prepare([ref(1)])
    first.close()
    first.close()
    assert sorted(path.name for path in folder.iterdir()) == ["claim-names", "state.db", "state.db.lock"]
    again = open_at(folder, api, writer)
    again.service.recover()
    api.remove(ref(1))
    assert again.service.prepare([ref(1)]) == answer
    again.close()


def test_a_start_that_fails_leaves_no_living_run_behind(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises((StorageError, ConfigurationError)):
        open_at(tmp_path, FakeClaims(), FakeCdiWriter())
    assert list(tmp_path.glob("owner-*")) == []


def test_the_boot_id_is_read_from_the_kernel(tmp_path: Path) -> None:
    assert read_boot_id() == read_boot_id() != ""
    assert read_boot_id(tmp_path / "missing") == ""
    (tmp_path / "odd").write_bytes(b"\xff\xfe")
    assert read_boot_id(tmp_path / "odd") == ""
    assert str(ref(1).uid) == uid(1)
