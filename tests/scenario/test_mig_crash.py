"""kill -9 of a whole node process at every step of preparing and unpreparing partitions that leaves something behind.

The process is a real one on simulated hardware, whose state outlives it. To stop it between two steps, a call of the
hardware or a write to the journal takes minutes. The test checks from outside which step was reached, so that a kill
cannot hit another step than the one that it is named for.
"""

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.fakes.live_claims import Obj, Scheduler, partition
from tests.fakes.live_node import LiveNode, until

SPEC = "2xh100-sxm5-80gb"
FOR_EVER_S = 300.0
FOR_EVER_SQL = f"SELECT count(*) FROM {', '.join(f'sqlite_master t{n}' for n in range(12))};"  # noqa: S608
"""Counts to some 10^12."""
FIRST, SECOND = "1g.10gb", "2g.20gb"
RANDOM_KILLS = {"few": 3, "many": 60}


Seen = tuple[str | None, bool, bool, bool, list[int]]
"""The claim's state in the journal, whether it has a CDI file, whether the journal notes MIG mode, whether it is on,
and the number of compute instances of each GPU instance."""


@dataclass(frozen=True)
class Scene:
    node: LiveNode
    claim: Obj

    def seen(self) -> "Seen":
        state = self.node.states().get(self.claim["uid"])
        has_file = self.claim["uid"] in self.node.cdi_files()
        is_noted = "mig-mode" in [key for _, key in self.node.notes()]
        return state, has_file, is_noted, bool(self.node.gpus_in_mig_mode()), self.made()

    def made(self) -> list[int]:
        return sorted(compute for *_, compute in self.node.instances())


@dataclass(frozen=True)
class Step:
    """Where to stop: ``before`` a call of the hardware that comes after ``skip`` others of its name, or, with
    ``writing``, in a write to the journal that is not committed yet. ``seen`` is what has to be there then."""

    name: str
    seen: Seen
    before: str = ""
    skip: int = 0
    writing: str = ""
    slow: bool = False

    def __str__(self) -> str:
        return self.name


PREPARE = (
    Step("nothing is noted", (None, False, False, False, []), writing="INSERT ON claim", slow=True),
    Step("the intent is noted", ("preparing", False, False, False, []), before="mig_mode", slow=True),
    Step("the mode is noted", ("preparing", False, True, False, []), before="set_mig_mode"),
    Step("MIG mode is on", ("preparing", False, True, True, []), before="create_gpu_instance"),
    Step("one is half made", ("preparing", False, True, True, [0]), before="create_compute_instance"),
    Step("one is made", ("preparing", False, True, True, [1]), before="create_gpu_instance", skip=1, slow=True),
    Step("two is half made", ("preparing", False, True, True, [0, 1]), before="create_compute_instance", skip=1),
    Step("two is made", ("preparing", False, True, True, [1, 1]), before="mig_instances", skip=5, slow=True),
    Step(
        "the CDI file is written",
        ("preparing", True, True, True, [1, 1]),
        writing="UPDATE ON claim WHEN new.state = 'prepared'",
    ),
)
UNPREPARE = (
    Step(
        "nothing is noted",
        ("prepared", True, True, True, [1, 1]),
        writing="UPDATE ON claim WHEN new.state = 'unpreparing'",
        slow=True,
    ),
    Step("the CDI file is gone", ("unpreparing", False, True, True, [1, 1]), before="mig_instances"),
    Step("two is half gone", ("unpreparing", False, True, True, [0, 1]), before="destroy_gpu_instance", slow=True),
    Step("two is gone", ("unpreparing", False, True, True, [1]), before="destroy_compute_instance", skip=1),
    Step("one is half gone", ("unpreparing", False, True, True, [0]), before="destroy_gpu_instance", skip=1, slow=True),
    Step("one is gone", ("unpreparing", False, True, True, []), before="set_mig_mode", slow=True),
    Step("the mode is off", ("unpreparing", False, True, False, []), writing="DELETE ON gpu_note"),
    Step("the note is cleared", ("unpreparing", False, False, False, []), writing="DELETE ON claim"),
)


def parametrized(steps: tuple[Step, ...]) -> pytest.MarkDecorator:
    """Each step; every second one with the slow tests."""
    marked = [pytest.param(step, id=step.name, marks=[pytest.mark.slow] if step.slow else []) for step in steps]
    return pytest.mark.parametrize("step", marked)


