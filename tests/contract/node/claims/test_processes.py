"""Node processes that are killed at any moment, work on the same GPUs at once, or have no disk space."""

import json
import random
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from dra_driver.core.errors import DraError
from dra_driver.core.model.ids import ClaimUid, GpuUuid
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.entry import State
from tests.contract.node.claims.dying import CLAIMS, Node
from tests.contract.node.claims.node import GPUS, open_claims_service
from tests.fakes.claims import NAMES, claim, part, ref, result, uid
from tests.fakes.node_process import memory_folder
from tests.fakes.simulated_gpus import SimulatedBackend

KILLS = 12
ROUNDS = 40
EVERY = 6
LANES = 2
SWITCH_S = 0.002  # a switch of MIG mode takes long enough for the other process to come in between


@contextmanager
def node(state: Path, cdi: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.contract.node.claims.node", str(state), str(cdi), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == {"ready": True}
        yield process
    finally:
        process.kill()
        process.communicate(timeout=20)


def lines(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, _ = process.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines() if line.endswith("}")]


def test_a_kill_at_any_moment_loses_no_answered_claim(tmp_path: Path) -> None:
    state, cdi = tmp_path / "state", tmp_path / "cdi"
    dice = random.Random(7)  # noqa: S311 - moments to kill at, not a secret
    cut_off = 0
    for attempt in range(KILLS):
        with node(state, cdi, "churn", 2 * GPUS * attempt) as process:
            time.sleep(dice.uniform(0.0, 0.03))
            process.kill()
            said = lines(process)
        told = {line["claim"]: line["done"] for line in said if "done" in line}
        unanswered = said[-1]["claim"] if said and "begin" in said[-1] else None
        cut_off += unanswered is not None
        claims = open_claims_service(str(state), str(cdi))
        found = claims.service.recover()
        assert not found.problems
        entries = {entry.ref.uid: entry for entry in claims.journal.entries()}
        assert {entry.state for entry in entries.values()} <= {State.PREPARED}
        assert CdiWriter(str(cdi), NAMES).claim_uids() == set(entries)
        metadata = {path.name for path in (state / "dra-device-metadata").glob("*.json")}
        # A killed unprepare can have removed the file already; the kubelet repeats it.
        sure = {each for each in entries if unanswered is None or each != uid(unanswered)}
        assert {f"{each}_gpu.json" for each in sure} <= metadata <= {f"{each}_gpu.json" for each in entries}
        for number, what in told.items():
            assert number == unanswered or (uid(number) in entries) == (what == "prepare"), (number, what)
        claims.service.unprepare([ref(number) for number in range(GPUS)])
        claims.close()
        assert list(cdi.glob("*claim_*")) == []
    assert cut_off > 0, "no kill met a call; the churn is too slow or the pauses too short"


def test_one_of_two_processes_gets_a_gpu(tmp_path: Path) -> None:
    state, cdi, go = tmp_path / "state", tmp_path / "cdi", tmp_path / "go"
    go.mkdir()
    with node(state, cdi, "race", 1, go, ROUNDS) as one, node(state, cdi, "race", 2, go, ROUNDS) as two:
        won = {one.pid: 0, two.pid: 0}
        for number in range(ROUNDS):
            (go / f"go-{number}").touch()
            answers = {process.pid: said(process) for process in (one, two)}
            winners = [pid for pid, answer in answers.items() if answer["won"]]
            assert len(winners) == 1, answers
            won[winners[0]] += 1
            loser = next(answer for answer in answers.values() if not answer["won"])
            assert "gpu-0" in loser["answer"]
            assert len(list(cdi.glob("*claim_*"))) == 1
            (go / f"over-{number}").touch()
            assert [said(process) for process in (one, two)] == [{"free": number}] * 2
    assert list(cdi.glob("*claim_*")) == []


def said(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line: dict[str, Any] = json.loads(process.stdout.readline())
    return line


def test_a_full_disk_fails_claims_with_an_error_and_recovers(tmp_path: Path) -> None:
    state, cdi = tmp_path / "state", tmp_path / "cdi"
    claims = open_claims_service(
        str(state), str(cdi)
    )  # keeps the write-ahead log: the last connection to close removes it
    claims.service.recover()
    written = len((state / "state.db-wal").read_bytes().rstrip(b"\0"))  # the rest is room for later commits
    limit = written + 30_000
    with node(state, cdi, "small-files", limit) as process:
        first, second = lines(process)
    claims.close()
    assert first["errors"]
    assert all("in the journal" in error and "an I/O error" in error for error in first["errors"])
    assert second == {"errors": [], "prepared": GPUS}
    assert len(list(cdi.glob("*claim_*"))) == GPUS


def test_a_journal_can_be_read_while_it_is_used(tmp_path: Path) -> None:
    claims = open_claims_service(str(tmp_path), str(tmp_path / "cdi"))
    claims.service.recover()
    claims.service.prepare([ref(3)])
    reader = sqlite3.connect(f"file:{tmp_path}/state.db?mode=ro", uri=True)
    assert reader.execute("SELECT namespace, name, state, device FROM claim JOIN device USING (uid)").fetchall() == [
        ("default", "claim-3", "prepared", "gpu-3")
    ]
    assert claims.service.unprepare([ref(3)]) == {uid(3): None}
    reader.close()
    claims.close()


def killed(folder: Path, step: int) -> tuple[bool, list[str]]:
    command = [sys.executable, "-m", "tests.contract.node.claims.dying", str(folder), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stdout.splitlines()
    assert ended.returncode == -9 or (ended.returncode, lines[-1]) == (0, "done"), ended.stderr
    return ended.returncode == -9, lines


@pytest.mark.parametrize("lane", [pytest.param(0, marks=pytest.mark.slow), *range(1, LANES)])
@pytest.mark.slow
def test_a_kill_while_gpus_change_loses_and_leaves_nothing(lane: int) -> None:
    step, deaths = lane * EVERY // LANES, 0
    while True:
        with TemporaryDirectory(dir=memory_folder()) as folder:
            died, lines = killed(Path(folder), step)
            check(Node(Path(folder)), lines)
        if not died:
            break
        step, deaths = step + EVERY, deaths + 1
    assert deaths >= 3


def numbers(lines: Sequence[str], answer: str) -> set[ClaimUid]:
    return {uid(int(line.split()[1])) for line in lines if line.startswith(f"{answer} ")}


def check(node: Node, lines: Sequence[str]) -> None:
    """Check ``node``, which has just recovered, against the answers of the dead process."""
    journal = node.claims.journal
    kept = numbers(lines, "prepared") - numbers(lines, "unpreparing")
    assert kept <= journal.uids(), "the kubelet was told that they are prepared"
    assert kept <= set(CdiWriter(str(node.folder / "cdi"), NAMES).claim_uids())
    assert not numbers(lines, "unprepared") & journal.uids()
    assert {entry.state for entry in journal.entries()} <= {State.PREPARED}
    parts = [assigned.device.partition for assigned in journal.assignments() if assigned.device.partition is not None]
    there = [one.gi_id for gpu in node.backend.snapshot().gpus for one in gpu.mig_instances]
    assert sorted(part.live.gi_id for part in parts if part.live is not None) == sorted(there)
    assert node.backend.snapshot().gpus[0].mig_enabled == bool(there)
    for number in CLAIMS:
        assert node.claims.service.unprepare([ref(number)]) == {ref(number).uid: None}
    assert list((node.folder / "mps" / "daemons").iterdir()) == []
    node.finish()


CALLS, THREADS = 6, 6


class WatchedHardware:
    """Simulated hardware of one process; ``log`` is shared by both and counts what they do to each GPU."""

    def __init__(self, backend: SimulatedBackend, log: "HardwareLog") -> None:
        self._backend = backend
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def set_mig_mode(self, gpu: GpuUuid, enabled: bool) -> None:
        with self._log.switching(gpu):
            time.sleep(SWITCH_S)
            found = self._backend.snapshot().gpu_by_uuid(gpu)
            assert found is not None
            assert found.mig_enabled is not enabled, f"MIG mode of {gpu} is already {enabled}"
            self._backend.set_mig_mode(gpu, enabled)

    def create_gpu_instance(self, gpu: GpuUuid, profile_id: int, start: int) -> int:
        created = self._backend.create_gpu_instance(gpu, profile_id, start)
        self._log.created[gpu, start] += 1
        return created


class HardwareLog:
    """Instances created by GPU and start, and GPUs whose MIG mode two processes switched at the same time."""

    def __init__(self) -> None:
        self.created: Counter[tuple[str, int]] = Counter()
        self.overlaps: list[str] = []
        self._lock = threading.Lock()  # guards the set
        self._switching: set[str] = set()

    @contextmanager
    def switching(self, gpu: str) -> Iterator[None]:
        with self._lock:
            if gpu in self._switching:
                self.overlaps.append(gpu)
            self._switching.add(gpu)
        try:
            yield
        finally:
            with self._lock:
                self._switching.discard(gpu)


def test_two_processes_create_each_partition_once_and_leave_whole_gpus() -> None:
    log = HardwareLog()

    def watch(tool: Any) -> Any:
        return WatchedHardware(tool, log) if isinstance(tool, SimulatedBackend) else tool

    with TemporaryDirectory(dir=memory_folder()) as folder:
        nodes = [Node(Path(folder), watch, mps=name) for name in ("mps-1", "mps-2")]
        gpus = nodes[0].gpus[:2]
        failures: list[str] = []

        def work_of(node: Node, number: int) -> Callable[[], None]:
            """Claims for one partition of each of the two GPUs, in an order that differs between threads."""
            profile = next(p for p in gpus[0].mig_profiles if p.name == "1g.10gb")
            minors = (0, 1) if number % 2 else (1, 0)
            wanted = claim(number, *(result(part(m, profile, number), request=f"r{m}") for m in minors))
            node.api.put(wanted)

            def work() -> None:
                for _ in range(CALLS):
                    for call in (node.claims.service.prepare, node.claims.service.unprepare):
                        answer = call([ref(number)])[ref(number).uid]
                        if isinstance(answer, DraError):
                            failures.append(str(answer))

            return work

        threads = [
            threading.Thread(target=work_of(nodes[number % 2], number), name=f"kubelet-{number}", daemon=True)
            for number in range(THREADS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [thread.name for thread in threads if thread.is_alive()] == []
        assert failures == []
        assert log.overlaps == []
        assert log.created == {(gpu.uuid, start): CALLS for gpu in gpus for start in range(THREADS)}
        for node in nodes:
            node.finish()
