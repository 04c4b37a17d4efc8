"""One node process under thousands of claims of all forms, with kills, failing hardware and failing health. Kills come
in the first half, so that the last process shows its memory. Allocations come from the real allocator, so every claim
except the invalid ones can be prepared, unless hardware fails, which the error then says."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc

from dra_driver.core.errors import DeviceLostError, DriverUnavailableError, GpuBusyError, NoRoomError
from dra_driver.core.model.mig import parse_partition_name
from dra_driver.hardware.gpu.simulated.root import FAULTS as FAULT_FILES
from dra_driver.sim.node.node_process import SIMULATED_ROOT
from tests.fakes.live_claims import POLICIES, Obj, Scheduler, impossible, wish
from tests.fakes.live_node import LiveNode, until
from tests.harness.figures import rss_mib
from tests.soak.invariants import Memory, breaches, facts

SPEC = "8xh100-sxm5-80gb"
HELD_AT_ONCE = 4
REFUSAL_S = 5.5
"""Time limit of calls with invalid claims: short, because a device in use stays so. Reading a claim takes 3 s of it."""
INJECTED = "made to fail by the test"
EXPECTED = (INJECTED, "fallen off the bus (simulated", "does not answer", "No devices were found")
"""What errors of claims say when the test let the hardware fail, or a GPU fall ill."""
TRIES = 200


def is_expected(error: str) -> bool:
    return any(text in error for text in EXPECTED)


class Gate:
    """Lets a checker look at a node without calls: workers pass between their rounds, and wait while it is closed."""

    def __init__(self) -> None:
        self._turn = threading.Condition()  # guards the fields below
        self._closed = False
        self._working = 0

    def enter(self) -> None:
        with self._turn:
            self._turn.wait_for(lambda: not self._closed)
            self._working += 1

    def leave(self) -> None:
        with self._turn:
            self._working -= 1
            self._turn.notify_all()

    def pass_through(self) -> None:
        self.leave()
        self.enter()

    @contextmanager
    def closed(self, within_s: float = 120.0) -> Iterator[None]:
        with self._turn:
            self._closed = True
            assert self._turn.wait_for(lambda: self._working == 0, within_s), "a worker does not come to its end"
        try:
            yield
        finally:
            with self._turn:
                self._closed = False
                self._turn.notify_all()


@dataclass
class Soak:
    """The node and the counts of what happened. All threads increment ``seen``; lost increments do not matter."""

    node: LiveNode
    rounds: int
    seed: str  # varies requests and faults. Because of threads and kills, two runs differ even with one seed.
    scheduler: Scheduler  # one for all threads: its lock keeps two of them from allocating the same device
    refused_share: float = 0.1  # how many of the claims come with an invalid one; those wait for their time limit
    broken_share: float = 0.15
    """How many of the claims come with failing hardware, which makes calls try again for seconds."""
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    prepares_ms: list[float] = field(default_factory=list)
    unprepares_ms: list[float] = field(default_factory=list)
    answered: dict[str, list[str]] = field(default_factory=dict)
    """Devices of the claims whose last answer was good, by UID."""
    done: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards `done`
    up: threading.Event = field(default_factory=threading.Event)
    gate: Gate = field(default_factory=Gate)

    def next_round(self) -> bool:
        self.gate.pass_through()
        with self.lock:
            self.done += 1
            return self.done <= self.rounds and not self.failures

    def again(self, call: Callable[[], Any]) -> Any:
        """Repeat the call until a run of the node process answers it, as the kubelet does."""
        for _ in range(TRIES):
            self.up.wait(30.0)
            try:
                return call()
            except (grpc.RpcError, ValueError):  # ValueError: the connection was closed meanwhile
                self.seen["calls cut off"] += 1
                time.sleep(0.05)
        raise AssertionError(f"no run of the node process answered in {TRIES} tries")


class Worker:
    def __init__(self, soak: Soak, number: int) -> None:
        self.soak = soak
        self.node = soak.node
        self.dice = random.Random(f"{soak.seed}-{number}")  # noqa: S311 - what happens, not a secret
        self.scheduler = soak.scheduler
        self.held: list[Obj] = []

    def run(self) -> None:
        self.soak.gate.enter()
        try:
            while self.soak.next_round():
                self._round()
            while self.held:
                self._unprepare(self.held.pop())
        except BaseException as error:
            hardware = self.node.hardware_state()
            self.soak.failures.append(f"{type(error).__name__}: {error}; hardware: {hardware}")
            raise
        finally:
            self.soak.gate.leave()

    def _round(self) -> None:
        """Prepare one claim; repeat, disturb and unprepare others."""
        if self.dice.random() < self.soak.refused_share:
            self._refused()
        if self.dice.random() < self.soak.broken_share:
            self._break_something()
        while (claim := self._allocated()) is None:
            if self.held:
                self._unprepare(self.held.pop(self.dice.randrange(len(self.held))))
        self._prepare(claim)
        while len(self.held) > self.dice.randint(0, HELD_AT_ONCE):
            self._unprepare(self.held.pop(self.dice.randrange(len(self.held))))

    def _allocated(self) -> Obj | None:
        wanted = wish(self.dice)
        claim = self.scheduler.allocate(*wanted.requests, config=wanted.config, together=wanted.together)
        self.soak.seen[wanted.form if claim else "did not fit"] += 1
        return claim and {**claim, "form": wanted.form}

    def _prepare(self, claim: Obj) -> None:
        began = time.perf_counter()
        answer = self.soak.again(lambda: self.node.prepare(claim))
        if answer.error:
            assert is_expected(answer.error), f"{claim}: {answer.error}"
            self.soak.seen["prepares failed by bad hardware"] += 1
            self._unprepare(claim)
            return
        self.soak.prepares_ms.append((time.perf_counter() - began) * 1000)
        assert [device.device_name for device in answer.devices] == claim["devices"]
        self.soak.answered[claim["uid"]] = claim["devices"]
        self._check(claim)
        if self.dice.random() < 0.2:
            again = self.soak.again(lambda: self.node.prepare(claim))
            assert is_expected(again.error) or (again.error, list(again.devices)) == ("", list(answer.devices))
            self.soak.seen["repeated"] += 1
        self.held.append(claim)

    def _check(self, claim: Obj) -> None:
        assert claim["uid"] in self.node.cdi_files()
        there = self.node.instances()
        for device in claim["devices"]:
            name = parse_partition_name(device)
            if name is not None:
                expected = (self.node.gpus[name.minor], name.profile_id, name.start, 1)
                assert expected in there, f"{claim}: {expected} is not in {there}"

    def _unprepare(self, claim: Obj) -> None:
        if self.dice.random() < 0.7 * self.soak.broken_share:
            self._disturb(claim)
        began = time.perf_counter()
        for _ in range(TRIES):
            error = self.soak.again(lambda: self.node.unprepare(claim))
            if not error:
                break
            assert is_expected(error), f"{claim}: {error}"
            time.sleep(0.05)
            self.soak.seen["unprepares failed by bad hardware"] += 1
        else:
            raise AssertionError(f"{claim} cannot be unprepared: {error}")
        self.soak.unprepares_ms.append((time.perf_counter() - began) * 1000)
        self.soak.answered.pop(claim["uid"], None)
        assert claim["uid"] not in self.node.states()
        assert claim["uid"] not in self.node.cdi_files()
        self.scheduler.release(claim)

    def _disturb(self, claim: Obj) -> None:
        for device in claim["devices"]:
            name = parse_partition_name(device)
            if name is None or claim["uid"] not in self.node.states():
                continue
            gpu = self.node.gpus[name.minor]
            instances = self.node.hardware_state()["gpus"].get(gpu, {}).get("instances", [])
            gi = next((i["gi"] for i in instances if (i["profile"], i["start"]) == (name.profile_id, name.start)), None)
            if gi is None:
                continue
            if self.dice.random() < 0.5:
                try:
                    self.node.hardware.foreign_destroy(gpu, gi)
                except DeviceLostError:  # the GPU has fallen off the bus: nothing was destroyed
                    return
                self.soak.seen["partitions destroyed from outside"] += 1
                answer = self.soak.again(lambda: self.node.prepare(claim))
                assert answer.error, f"{device} was destroyed, and the repeated prepare did not fail"
            else:
                with suppress(DeviceLostError):
                    self.node.hardware.set_in_use(gpu, gi)
                    _later(0.3, partial(self.node.hardware.set_in_use, gpu, gi, False))
                    self.soak.seen["programs that kept running"] += 1
            return

    def _refused(self) -> None:
        owned = [device for claim in self.held if claim["form"] != "admin access" for device in claim["devices"]]
        wrong = impossible(self.dice, owned)
        claim = self.scheduler.force(*wrong.results, requests=wrong.requests, config=wrong.config)
        answer = self.soak.again(lambda: self.node.prepare(claim, REFUSAL_S))
        assert answer.error, f"{wrong.why}: was prepared"
        assert claim["uid"] not in self.node.states(), wrong.why
        assert claim["uid"] not in self.node.cdi_files(), wrong.why
        assert self.soak.again(lambda: self.node.unprepare(claim)) == ""
        self.scheduler.release(claim)
        self.soak.seen[f"refused: {wrong.why}"] += 1

    def _break_something(self) -> None:
        hardware, gpu = self.node.hardware, self.dice.choice(self.node.gpus)
        if self.dice.random() < 0.2:
            with suppress(GpuBusyError, DeviceLostError):
                hardware.set_busy(gpu, "a monitor")
                _later(0.2, lambda: hardware.set_busy(gpu, None))
                self.soak.seen["busy GPUs"] += 1
            return
        if self.dice.random() < 0.1:
            broken = self.node.plugin / SIMULATED_ROOT / FAULT_FILES / "smi-fail"
            broken.write_text(INJECTED)
            threading.Timer(0.1, broken.unlink, kwargs={"missing_ok": True}).start()
            self.soak.seen["nvidia-smi failing for a while"] += 1
            return
        method, error = self.dice.choice(FAULTS)
        # Without room, the hardware has not created anything.
        after = error is not NoRoomError and self.dice.random() < 0.3
        hardware.fail_next(method, error(INJECTED), gpu=gpu, after=after, times=self.dice.choice([1, 1, 2]))
        self.soak.seen[f"fault: {method}{' (after)' if after else ''}"] += 1


FAULTS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("create_gpu_instance", NoRoomError),
    ("create_gpu_instance", DeviceLostError),
    ("create_compute_instance", NoRoomError),
    ("create_compute_instance", DriverUnavailableError),
    ("set_mig_mode", GpuBusyError),
    ("destroy_gpu_instance", GpuBusyError),
    ("destroy_compute_instance", DeviceLostError),
    ("set_compute_mode", DriverUnavailableError),
    ("mig_instances", DriverUnavailableError),
)


def _later(after_s: float, undo: Callable[[], object]) -> None:
    """Undo something after a while; again and again while the GPU does not answer, as it recovers soon."""

    def run() -> None:
        try:
            undo()
        except DeviceLostError:
            _later(after_s, undo)

    threading.Timer(after_s, run).start()


CHECK_EVERY = 500
MEMORY_EVERY = 100
OF_CLAIMS = ("claim ", "journal table device", "journal table sharing", "CDI file")
NOTED = ("journal table gpu_note", "journal table mig")
ILLNESSES = ("xid=13", "xid=31", "xid=63", "xid=79", "ecc", "row-remap", "nvlink")
ILL_S = (0.2, 2.0)


@dataclass
class NodeRun:
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
    with LiveNode(SPEC, policy=POLICIES, mps=True) as node:
        soak = Soak(node, rounds, seed, Scheduler(node), refused_share, broken_share)
        soak.up.set()
        found = NodeRun(soak)
        began = time.monotonic()
        stop = threading.Event()
        works: dict[Callable[..., None], object] = {_crash: crashes, _sicken: illnesses, _watch: found}
        others = [
            threading.Thread(target=guarded, args=(soak.failures, work, soak, stop, argument))
            for work, argument in works.items()
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


def guarded(failures: list[str], work: Callable[..., None], *arguments: object) -> None:
    """An error of a thread is a failure of the run."""
    try:
        work(*arguments)
    except BaseException as error:
        failures.append(f"{type(error).__name__}: {error}")
        raise


def _crash(soak: Soak, stop: threading.Event, crashes: int) -> None:
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
    return [f"after {soak.done} claims: {breach}" for breach in breaches(facts(node, dict(soak.answered)))]


def _note(soak: Soak, found: NodeRun) -> None:
    pid = soak.node.process.pid
    try:
        assert pid is not None
        found.memory.append(Memory(claims=min(soak.done, soak.rounds), pid=pid, mib=rss_mib(pid)))
    except (OSError, IndexError):
        return  # killed meanwhile


def _left(node: LiveNode) -> list[str]:
    """Claims' state is removed at once; noted GPU settings are restored at the next inspection, which a start
    includes."""
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
