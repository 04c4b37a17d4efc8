"""Random histories of a node whose process is killed between any two persisted steps keep the invariants below.

Killing is an exception that nothing in the driver catches (a BaseException), raised before or after a chosen call that
changes the journal or a CDI file; afterwards a new run opens the same files, as after ``kill -9``.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from dra_driver.core.errors import ApiUnreachableError, DeviceInUseError, DraError, StorageError
from dra_driver.core.model.claim import AllocatedClaim, PreparedDevice
from dra_driver.core.model.ids import ClaimUid
from dra_driver.node.claims.entry import State
from tests.fakes.claims import claim, machine, ref, result, uid
from tests.fakes.fuse import Fuse, Fused, Killed
from tests.fakes.node_process import memory_folder
from tests.unit.node.claims.conftest import ClaimsNode, Run
from tests.unit.node.claims.test_kill_hardware import FILES, JOURNAL, MAINTENANCE

STEPS = JOURNAL | MAINTENANCE | FILES | {"record_prepared", "forget_prepared"}
CLAIMS = st.integers(1, 6)
GPUS = 3


class NodeHistory(RuleBasedStateMachine):
    """One node, its kubelet and its API server."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(dir=memory_folder()))
        self.node = ClaimsNode(self.folder, hardware=machine(GPUS))
        self.fuse = Fuse()
        self.boot = 1
        self.runs = 0
        self.answers: dict[ClaimUid, tuple[PreparedDevice, ...]] = {}
        self.with_file: set[ClaimUid] = set()  # answered, and no other program has changed the file since
        self.run = self._start()

    def teardown(self) -> None:
        try:
            self.node.api.outage = None
            self.after_maintenance_files_and_entries_agree()
        finally:
            self._close()

    def _close(self) -> None:
        for journal in self.node.opened:
            journal.close()
        shutil.rmtree(self.folder)

    @initialize(devices=st.lists(st.tuples(st.integers(0, GPUS - 1), st.booleans()), min_size=6, max_size=6))
    def claims_exist(self, devices: list[tuple[int, bool]]) -> None:
        for number, (minor, admin) in enumerate(devices, 1):
            self.node.api.put(claim(number, result(f"gpu-{minor}", admin_access=admin)))

    @rule(number=CLAIMS)
    def prepare(self, number: int) -> None:
        self._prepare(number)

    @rule(number=CLAIMS)
    def unprepare(self, number: int) -> None:
        answer = self.run.unprepare(ref(number))
        assert answer is None
        assert self.run.journal.entry(uid(number)) is None
        assert uid(number) not in self.node.writer.files
        self._forget(uid(number))

    @rule(number=CLAIMS, steps=st.integers(0, 9), what=st.sampled_from(["prepare", "unprepare"]))
    def killed_in_a_call(self, number: int, steps: int, what: str) -> None:
        def call() -> None:
            if what == "prepare":
                self._prepare(number)
            else:
                self.unprepare(number)

        self._until_killed(call, steps)
        entry = self.run.journal.entry(uid(number))
        if what == "unprepare" and (entry is None or entry.state is not State.PREPARED):
            self._forget(uid(number))  # the kubelet got no answer and will repeat the call

    @rule(steps=st.integers(0, 9))
    def killed_while_recovering(self, steps: int) -> None:
        self._until_killed(self.run.service.maintain, steps)

    @rule()
    def restarted(self) -> None:
        self.run = self._start()

    @rule()
    def rebooted(self) -> None:
        self.boot += 1
        self.node.writer.files.clear()
        self.answers.clear()
        self.with_file.clear()
        self.run = self._start()

    @rule(number=CLAIMS)
    def another_program_removes_a_file(self, number: int) -> None:
        self.node.writer.files.pop(uid(number), None)
        self.with_file.discard(uid(number))
        if self.run.journal.entry(uid(number)) is None:
            self._forget(uid(number))  # journal and file are lost: no trace of the claim is left on the node

    @rule(away=st.booleans())
    def the_api_server_goes_or_comes(self, away: bool) -> None:
        self.node.api.outage = ApiUnreachableError("connection refused") if away else None

    @rule()
    def journal_lost(self) -> None:
        self.node.lose_journal()
        for prepared in [each for each in self.answers if each not in self.node.writer.files]:
            self._forget(prepared)  # no trace of the claim is left on the node
        self.run = self._start()

    @rule(number=CLAIMS, what=st.sampled_from(["prepare", "unprepare"]))
    def the_disk_refuses(self, number: int, what: str) -> None:
        self.node.writer.failure = StorageError("the disk is full")
        call: Callable[..., object] = self.run.answer if what == "prepare" else self.run.unprepare
        call(ref(number))
        self.node.writer.failure = None
        entry = self.run.journal.entry(uid(number))
        if entry is None or entry.state is not State.PREPARED:
            self._forget(uid(number))

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def repeated(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(sorted(self.answers)))
        before, self.node.api.outage = self.node.api.outage, None
        self.run.service.maintain()
        self.node.api.outage = before
        if self.run.journal.entry(known) is not None:
            assert self.run.prepare(self._claim(known).ref) == self.answers[known]
            self.with_file.add(known)

    @invariant()
    def no_device_is_held_twice(self) -> None:
        assigned = [
            device.device for entry in self.run.journal.entries() for device in entry.devices if not device.admin_access
        ]
        assert len(assigned) == len(set(assigned))

    @invariant()
    def answered_claims_stay_prepared(self) -> None:
        assert self.with_file <= set(self.node.writer.files)
        prepared = {entry.ref.uid for entry in self.run.journal.entries() if entry.state is State.PREPARED}
        assert set(self.answers) <= prepared or self.run.journal.rebuild_pending

    @rule()
    def after_maintenance_files_and_entries_agree(self) -> None:
        self.run.service.maintain()
        entries = self.run.journal.entries()
        assert {entry.state for entry in entries} <= {State.PREPARED}
        with_entry = {entry.ref.uid for entry in entries}
        assert with_entry <= set(self.node.writer.files)
        assert with_entry == set(self.node.writer.files) or self.run.journal.rebuild_pending
        for entry in entries:
            names = [f"{entry.ref.uid}-{device.device}" for device in entry.devices]
            assert self.node.writer.devices(entry.ref.uid) == names

    def _prepare(self, number: int) -> None:
        answer = self.run.answer(ref(number))
        if isinstance(answer, ApiUnreachableError):
            assert self.node.api.outage is not None
            return
        if isinstance(answer, DraError):
            assert isinstance(answer, DeviceInUseError), answer
            wanted = self._claim(uid(number)).results[0].device
            holders = [e for e in self.run.journal.entries() if any(d.device == wanted for d in e.devices)]
            assert holders
            return
        assert self.answers.setdefault(uid(number), answer) == answer
        assert uid(number) in self.node.writer.files
        self.with_file.add(uid(number))

    def _forget(self, of: ClaimUid) -> None:
        self.answers.pop(of, None)
        self.with_file.discard(of)

    def _claim(self, of: ClaimUid) -> AllocatedClaim:
        found = [each for each in self.node.api.by_name.values() if each is not None and each.ref.uid == of]
        return found[0]

    def _until_killed(self, call: Callable[[], object], steps: int) -> None:
        self.fuse.left = steps
        try:
            call()
        except Killed:
            self.run = self._start()
        finally:
            self.fuse.left = None

    def _start(self) -> Run:
        """Another run over the same files; the previous one is dead, and its connection is dropped."""
        self.runs += 1
        run = self.node.run(f"run-{self.runs}", boot_id=f"boot-{self.boot}")
        fused = replace(
            run.deps,
            journal=Fused(run.journal, self.fuse, STEPS),
            writer=Fused(self.node.writer, self.fuse, STEPS),
        )
        return Run(node=self.node, journal=run.journal, deps=fused, owners=run.owners)


TestNodeHistory = NodeHistory.TestCase
TestNodeHistory.settings = settings(stateful_step_count=30, suppress_health_check=[HealthCheck.too_slow])


def test_every_step_of_a_call_can_be_the_last(tmp_path: Path) -> None:
    for what in ("prepare", "unprepare"):
        steps = 0
        while True:
            folder = tmp_path / f"{what}-{steps}"
            folder.mkdir()
            node = NodeHistory()
            try:
                node.claims_exist([(0, False)] * 6)
                if what == "unprepare":
                    node.prepare(1)
                runs = node.runs
                node.killed_in_a_call(1, steps, what)
                node.no_device_is_held_twice()
                node.answered_claims_stay_prepared()
                node.after_maintenance_files_and_entries_agree()
                node.prepare(1)
                node.unprepare(1)
                node.prepare(2)
            finally:
                node.teardown()
            if node.runs == runs:
                break  # the call ended before the kill
            steps += 1
        # Each step has a before and an after. A prepare writes two files while it records the claim.
        assert steps == {"prepare": 6, "unprepare": 4}[what]
