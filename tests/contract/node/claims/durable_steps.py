"""Writes that promise to be durable, and those that promise to cost no sync, one after another, each after a mark.

usage: python -m tests.contract.node.claims.durable_steps FOLDER

For test_durability.py, which sees the system calls of this process.
"""

import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from dra_driver.core.files import replace_file
from dra_driver.core.model.ids import DeviceName
from dra_driver.hardware.cdi.spec import CdiDevice, CdiSpec, ContainerEdits
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.entry import AssignedDevice, AttemptToken, OwnerId
from dra_driver.node.claims.journal import Journal
from dra_driver.node.policy.policy_set import PolicySet, save_set
from tests.fakes.claims import NAMES, gpu, partition, ref, uid
from tests.fakes.claims import device as journal_device

MARK = "/no-such-folder/mark: "
GPU = gpu(0).uuid
NOTE = "mig-mode"


def mark(name: str) -> None:
    """What is synced from now on belongs to ``name``. The call fails; test_durability.py sees it."""
    with suppress(FileNotFoundError):
        Path(f"{MARK}{name}").unlink()


def device(number: int, *, live: bool = False) -> AssignedDevice:
    uuid = gpu(number).uuid
    part = partition(gpu=uuid, gi_id=number if live else None)
    return journal_device(device=DeviceName(f"gpu-{number}-mig"), gpu_uuid=uuid, partition=part)


def begin(journal: Journal, number: int, *, durable: bool = False) -> AttemptToken:
    attempt = journal.begin(ref(number), [device(number)], durable=durable)
    assert isinstance(attempt, AttemptToken)
    return attempt


def journal_steps(folder: Path) -> None:
    """Each public write of the journal that says ``durable``, after one that is not, so that no sync is inherited."""

    def opened(boot_id: str) -> Journal:
        return Journal.open(folder / "state.db", boot_id=boot_id, owner=OwnerId("run"), now=lambda: 1.0)

    numbers = itertools.count(10)

    def step(name: str, work: Callable[[], object]) -> None:
        """Between two writes that are not durable; ``work`` is True or None where it did what it should."""
        mark("write without durable")
        begin(journal, next(numbers))
        mark(name)
        assert work() in (True, None), name
        mark("")

    mark("open")
    journal = opened("boot-1")
    begin(journal, next(numbers))  # the first write begins a new log, which syncs its header
    attempts: dict[str, AttemptToken] = {}

    def begun() -> None:
        attempts["one"] = begin(journal, 1, durable=True)

    whole = replace(device(5), partition=None)
    step("durable record_prepared", lambda: journal.record_prepared([(ref(5), [whole])], lambda _: None) == {uid(5)})
    step("durable forget_prepared", lambda: journal.forget_prepared([uid(5)], lambda _: None) == {uid(5)})
    step("durable begin", begun)
    step("durable finish", lambda: journal.finish(uid(1), attempts["one"], [device(1, live=True)]))

    def unprepare() -> None:
        found = journal.start_unprepare(uid(1), durable=True)
        assert found is not None
        attempts["two"] = found

    step("durable start_unprepare", unprepare)
    step("durable forget", lambda: journal.forget(uid(1), attempts["two"], partitions_left=True))
    (orphan,) = journal.orphaned_partitions()
    step("durable forget_orphaned_partition", lambda: journal.forget_orphaned_partition(orphan))
    step("durable set_gpu_note", lambda: journal.set_gpu_note(GPU, NOTE, "on"))
    step("durable clear_gpu_note", lambda: journal.clear_gpu_note(GPU, NOTE))
    step("durable adopt", lambda: journal.adopt(ref(2), [device(2, live=True)]))
    step("durable note_rebuilt", journal.note_rebuilt)
    journal.set_gpu_note(GPU, NOTE, "on")
    journal.begin(ref(3), [replace(device(3), partition=None)])
    journal.close()
    mark("open")
    journal = opened("boot-2")
    begin(journal, next(numbers))
    step("durable drop_older_notes", lambda: journal.drop_older_notes([NOTE]))
    step("durable drop_older_boots", lambda: journal.drop_older_boots() == (uid(3),))
    journal.close()
    journal = opened("boot-2")
    mark("first write after opening")
    journal.set_gpu_note(GPU, NOTE, "on")
    mark("")
    journal.close()


def file_steps(folder: Path) -> None:
    mark("renamed policies in force")
    save_set(folder / "policies-in-force.json", PolicySet())
    writer = CdiWriter(str(folder / "cdi"), NAMES)
    every = CdiDevice(name="all", container_edits=ContainerEdits(env=("A=1",)))
    base = CdiSpec(kind=NAMES.device_kind, devices=(every,))
    mark("renamed CDI base file")
    writer.write_base(base)
    mark("renamed small file")
    replace_file(folder / "small", b"x", durable=True)
    mark("small file that need not be durable")
    replace_file(folder / "small", b"y")
    mark("end")


if __name__ == "__main__":
    home = Path(sys.argv[1])
    (home / "cdi").mkdir()
    journal_steps(home)
    file_steps(home)
