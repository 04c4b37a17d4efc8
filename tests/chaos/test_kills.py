"""kill -9 before every step with which a prepare, an unprepare, a rebuild or an upgrade changes the node. Steps are the
process' system calls, and changes of the simulated hardware; of a transaction's writes the first and the last count."""

import json
import shutil
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.chaos.stage import FaultRecord, Stage
from tests.fakes.live_claims import Obj
from tests.fakes.live_node import LiveNode, until
from tests.fakes.syscalls import KILL, PASS, Step, Supervisor, supported
from tests.scenario.test_upgrade import POLICY, RECORDING, SPEC, add_claim, answered, lay_out, replaced

pytestmark = [
    pytest.mark.skipif(not supported(), reason="the filter of system calls does not know this architecture"),
    pytest.mark.timeout(600),
]
MOST_STEPS = 150
LEAST_KILLS = {"prepare": 10, "unprepare": 8, "start": 12}
"""A whole GPU's claim has the fewest steps. With fewer kills, the filter no longer sees what the process does."""
NOT_COUNTED = ("simulated-root", ".lock", "/plugins_registry/", "kubelet-plugin.log", "dra.sock")
"""Files that are no state: those of the simulated driver, locks, sockets."""


class Fuse:
    """A rule that kills before the ``at``-th step; a ``step`` that is None was never reached."""

    def __init__(self, root: Path, at: int) -> None:
        self.step: Step | None = None
        self._root = str(root)
        self._left = at
        self._last = ""

    def __call__(self, step: Step) -> int:
        if self.step is not None:
            return KILL  # another thread of the dying process
        if not step.path.startswith(self._root) or any(part in step.path for part in NOT_COUNTED):
            return PASS
        if step.call == "openat":
            return PASS  # a temporary file, which its rename makes count, or one that is there already
        again = step.call == "pwrite64" and self._last == str(step)
        self._last = str(step)
        if again:
            return PASS
        self._left -= 1
        if self._left:
            return PASS
        self.step = step
        return KILL


def short(step: Step) -> str:
    name = Path(step.path).name.partition("-claim_")
    return f"{step.call} {name[0]}{'-claim' if name[1] else ''}"


@pytest.mark.parametrize(
    "form",
    [
        pytest.param("whole", marks=pytest.mark.fault("kill-whole")),
        pytest.param("partition", marks=pytest.mark.fault("kill-mig")),
        pytest.param("share", marks=pytest.mark.fault("kill-share")),
        pytest.param("MPS share", marks=pytest.mark.fault("kill-mps")),
    ],
)
@pytest.mark.parametrize("doing", ["prepare", "unprepare"])
def test_a_kill_before_any_step_loses_and_leaves_nothing(
    doing: str, form: str, supervisor: Supervisor, fault: FaultRecord
) -> None:
    with Stage(wrap=supervisor.wrap()) as stage, ThreadPoolExecutor(1) as calls:
        claim = stage.end(form)
        if doing == "prepare":
            assert stage.node.unprepare(claim) == ""
        kills: Counter[str] = Counter()
        longest = 0.0
        for at in range(1, MOST_STEPS):
            fuse = Fuse(stage.node.root, at)
            supervisor.rule = fuse
            done = calls.submit(lambda: getattr(stage.node, doing)(claim))
            failure = done.exception(timeout=60.0)
            supervisor.rule = lambda step: PASS
            if fuse.step is None:
                assert failure is None
                break
            assert isinstance(failure, grpc.RpcError), f"{fuse.step}: {failure}"
            kills[short(fuse.step)] += 1
            longest = max(longest, _serves_again(stage, claim, doing, fuse.step))
        else:
            raise AssertionError(f"the {doing} did not end within {MOST_STEPS} steps: {kills}")
        assert kills.total() >= LEAST_KILLS[doing], kills
        if doing == "prepare":
            assert stage.node.unprepare(claim) == ""
        stage.scheduler.release(claim)
        seen = f"{sum(kills.values())} kills in {doing}: before {', '.join(kills)}"
        stage.finish(fault, time.monotonic(), seen=seen, at_least_s=longest)


