"""One node process under thousands of claims of all forms, with kills, failing hardware and failing health.

Kills come in the first half: the last process then serves the second half alone, and its memory tells. After every few
hundred claims the workers pause and the invariants are checked. At the end nothing may be left.
"""

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tests.fakes.live_claims import Scheduler
from tests.fakes.live_node import LiveNode, until
from tests.fakes.mixed_claims import POLICIES
from tests.harness.figures import rss_mib
from tests.soak.facts import facts
from tests.soak.figures import Memory
from tests.soak.invariants import breaches
from tests.soak.workers import SPEC, Soak, Worker

CHECK_EVERY = 500
MEMORY_EVERY = 100
OF_CLAIMS = ("claim ", "journal table device", "journal table sharing", "CDI file")
NOTED = ("journal table gpu_note", "journal table mig")
ILLNESSES = ("xid=13", "xid=31", "xid=63", "xid=79", "ecc", "row-remap", "nvlink")
ILL_S = (0.2, 2.0)


@dataclass
class NodeRun:
    """What a run found."""

    soak: Soak
    memory: list[Memory] = field(default_factory=list)
    checks: int = 0
    seconds: float = 0.0


def run(
    rounds: int,
    crashes: int,
    seed: str,
    *,
    refused_share: float = 0.1,
    broken_share: float = 0.15,
    illnesses: int = 0,
    threads_at_once: int = 4,
) -> NodeRun:
    """Run; ``soak.failures`` of the result has every failure, leaks and breaches included."""
    with LiveNode(SPEC, policy=POLICIES, mps=True) as node:
        soak = Soak(node, rounds, seed, Scheduler(node), refused_share, broken_share)
        soak.up.set()
        found = NodeRun(soak)
        began = time.monotonic()
        stop = threading.Event()
        others = [
            threading.Thread(target=_guarded, args=(soak, stop, _crash, crashes)),
            threading.Thread(target=_guarded, args=(soak, stop, _sicken, illnesses)),
            threading.Thread(target=_guarded, args=(soak, stop, _watch, found)),
        ]
        for each in others:
            each.start()
        with ThreadPoolExecutor(threads_at_once) as threads:
            for worker in [threads.submit(Worker(soak, number).run) for number in range(threads_at_once)]:
                worker.exception()
        stop.set()
        for each in others:
            each.join(120.0)
        found.seconds = time.monotonic() - began
        if not soak.failures:
            soak.failures += _left(node)
        if soak.failures:
            soak.failures.append(f"the log ends with\n{node.process.log_tail(40)}")
        return found


def _guarded(soak: Soak, stop: threading.Event, work: object, argument: object) -> None:
    """An error of a thread is a failure of the run."""
    try:
        work(soak, stop, argument)  # type: ignore[operator]
    except BaseException as error:
        soak.failures.append(f"{type(error).__name__}: {error}")
        raise


def _crash(soak: Soak, stop: threading.Event, crashes: int) -> None:
    """Kill and restart the node process at random moments of the first half, and every third time the MPS host too."""
    dice = random.Random(f"{soak.seed}-crashes")  # noqa: S311 - moments to kill at
    for number in range(1, crashes + 1):
        while soak.done < soak.rounds * number // (2 * (crashes + 1)):
            if stop.wait(0.01):
                return
        time.sleep(dice.uniform(0.0, 0.1))
        soak.up.clear()
        soak.node.kill()
        try:
            soak.node.start()
        finally:
            soak.up.set()
        soak.seen["crashes"] += 1
        if number % 3 == 0 and soak.node.mps_host is not None:
            soak.node.mps_host.kill()
            soak.node.mps_host.start()
            soak.seen["crashes of the MPS host"] += 1


def _sicken(soak: Soak, stop: threading.Event, illnesses: int) -> None:
    """Let GPUs fall ill at random moments and recover soon; claims that are prepared go on, new ones get others."""
    dice = random.Random(f"{soak.seed}-illnesses")  # noqa: S311 - what happens
    for number in range(1, illnesses + 1):
        while soak.done < soak.rounds * number // (illnesses + 1):
            if stop.wait(0.01):
                return
        gpu, illness = dice.choice(soak.node.gpus), dice.choice(ILLNESSES)
        soak.node.hardware.inject(gpu, illness)
        soak.seen[f"health: {illness}"] += 1
        stop.wait(dice.uniform(*ILL_S))
        soak.node.hardware.recover(gpu)


def _watch(soak: Soak, stop: threading.Event, found: NodeRun) -> None:
    """Note memory, and check the invariants while no call is in work."""
    checked = noted = 0
    while not stop.wait(0.05):
        if soak.done >= noted + MEMORY_EVERY and soak.up.is_set():
            noted = soak.done
            _note(soak, found)
        if soak.done >= checked + CHECK_EVERY and not soak.failures:
            checked = soak.done
            with soak.gate.closed():
                soak.failures += check(soak.node, soak)
            found.checks += 1


def check(node: LiveNode, soak: Soak) -> list[str]:
    """The invariants now; nothing may be in work."""
    return [f"after {soak.done} claims: {breach}" for breach in breaches(facts(node, dict(soak.answered)))]


def _note(soak: Soak, found: NodeRun) -> None:
    pid = soak.node.process.pid
    try:
        assert pid is not None
        found.memory.append(Memory(claims=min(soak.done, soak.rounds), pid=pid, mib=rss_mib(pid)))
    except (OSError, IndexError):
        return  # killed meanwhile


def _left(node: LiveNode) -> list[str]:
    """What claims had is removed at once. GPU settings that the journal notes, because a GPU could not be changed
    then, are restored at the next inspection, which a start includes."""
    node.hardware.clear_faults()
    for gpu in node.gpus:
        node.hardware.recover(gpu)
    left = node.leftovers()
    if leaks := [one for one in left if one.startswith(OF_CLAIMS)]:
        return [f"leak: {leak}" for leak in leaks]
    if left and not any(one.startswith(NOTED) for one in left):
        return [f"leak: {one}" for one in left]
    node.restart()
    try:
        until(lambda: not node.leftovers(), f"a clean node, which had {left}", 10.0)
    except AssertionError as error:
        return [f"leak: {error}; {node.leftovers()}"]
    return [f"leak: GPU instance {one}" for one in node.instances()]
