"""One claims room over fakes and a real journal in a temporary directory."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dra_driver.claims.journal import Journal
from dra_driver.claims.service import ClaimService
from dra_driver.claims.tools import Event, Tools
from dra_driver.claims.waiting import Patience
from dra_driver.errors import DraError
from dra_driver.model.claim import AllocatedClaim, ClaimRef, PreparedDevice
from dra_driver.model.gpu import Snapshot
from tests.fakes.claims import (
    NAMES,
    POOL,
    FakeBell,
    FakeCdiProvider,
    FakeCdiWriter,
    FakeClaims,
    FakeOwners,
    machine,
)


@dataclass
class Room:
    """A node with four GPUs. ``run`` opens the same state as another run of the driver would."""

    folder: Path
    api: FakeClaims = field(default_factory=FakeClaims)
    writer: FakeCdiWriter = field(default_factory=FakeCdiWriter)
    provider: FakeCdiProvider = field(default_factory=FakeCdiProvider)
    bell: FakeBell = field(default_factory=FakeBell)
    hardware: Snapshot = field(default_factory=lambda: machine(4))
    events: list[Event] = field(default_factory=list)
    opened: list[Journal] = field(default_factory=list)

    def run(self, name: str = "run-1", *, alive: tuple[str, ...] = (), boot_id: str = "boot-1") -> "Run":
        owners = FakeOwners(name, alive)
        journal = Journal.open(self.folder / "state.db", boot_id=boot_id, owner=owners.own, now=self.bell.now)
        self.opened.append(journal)
        tools = Tools(
            pool=POOL,
            names=NAMES,
            reader=self.api,
            journal=journal,
            writer=self.writer,
            provider=self.provider,
            owners=owners,
            snapshot=lambda: self.hardware,
            count=self.events.append,
            bell=self.bell,
            patience=Patience(),
        )
        return Run(room=self, journal=journal, tools=tools, owners=owners)


@dataclass
class Run:
    """One run of the driver."""

    room: Room
    journal: Journal
    tools: Tools
    owners: FakeOwners

    def __post_init__(self) -> None:
        self.service = ClaimService(self.tools, lister=self.room.api)
        self.service.recover()  # what every start does; on a new journal it finds nothing

    def prepare(self, what: AllocatedClaim | ClaimRef) -> tuple[PreparedDevice, ...]:
        """The devices of one claim that has to succeed."""
        answer = self.answer(what)
        assert not isinstance(answer, DraError), answer
        return answer

    def refusal(self, what: AllocatedClaim | ClaimRef) -> DraError:
        """The error of one claim that has to fail."""
        answer = self.answer(what)
        assert isinstance(answer, DraError), answer
        return answer

    def answer(self, what: AllocatedClaim | ClaimRef) -> tuple[PreparedDevice, ...] | DraError:
        of = what if isinstance(what, ClaimRef) else self.room.api.put(what).ref
        answers = self.service.prepare([of])
        assert list(answers) == [of.uid]
        return answers[of.uid]

    def unprepare(self, of: ClaimRef) -> DraError | None:
        answers = self.service.unprepare([of])
        assert list(answers) == [of.uid]
        return answers[of.uid]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    yield made
    for journal in made.opened:
        journal.close()


@pytest.fixture
def run(room: Room) -> Run:
    return room.run()
