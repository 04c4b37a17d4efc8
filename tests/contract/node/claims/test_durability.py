"""What promises to be durable reaches fsync or fdatasync before it returns; the kernel's own word for it, by seccomp.

A kill -9 loses nothing that was written, synced or not, so no other test sees a sync that is missing. A power cut does.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.node.claims.durable_steps import MARK
from tests.fakes.syscalls import PASS, Step, Supervisor, supported

pytestmark = pytest.mark.skipif(not supported(), reason="the filter of system calls does not know this architecture")

JOURNAL_STEPS = (
    "record_prepared", "forget_prepared", "begin", "finish", "start_unprepare", "forget",
    "forget_orphaned_partition", "set_gpu_note", "clear_gpu_note", "adopt", "note_rebuilt", "drop_older_notes",
    "drop_older_boots",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("durable")


@pytest.fixture(scope="module")
def syncs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The files synced after each mark, by the mark's text."""
    found: dict[str, list[str]] = {"": []}

    def note(step: Step) -> int:
        if step.path.startswith(MARK):
            marks.append(step.path.removeprefix(MARK))
            found.setdefault(marks[-1], [])
        elif step.call in ("fsync", "fdatasync"):
            found[marks[-1]].append(step.path)
        return PASS

    marks = [""]
    with Supervisor(tmp_path_factory.mktemp("supervisor")) as supervisor:
        supervisor.rule = note
        command = [sys.executable, "-m", "tests.contract.node.claims.durable_steps", str(folder)]
        subprocess.run([*supervisor.wrap(), *command], check=True, timeout=60)
    return found


@pytest.mark.parametrize("step", JOURNAL_STEPS)
def test_a_durable_write_of_the_journal_syncs_its_log(syncs: dict[str, list[str]], folder: Path, step: str) -> None:
    assert f"{folder}/state.db-wal" in syncs[f"durable {step}"]


def test_the_first_write_after_opening_is_durable(syncs: dict[str, list[str]], folder: Path) -> None:
    """A log that starts from scratch syncs its header first, then this commit."""
    assert syncs["first write after opening"].count(f"{folder}/state.db-wal") == 2


def test_every_durable_step_is_looked_at(syncs: dict[str, list[str]]) -> None:
    assert {name.removeprefix("durable ") for name in syncs if name.startswith("durable ")} == set(JOURNAL_STEPS)


def test_a_new_journal_is_in_its_folder_after_a_power_cut(syncs: dict[str, list[str]], folder: Path) -> None:
    assert str(folder) in syncs["open"]


def test_a_write_that_need_not_be_durable_costs_no_sync(syncs: dict[str, list[str]]) -> None:
    assert syncs["write without durable"] == []
    assert syncs["small file that need not be durable"] == []


@pytest.mark.parametrize(
    ("step", "parent"),
    [("renamed policies in force", ""), ("renamed small file", ""), ("renamed CDI base file", "/cdi")],
)
def test_a_durable_rename_syncs_the_file_first_and_its_folder_after(
    syncs: dict[str, list[str]], folder: Path, step: str, parent: str
) -> None:
    """Without the folder, a power cut brings the old file back; without the file, an empty one."""
    paths = syncs[step]
    assert len(paths) == 2
    assert Path(paths[0]).parent == Path(f"{folder}{parent}")
    assert paths[1] == f"{folder}{parent}"