def _serves_again(stage: Stage, claim: Obj, doing: str, step: Step) -> float:
    """Start, repeat the call as the kubelet does, and go back to before it; seconds until the call was answered."""
    since = time.monotonic()
    stage.node.kill()
    stage.node.start()
    if doing == "prepare":
        answer = stage.node.prepare(claim)
        seconds = time.monotonic() - since
        assert answer.error == "", f"{step}: {answer.error}"
        assert [device.device_name for device in answer.devices] == claim["devices"], step
        assert stage.node.unprepare(claim) == "", step
    else:
        assert stage.node.unprepare(claim) == "", step
        seconds = time.monotonic() - since
        assert claim["uid"] not in stage.node.states(), step
        assert claim["uid"] not in stage.node.cdi_files(), step
        assert stage.node.prepare(claim).error == "", step
    return seconds


def crash_loop(node: LiveNode, supervisor: Supervisor, is_done: Callable[[], bool]) -> Counter[str]:
    kills: Counter[str] = Counter()
    for at in range(1, MOST_STEPS):
        fuse = Fuse(node.root, at)
        supervisor.rule = fuse
        node._close_channel()
        node.process.start()
        deadline = time.monotonic() + 60.0
        while node.process.is_running and not is_done():
            assert time.monotonic() < deadline, f"neither dead nor done: {node.log()[-3000:]}"
            time.sleep(0.01)
        if fuse.step is None:
            supervisor.rule = lambda step: PASS
            assert node.process.is_running, node.log()[-3000:]
            assert kills.total() >= LEAST_KILLS["start"], kills
            return kills
        kills[short(fuse.step)] += 1
        node.kill()
    raise AssertionError(f"no start came to its end: {kills}")


@pytest.mark.fault("kill-rebuild")
def test_kills_while_a_lost_journal_is_rebuilt_lose_nothing(supervisor: Supervisor, fault: FaultRecord) -> None:
    with Stage(wrap=supervisor.wrap()) as stage:
        stage.node.kill()
        for path in stage.node.plugin.glob("state.db*"):
            path.unlink()

        def is_rebuilt() -> bool:
            return (stage.node.plugin / "state.db").exists() and _count(stage.node) == len(stage.held)

        kills = crash_loop(stage.node, supervisor, is_rebuilt)
        since = time.monotonic()
        stage.node.kill()
        stage.node.start()
        stage.finish(fault, since, seen=f"{sum(kills.values())} starts died: before {', '.join(kills)}")


def _count(node: LiveNode) -> int:
    """Prepared claims in the journal; 0 while it has no tables."""
    try:
        return len([state for state in node.states().values() if state == "prepared"])
    except sqlite3.Error:
        return 0


@pytest.mark.fault("kill-upgrade")
def test_kills_while_a_newer_version_takes_over_lose_nothing(supervisor: Supervisor, fault: FaultRecord) -> None:
    node = LiveNode(SPEC, policy=POLICY, mps=True)
    node.process.command[:0] = supervisor.wrap()
    recorded = json.loads((RECORDING / "claims.json").read_text())
    claims = {name: add_claim(node, each["claim"]) for name, each in recorded.items()}
    uids = {each["claim"]["metadata"]["uid"]: claims[name]["uid"] for name, each in recorded.items()}
    lay_out(node, uids)
    try:
        kills = crash_loop(node, supervisor, node._published)
        node.kill()
        since = time.monotonic()
        with node:
            seconds = time.monotonic() - since
            kept = 0
            for name, each in recorded.items():
                if each["answer"] is None:
                    continue
                expected = [(device, sorted(replaced(one, uids) for one in ids)) for device, ids in each["answer"]]
                answer = answered(node.prepare(claims[name]))  # the older version gave ids in another order
                assert [(device, sorted(ids)) for device, ids in answer] == expected, name
                kept += 1
            for name, claim in claims.items():
                assert node.unprepare(claim) == "", name
            until(lambda: node.leftovers() == [], f"a clean node: {node.leftovers()}")
        seen = f"{sum(kills.values())} starts died: before {', '.join(kills)}"
        answers = sum(each["answer"] is not None for each in recorded.values())
        fault.write(seconds=seconds, seen=seen, kept=kept, of=answers)
    finally:
        shutil.rmtree(node.root, ignore_errors=True)
