"""A node under load: four kubelet threads, claims of all forms on eight GPUs, invalid claims, failing hardware,
crashes.

Allocations come from the real allocator and the published slices, so every claim except the invalid ones can be
prepared, unless hardware fails, which the error says. At the end nothing may be left.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from dra_driver.errors import DeviceLostError, DriverUnavailableError, GpuBusyError, NoRoomError
from dra_driver.gpu.simulated.root import FAULTS as FAULT_FILES
from dra_driver.model.mig import parse_partition_name
from dra_driver.sim.node.node_process import SIMULATED_ROOT
from tests.fakes.live_claims import Obj, Scheduler
from tests.fakes.live_node import LiveNode, until
from tests.fakes.mixed_claims import POLICIES, impossible, wish

SEED = os.environ.get("SOAK_SEED", "1")
"""Varies requests and faults. Because of threads and kills, two runs differ even with one seed."""
SPEC = "8xh100-sxm5-80gb"
THREADS = 4
HELD_AT_ONCE = 4
REFUSAL_S = 5.5
"""Time limit of calls with invalid claims: short, because a device in use stays so. Reading a claim takes 3 s of it."""
INJECTED = "made to fail by the test"
TRIES = 40
OF_CLAIMS = ("claim ", "journal table device", "journal table sharing", "CDI file")
NOTED = ("journal table gpu_note", "journal table mig")


@dataclass
class Soak:
    """The node and the counts of what happened. All threads increment ``seen``; lost increments do not matter."""

    node: LiveNode
    rounds: int
    crashes: int
    scheduler: Scheduler  # one for all threads: its lock keeps two of them from allocating the same device
    seen: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    done: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)  # guards `done`
    up: threading.Event = field(default_factory=threading.Event)

    def next_round(self) -> bool:
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
    """One thread of the kubelet."""

    def __init__(self, soak: Soak, number: int) -> None:
        self.soak = soak
        self.node = soak.node
        self.dice = random.Random(f"{SEED}-{number}")  # noqa: S311 - what happens, not a secret
        self.scheduler = soak.scheduler
        self.held: list[Obj] = []

    def run(self) -> None:
        try:
            while self.soak.next_round():
                self._round()
            while self.held:
                self._unprepare(self.held.pop())
        except BaseException as error:
            hardware = self.node.hardware_state()
            self.soak.failures.append(f"{type(error).__name__}: {error}; hardware: {hardware}")
            raise

    def _round(self) -> None:
        """Prepare one claim; repeat, disturb and unprepare others."""
        if self.dice.random() < 0.1:
            self._refused()
        if self.dice.random() < 0.15:
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
        answer = self.soak.again(lambda: self.node.prepare(claim))
        if answer.error:
            assert INJECTED in answer.error, f"{claim}: {answer.error}"
            self.soak.seen["prepares failed by bad hardware"] += 1
            self._unprepare(claim)
            return
        assert [device.device_name for device in answer.devices] == claim["devices"]
        self._check(claim)
        if self.dice.random() < 0.2:
            again = self.soak.again(lambda: self.node.prepare(claim))
            assert (again.error, list(again.devices)) == ("", list(answer.devices))
            self.soak.seen["repeated"] += 1
        self.held.append(claim)

    def _check(self, claim: Obj) -> None:
        """Check what a container would find."""
        assert claim["uid"] in self.node.cdi_files()
        there = self.node.instances()
        for device in claim["devices"]:
            name = parse_partition_name(device)
            if name is not None:
                expected = (self.node.gpus[name.minor], name.profile_id, name.start, 1)
                assert expected in there, f"{claim}: {expected} is not in {there}"

    def _unprepare(self, claim: Obj) -> None:
        if self.dice.random() < 0.1:
            self._disturb(claim)
        for _ in range(TRIES):
            error = self.soak.again(lambda: self.node.unprepare(claim))
            if not error:
                break
            assert INJECTED in error, f"{claim}: {error}"
            self.soak.seen["unprepares failed by bad hardware"] += 1
        else:
            raise AssertionError(f"{claim} cannot be unprepared: {error}")
        assert claim["uid"] not in self.node.states()
        assert claim["uid"] not in self.node.cdi_files()
        self.scheduler.release(claim)

    def _disturb(self, claim: Obj) -> None:
        """Destroy one of the claim's partitions from outside, or keep a program running in it for a while."""
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
                self.node.hardware.foreign_destroy(gpu, gi)
                self.soak.seen["partitions destroyed from outside"] += 1
                answer = self.soak.again(lambda: self.node.prepare(claim))
                assert answer.error, f"{device} was destroyed, and the repeated prepare did not fail"
            else:
                self.node.hardware.set_in_use(gpu, gi)
                release = threading.Timer(0.3, self.node.hardware.set_in_use, (gpu, gi, False))
                release.start()
                self.soak.seen["programs that kept running"] += 1
            return

    def _refused(self) -> None:
        """An invalid claim gets an error and leaves no trace."""
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
        """Let the next call of a method fail, before or after its effect, or let a process hold a GPU for a while."""
        hardware, gpu = self.node.hardware, self.dice.choice(self.node.gpus)
        if self.dice.random() < 0.2:
            with suppress(GpuBusyError):
                hardware.set_busy(gpu, "a monitor")
                threading.Timer(0.2, hardware.set_busy, (gpu, None)).start()
                self.soak.seen["busy GPUs"] += 1
            return
        if self.dice.random() < 0.1:
            broken = self.node.plugin / SIMULATED_ROOT / FAULT_FILES / "smi-fail"
            broken.write_text(INJECTED)
            threading.Timer(0.1, broken.unlink, kwargs={"missing_ok": True}).start()
            self.soak.seen["nvidia-smi failing for a while"] += 1
            return
        method, error = self.dice.choice(FAULTS)
        after = (
            error is not NoRoomError and self.dice.random() < 0.3
        )  # without room, the hardware has not created anything
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