def step(steps: tuple[Step, ...], name: str) -> Step:
    return next(each for each in steps if each.name == name)


@pytest.fixture(scope="module")
def node() -> Iterator[LiveNode]:
    with LiveNode(SPEC) as running:
        yield running


def published(node: LiveNode) -> set[str]:
    return {device["name"] for item in node.slices() for device in item["spec"].get("devices") or ()}


@pytest.fixture(scope="module")
def all_devices(node: LiveNode) -> set[str]:
    """What the node publishes while no GPU is used and no instance is foreign."""
    return published(node)


@pytest.fixture
def scheduler(node: LiveNode, all_devices: set[str]) -> Iterator[Scheduler]:
    """After the slices have followed the end of the test before: a foreign instance hides the partitions beside it."""
    until(lambda: published(node) == all_devices, "the node to publish all its devices again")
    yield Scheduler(node)
    node.hardware.clear_faults()
    if not node.process.is_running:
        node.start()


@pytest.fixture
def calls() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def two(scheduler: Scheduler, node: LiveNode) -> Obj:
    of = node.gpus[:1]
    return scheduler.allocate_soon(partition(FIRST, "one", of=of), partition(SECOND, "two", of=of), together=True)


def stopped_at(step: Step, scene: Scene, begin: Callable[[], None]) -> None:
    """Have the process stand at the step, and no further, and kill it there. ``begin`` sets it going."""
    node = scene.node
    if step.before:
        node.hardware.fail_next(step.before, skip=step.skip, delay_s=FOR_EVER_S)
    else:
        node.change_journal(f"CREATE TRIGGER held_up BEFORE {step.writing} BEGIN {FOR_EVER_SQL} END")
    begin()
    deadline = time.monotonic() + 20.0
    while (seen := scene.seen()) != step.seen or (step.writing and not node.journal_is_being_written):
        assert time.monotonic() < deadline, f"never came to '{step}': {seen} and not {step.seen}; {node.log()}"
    time.sleep(0.05)  # a process that was not stopped would be at a later step by now
    assert scene.seen() == step.seen
    node.kill()
    node.hardware.clear_faults()
    node.change_journal("DROP TRIGGER IF EXISTS held_up")


def cut_off(step: Step, scene: Scene, call: Callable[[], object], calls: ThreadPoolExecutor) -> None:
    """The same in a call of the kubelet, which gets no answer."""
    answers: list[Future[object]] = []
    stopped_at(step, scene, lambda: answers.append(calls.submit(call)))
    assert isinstance(answers[0].exception(timeout=20.0), grpc.RpcError)


def is_served(scene: Scene) -> None:
    node, claim = scene.node, scene.claim
    answer = node.prepare(claim)
    assert answer.error == ""
    assert [device.device_name for device in answer.devices] == claim["devices"]
    assert scene.seen() == ("prepared", True, True, True, [1, 1])
    assert [(profile, compute) for _, profile, _, compute in node.instances()] in (
        [(14, 1), (19, 1)],
        [(19, 1), (14, 1)],
    )
    assert node.unprepare(claim) == ""
    assert node.leftovers() == []


@parametrized(PREPARE)
def test_a_prepare_that_dies_at_any_step_is_undone_and_served_again(
    step: Step, node: LiveNode, scheduler: Scheduler, calls: ThreadPoolExecutor
) -> None:
    scene = Scene(node, two(scheduler, node))
    cut_off(step, scene, lambda: node.prepare(scene.claim), calls)
    node.start()
    assert node.leftovers() == []
    is_served(scene)
    scheduler.release(scene.claim)


@parametrized(UNPREPARE)
def test_an_unprepare_that_dies_at_any_step_is_finished_by_the_next_run(
    step: Step, node: LiveNode, scheduler: Scheduler, calls: ThreadPoolExecutor
) -> None:
    scene = Scene(node, two(scheduler, node))
    assert node.prepare(scene.claim).error == ""
    cut_off(step, scene, lambda: node.unprepare(scene.claim), calls)
    node.start()
    if step.name == "nothing is noted":
        assert scene.seen() == step.seen, "then it is prepared, until the kubelet calls again"
    else:
        assert node.leftovers() == []
    assert node.unprepare(scene.claim) == ""
    is_served(scene)
    scheduler.release(scene.claim)


