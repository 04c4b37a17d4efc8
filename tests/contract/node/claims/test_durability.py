"""What promises to be durable reaches fsync or fdatasync before it returns; the kernel's own word for it, by ptrace.

A kill -9 loses nothing that was written, synced or not, so no other test sees a sync that is missing. A power cut does.
"""

from pathlib import Path

import pytest

from tests.fakes.syscalls import Sync, supported, syncs_between_marks

pytestmark = pytest.mark.skipif(not supported(), reason="system calls are traced on Linux 5.3, x86-64 and aarch64 only")

JOURNAL_STEPS = (
    "record_prepared", "forget_prepared", "begin", "finish", "start_unprepare", "forget",
    "forget_orphaned_partition", "set_gpu_note", "clear_gpu_note", "adopt", "note_rebuilt", "drop_older_notes",
    "drop_older_boots",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("durable")


@pytest.fixture(scope="module")
def syncs(folder: Path) -> dict[str, list[Sync]]:
    return syncs_between_marks("tests.contract.node.claims.durable_steps", str(folder))


@pytest.mark.parametrize("step", JOURNAL_STEPS)
def test_a_durable_write_of_the_journal_syncs_its_log(syncs: dict[str, list[Sync]], folder: Path, step: str) -> None:
    assert Sync(f"{folder}/state.db-wal") in syncs[f"durable {step}"]


def test_the_first_write_after_opening_is_durable(syncs: dict[str, list[Sync]], folder: Path) -> None:
    """Opening sets the mode that the first commit relies on. A log that begins anew syncs its header, and then this."""
    assert syncs["first write after opening"].count(Sync(f"{folder}/state.db-wal")) == 2


def test_every_durable_step_is_looked_at(syncs: dict[str, list[Sync]]) -> None:
    assert {name.removeprefix("durable ") for name in syncs if name.startswith("durable ")} == set(JOURNAL_STEPS)


def test_a_new_journal_is_in_its_folder_after_a_power_cut(syncs: dict[str, list[Sync]], folder: Path) -> None:
    assert Sync(str(folder)) in syncs["open"]


def test_a_write_that_need_not_be_durable_costs_no_sync(syncs: dict[str, list[Sync]]) -> None:
    assert syncs["write without durable"] == []
    assert syncs["small file that need not be durable"] == []


@pytest.mark.parametrize(
    ("step", "parent"),
    [("renamed policies in force", ""), ("renamed small file", ""), ("renamed CDI base file", "/cdi")],
)
def test_a_durable_rename_syncs_the_file_first_and_its_folder_after(
    syncs: dict[str, list[Sync]], folder: Path, step: str, parent: str
) -> None:
    """Without the folder, a power cut brings the old file back; without the file, an empty one."""
    paths = [sync.path for sync in syncs[step]]
    assert len(paths) == 2
    assert Path(paths[0]).parent == Path(f"{folder}{parent}")
    assert paths[1] == f"{folder}{parent}"