def crash(soak: Soak) -> None:
    """Kill and restart the node process several times, and every third time the MPS host too."""
    dice = random.Random(f"{SEED}-{soak.rounds}")  # noqa: S311 - moments to kill at
    for number in range(1, soak.crashes + 1):
        while soak.done < soak.rounds * number // (soak.crashes + 1):
            if soak.stop.wait(0.01):
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


@pytest.mark.parametrize(
    ("rounds", "crashes"),
    [
        pytest.param(60, 1, id="short", marks=pytest.mark.slow),  # slow: threads and crashes
        pytest.param(1000, 12, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_after_any_mix_of_claims_nothing_is_left(rounds: int, crashes: int) -> None:
    """At the end the node is as it was at the start, after any requests, faults and crashes."""
    with LiveNode(SPEC, policy=POLICIES, mps=True) as node:
        soak = Soak(node, rounds, crashes, Scheduler(node))
        soak.up.set()
        began = time.monotonic()
        crasher = threading.Thread(target=crash, args=(soak,))
        crasher.start()
        with ThreadPoolExecutor(THREADS) as threads:
            for worker in [threads.submit(Worker(soak, number).run) for number in range(THREADS)]:
                worker.exception()
        soak.stop.set()
        crasher.join(60.0)
        seen = ", ".join(f"{what} {count}" for what, count in sorted(soak.seen.items()))
        sys.stdout.write(f"seed {SEED}, {rounds} rounds in {time.monotonic() - began:.1f} s: {seen}\n")  # pytest -s
        if soak.failures:
            sys.stdout.write(node.log())
        assert not soak.failures, "\n".join(soak.failures)
        assert_clean(node)


def assert_clean(node: LiveNode) -> None:
    """What claims had is removed at once. GPU settings that the journal notes, because a GPU could not be changed
    then, are restored at the next inspection, which a start includes."""
    node.hardware.clear_faults()
    left = node.leftovers()
    assert [one for one in left if one.startswith(OF_CLAIMS)] == []
    assert not left or any(one.startswith(NOTED) for one in left), left
    node.restart()
    until(lambda: not node.leftovers(), f"a clean node, which had {left}", 10.0)
    assert node.instances() == []