@pytest.mark.parametrize("name", ["two is half gone", pytest.param("the mode is off", marks=pytest.mark.slow)])
def test_a_recovery_that_dies_is_finished_by_the_next_run(
    name: str, node: LiveNode, scheduler: Scheduler, calls: ThreadPoolExecutor
) -> None:
    scene = Scene(node, two(scheduler, node))
    cut_off(step(PREPARE, "two is made"), scene, lambda: node.prepare(scene.claim), calls)
    stopped_at(step(UNPREPARE, name), scene, node.process.start)
    node.start()
    assert node.leftovers() == []
    is_served(scene)
    scheduler.release(scene.claim)


def test_a_foreign_instance_survives_the_recovery_after_a_crash(
    node: LiveNode, scheduler: Scheduler, calls: ThreadPoolExecutor
) -> None:
    """Recovery removes only instances that the journal has; MIG mode stays while a foreign instance needs it."""
    scene = Scene(node, two(scheduler, node))
    cut_off(step(PREPARE, "two is half made"), scene, lambda: node.prepare(scene.claim), calls)
    gpu = node.gpus[0]
    foreign = node.hardware.foreign_create(gpu, 19, 0)
    node.start()
    assert node.instances() == [(gpu, 19, 0, 1)]
    assert node.states() == {}
    assert node.notes() == [(gpu, "mig-mode")], "the driver switches it off when the foreign instance is gone"
    node.hardware.foreign_destroy(gpu, foreign.gi_id)
    is_served(scene)
    scheduler.release(scene.claim)


class Kubelet:
    """Prepares and unprepares one claim in turn until the node process dies; remembers the answers."""

    def __init__(self, node: LiveNode, claim: Obj) -> None:
        self.node = node
        self.claim = claim
        self.answers: list[str] | None = None
        """CDI ids of the prepared claim; None when it is not prepared, or unknown."""
        self.in_doubt = False

    def run(self) -> None:
        try:
            while True:
                self.turn()
        except grpc.RpcError:
            return

    def turn(self) -> None:
        wanted = "unprepare" if self.answers else "prepare"
        before, self.answers, self.in_doubt = self.answers, None, True
        if wanted == "unprepare":
            assert before
            assert self.node.unprepare(self.claim) == ""
        else:
            self.answers = self.ids(self.node.prepare(self.claim))
        self.in_doubt = False

    @staticmethod
    def ids(answer: Any) -> list[str]:
        assert answer.error == ""
        return [each for device in answer.devices for each in device.cdi_device_ids]

    def check(self) -> None:
        state = self.node.states().get(self.claim["uid"])
        if self.in_doubt:  # the answer was lost: done or undone, and nothing between
            assert state in ("prepared", None)
            assert self.node.unprepare(self.claim) == ""
        elif self.answers is None:
            assert state is None
        else:
            assert state == "prepared"
            assert self.ids(self.node.prepare(self.claim)) == self.answers
        self.in_doubt = False


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kills", ["few", "many"])
def test_kills_at_random_moments_lose_and_leave_nothing(kills: str, node: LiveNode, scheduler: Scheduler) -> None:
    dice = random.Random(kills)  # noqa: S311 - moments to kill at, not a secret
    claims = [two(scheduler, node), scheduler.allocate_soon(partition("3g.40gb", of=node.gpus[:1]))]
    claims.append(scheduler.allocate_soon(partition("7g.80gb", of=node.gpus[1:])))
    kubelets = [Kubelet(node, claim) for claim in claims]
    in_doubt = 0
    for _ in range(RANDOM_KILLS[kills]):
        threads = [threading.Thread(target=kubelet.run) for kubelet in kubelets]
        for thread in threads:
            thread.start()
        time.sleep(dice.uniform(0.02, 0.3))
        node.kill()
        for thread in threads:
            thread.join(30.0)
        in_doubt += sum(kubelet.in_doubt for kubelet in kubelets)
        node.start()
        prepared = [kubelet for kubelet in kubelets if kubelet.claim["uid"] in node.states()]
        assert len(node.instances()) == sum(len(kubelet.claim["devices"]) for kubelet in prepared)
        for kubelet in kubelets:
            kubelet.check()
        assert {*node.states()} == {kubelet.claim["uid"] for kubelet in kubelets if kubelet.answers}
    assert in_doubt > 0, "no kill met a call"
    for kubelet in kubelets:
        assert node.unprepare(kubelet.claim) == ""
        scheduler.release(kubelet.claim)
    assert node.leftovers() == []
