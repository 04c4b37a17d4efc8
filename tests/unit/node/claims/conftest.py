"""A claims service over fakes and a real journal in a temporary directory."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec.structs import replace

from dra_driver.config.parameters import API_VERSION
from dra_driver.core.errors import DraError
from dra_driver.core.model.claim import AllocatedClaim, AllocatedDevice, ClaimRef, OpaqueConfig, PreparedDevice
from dra_driver.core.model.gpu import Gpu, Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.mig import MigInstance, MigProfile
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy, Terms
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.mig.manager import MigManager
from dra_driver.node.claims.dependencies import ClaimDependencies, Event, HardwareDependencies
from dra_driver.node.claims.entry import Entry
from dra_driver.node.claims.journal import Journal
from dra_driver.node.claims.waiting import GpuLocks, RetryPolicy
from dra_driver.node.claims.workflow.service import ClaimService
from dra_driver.node.process.hardware import OwnedBackend
from tests.fakes.claims import (
    NAMES,
    POOL,
    FakeCdiProvider,
    FakeCdiWriter,
    FakeClaims,
    FakeClock,
    FakeMps,
    FakeProcessRegistry,
    FakeSharing,
    FakeSlicer,
    claim,
    machine,
    part,
    result,
    share_result,
    uid,
)
from tests.fakes.node_process import memory_folder
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.fakes.stand_in import present

SMALL, HALF = "1g.10gb", "3g.40gb"


@dataclass
class ClaimsNode:
    """A node with four GPUs. ``run`` opens the same state as another run of the driver would."""

    folder: Path
    api: FakeClaims = field(default_factory=FakeClaims)
    writer: FakeCdiWriter = field(default_factory=FakeCdiWriter)
    provider: FakeCdiProvider = field(default_factory=FakeCdiProvider)
    clock: FakeClock = field(default_factory=FakeClock)
    hardware: Snapshot = field(default_factory=lambda: machine(4))
    events: list[Event] = field(default_factory=list)
    opened: list[Journal] = field(default_factory=list)
    backend: SimulatedBackend | None = None
    sharing: FakeSharing = field(default_factory=FakeSharing)
    terms: Terms = field(default_factory=dict)
    wrap: Callable[[Any], Any] = lambda each: each
    outdated: Snapshot | None = None  # what claims are planned with in place of the present hardware

    def run(self, name: str = "run-1", *, alive: tuple[str, ...] = (), boot_id: str = "boot-1") -> "Run":
        owners = FakeProcessRegistry(name, alive)
        journal = Journal.open(self.folder / "state.db", boot_id=boot_id, owner=owners.own, now=self.clock.now)
        self.opened.append(journal)
        snapshot: Callable[[], Snapshot] = lambda: self.hardware  # noqa: E731
        hardware = None
        if self.backend is not None:
            owned = OwnedBackend(self.backend)
            owned.use_journal(journal)
            snapshot = lambda: self.outdated or owned.snapshot()  # noqa: E731
            hardware = self.hardware_dependencies(self.backend, self.wrap(journal))
        deps = ClaimDependencies(
            pool=POOL,
            names=NAMES,
            reader=self.api,
            journal=self.wrap(journal),
            writer=self.wrap(self.writer),
            metadata=True,
            provider=self.provider,
            owners=owners,
            snapshot=snapshot,
            hardware=hardware,
            terms=lambda: self.terms,
            gpu_locks=GpuLocks(self.folder / "locks"),
            count=self.events.append,
            clock=self.clock,
            retry_policy=RetryPolicy(),
        )
        return Run(node=self, journal=journal, deps=deps, owners=owners)

    def hardware_dependencies(self, backend: SimulatedBackend, notes: Journal) -> HardwareDependencies:
        control = self.wrap(backend)
        return HardwareDependencies(
            mig=MigManager(control, notes, sleep=self.clock.wait, clock=self.clock.now),
            slicer=self.wrap(FakeSlicer(self.sharing, notes)),
            mps=self.wrap(FakeMps(self.sharing, control, notes)),
            changed=lambda: None,
            fabric=backend.fabric,
        )

    @property
    def simulation(self) -> SimulatedBackend:
        """The simulated GPUs of a node that has such."""
        return present(self.backend)

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The simulated GPUs in their present state."""
        return self.simulation.snapshot().gpus

    def profile(self, name: str, minor: int = 0) -> MigProfile:
        return next(profile for profile in self.gpus[minor].mig_profiles if profile.name == name)

    def part(self, name: str, start: int, minor: int = 0) -> str:
        """The device name of a partition."""
        return part(minor, self.profile(name, minor), start)

    def is_whole_again(self) -> bool:
        """Whether no GPU has partitions or changed settings, and no note exists."""
        notes = self.opened[-1].noted_gpus()
        uncut = all(not gpu.mig_instances and not gpu.mig_enabled for gpu in self.gpus)
        return uncut and self.sharing.idle and not notes

    def lose_journal(self) -> None:
        """Close every run's journal and delete it. CDI files and backups stay."""
        for journal in self.opened:
            journal.close()
        for path in self.folder.glob("state.db*"):
            path.unlink()


