"""Journal and CDI writer in real processes: killed at any moment, two at once, and without disk space."""

import json
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.entry import State
from tests.contract.node.claims.node import GPUS, open_claims_service
from tests.fakes.claims import NAMES, ref, uid

KILLS = 12
ROUNDS = 40


@contextmanager
def node(state: Path, cdi: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The process, ready; killed at the end if it still lives."""
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
    """The output of a process that ends."""
    out, _ = process.communicate(timeout=60)
    return [json.loads(line) for line in out.splitlines() if line.endswith("}")]


def test_a_kill_at_any_moment_loses_no_answered_claim(tmp_path: Path) -> None:
    """After a restart answered claims are prepared, interrupted ones are torn down, and no file is orphaned."""
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
        for number, what in told.items():
            assert number == unanswered or (uid(number) in entries) == (what == "prepare"), (number, what)
        claims.service.unprepare([ref(number) for number in range(GPUS)])
        claims.close()
        assert list(cdi.glob("*claim_*")) == []
    assert cut_off > 0, "no kill met a call; the churn is too slow or the pauses too short"


def test_one_of_two_processes_gets_a_gpu(tmp_path: Path) -> None:
    """During a rolling update two runs serve, and only the journal separates them."""
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
    """A file size limit stands for a full disk: each claim is prepared or leaves nothing."""
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
    """The sqlite3 command blocks no call and shows readable values."""
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
