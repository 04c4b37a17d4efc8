"""A node process killed with SIGKILL while it changes GPUs, over the real files."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dra_driver.core.model.ids import ClaimUid
from dra_driver.hardware.cdi.writer import CdiWriter
from dra_driver.node.claims.entry import State
from tests.contract.node.claims.dying import CLAIMS, DyingNode
from tests.fakes.claims import NAMES, ref, uid
from tests.fakes.memory import memory_folder

EVERY = 6
LANES = 2


def killed(folder: Path, step: int) -> tuple[bool, list[str]]:
    """Whether the process died at that step (False when it ended before), and the lines that it printed."""
    command = [sys.executable, "-m", "tests.contract.node.claims.dying", str(folder), str(step)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = ended.stdout.splitlines()
    assert ended.returncode == -9 or (ended.returncode, lines[-1]) == (0, "done"), ended.stderr
    return ended.returncode == -9, lines


@pytest.mark.parametrize("lane", [pytest.param(0, marks=pytest.mark.slow), *range(1, LANES)])
def test_a_kill_while_gpus_change_loses_and_leaves_nothing(lane: int) -> None:
    """The next start keeps answered claims and releases the rest: instances, mode, notes, daemons, files."""
    step, deaths = lane * EVERY // LANES, 0
    while True:
        with TemporaryDirectory(dir=memory_folder()) as folder:
            died, lines = killed(Path(folder), step)
            check(DyingNode(Path(folder), 0), lines)
        if not died:
            break
        step, deaths = step + EVERY, deaths + 1
    assert deaths >= 3


def numbers(lines: Sequence[str], answer: str) -> set[ClaimUid]:
    return {uid(int(line.split()[1])) for line in lines if line.startswith(f"{answer} ")}


def check(node: DyingNode, lines: Sequence[str]) -> None:
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