@dataclass
class Run:
    """One run of the driver."""

    node: ClaimsNode
    journal: Journal
    deps: ClaimDependencies
    owners: FakeProcessRegistry

    def __post_init__(self) -> None:
        self.service = ClaimService(self.deps)
        self.service.recover()  # as at every start; a new journal has nothing to recover

    def replaced(self, **deps: Any) -> "Run":
        """The same run with other dependencies."""
        return Run(node=self.node, journal=self.journal, deps=replace(self.deps, **deps), owners=self.owners)

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
        of = what if isinstance(what, ClaimRef) else self.node.api.put(what).ref
        answers = self.service.prepare([of])
        assert list(answers) == [of.uid]
        return answers[of.uid]

    def entry(self, number: int) -> Entry:
        """The entry of a claim that has to be in the journal."""
        return present(self.journal.entry(uid(number)))

    def unprepare(self, of: ClaimRef) -> DraError | None:
        answers = self.service.unprepare([of])
        assert list(answers) == [of.uid]
        return answers[of.uid]


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: a journal waits for the disk at each durable step, and these tests are not about disks."""
    with TemporaryDirectory(dir=memory_folder()) as folder:
        yield Path(folder)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[ClaimsNode]:
    made = ClaimsNode(tmp_path)
    yield made
    for journal in made.opened:
        journal.close()


@pytest.fixture
def run(node: ClaimsNode) -> Run:
    return node.run()


def simulated(spec: str = "2xh100-sxm5-80gb", state: Path | None = None) -> SimulatedBackend:
    return SimulatedBackend.from_spec(spec, "node-a", state)


def hardware(run: Run) -> SimulatedBackend:
    return run.node.simulation


def instances(run: Run, minor: int = 0) -> tuple[MigInstance, ...]:
    return run.node.gpus[minor].mig_instances


@pytest.fixture
def h100(node: ClaimsNode) -> Run:
    """A run on a node with two H100."""
    node.backend = simulated()
    return node.run()


def shared(node: ClaimsNode, strategy: Strategy = Strategy.MPS, **more: Any) -> Run:
    """A run on a node with two H100, the first of which is shared."""
    node.backend = simulated()
    terms = SharingTerms(strategy=strategy, **more)
    node.terms = {node.gpus[0].uuid: GpuTerms(policy="shared-gpus", sharing=terms)}
    return node.run()


def config(kind: str, sharing: Mapping[str, Any], *requests: str, source: Any = "FromClaim") -> OpaqueConfig:
    return OpaqueConfig(
        source=source, requests=requests, parameters={"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}
    )


def mps(**limits: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": limits}


def slicing(interval: str) -> dict[str, Any]:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def mode(run: Run, minor: int = 0) -> ComputeMode:
    return run.node.simulation.compute_mode(run.node.gpus[minor].uuid)


def file(run: Run, number: int) -> str:
    return run.node.writer.files[uid(number)].decode()


def uuid(run: Run, minor: int) -> GpuUuid:
    return run.node.gpus[minor].uuid


def one_of_some(number: int, memory: str = "1Gi", percent: int = 1, **more: Any) -> AllocatedDevice:
    """A share of a GPU whose policy limits their number."""
    share = share_result(number, memory, percent, **more)
    return replace(share, consumed_capacity={**share.consumed_capacity, "shares": "1"})


@pytest.fixture
def partitioned(h100: Run) -> Run:
    """The same, with claim 1 prepared: a small partition of the first GPU."""
    h100.prepare(claim(1, result(h100.node.part(SMALL, 0))))
    return h100
