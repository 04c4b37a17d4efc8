"""Giving the NVIDIA driver up and taking it again: what asks for it, and step by step."""

import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from dra_driver.core.errors import StorageError
from dra_driver.core.model.drain import MAX_REASON, clean
from dra_driver.core.telemetry import metrics
from dra_driver.kube.own_node import OwnNode
from dra_driver.node.process.detaching import (
    ANNOTATION,
    FILE,
    LABELS,
    LOOK_S,
    MAX_FILE_BYTES,
    PAUSED,
    REST_S,
    DetachFile,
    Detaching,
    DetachRequest,
    find_request,
    wake_for_file,
)
from tests.fakes.stand_in import present, stand_in

CLIENT, DRA = LABELS
PATH = Path("/plugins/detach")


own_node = partial(OwnNode, name="node-a")


def find(node: OwnNode | None, file: str | None = None) -> DetachRequest:
    return present(find_request(node, file, PATH))


def test_an_annotation_or_a_file_asks_at_once_and_says_how_to_end_it() -> None:
    found = find(own_node(annotations={ANNOTATION: "driver 580.105"}))
    assert all(name in str(found) for name in ("gpu.dra-driver.io/detach", "node-a", "driver 580.105"))
    assert found.ends.endswith("kubectl annotate node node-a gpu.dra-driver.io/detach-")
    assert (found.when_unused, found.taint_value) == (False, "requested")
    found = find(None, "reset of gpu-3\n")
    assert (str(found), found.ends) == ("file /plugins/detach: reset of gpu-3", "remove the file")
    assert find_request(None, None, PATH) is None
    assert find_request(own_node(labels={CLIENT: "true", DRA: "false"}), None, PATH) is None


@pytest.mark.parametrize(
    ("value", "asks"), [("", True), ("true", True), ("0", True), ("false", False), ("False", False)]
)
def test_values_of_the_annotation(value: str, asks: bool) -> None:
    assert (find_request(own_node(annotations={ANNOTATION: value}), None, PATH) is not None) is asks


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("value", [PAUSED, f"on_{PAUSED}"])
def test_labels_of_a_driver_upgrade_ask_to_wait_for_claims(label: str, value: str) -> None:
    """k8s-driver-manager evicts claim holders after it sets the first label; they need their unprepare."""
    found = find(own_node(labels={label: value}))
    assert (found.when_unused, found.taint_value) == (True, "driver-upgrade")
    assert label in str(found)
    # A person who asks counts before a label, and does not wait for claims.
    assert not find(own_node(annotations={ANNOTATION: "now"}, labels={label: value})).when_unused
    assert not find(own_node(labels={label: value}), "now").when_unused


def test_reasons_are_one_short_printable_line() -> None:
    assert clean(" two\nlines\x1b[31m\0 ") == "two lines?[31m?"
    assert clean("") == clean(" \n") == "no reason given"
    assert len(clean("x" * 300_000)) == MAX_REASON


def test_a_file_is_read_up_to_its_limit_and_its_absence_is_seen(tmp_path: Path) -> None:
    file = DetachFile(tmp_path / "detach")
    assert file.read() is None
    file.path.write_bytes(b"\xff" + b"x" * 10_000)
    content = present(file.read())
    assert content.startswith("\N{REPLACEMENT CHARACTER}x")
    assert len(content) == MAX_FILE_BYTES
    file.path.unlink()
    assert file.read() is None


def test_what_cannot_be_read_asks_all_the_same(tmp_path: Path) -> None:
    """A directory, a link or a pipe of that name was made on purpose; none of them may hang the thread."""
    file = DetachFile(tmp_path / "detach")
    file.path.mkdir()
    assert "regular" in str(file.read())
    file.path.rmdir()
    file.path.symlink_to("/etc/hostname")
    assert "cannot be read" in str(file.read())
    file.path.unlink()
    os.mkfifo(file.path)
    assert "regular" in str(file.read())


def test_an_error_that_says_nothing_keeps_the_last_answer(tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    file = DetachFile(folder / "detach")
    file.path.write_text("upgrade")
    assert file.read() == "upgrade"
    file.path.unlink()
    folder.rmdir()
    folder.write_text("a file in the folder's place: ENOTDIR")
    assert file.read() == "upgrade"


ASKED = DetachRequest(source="annotation x of node node-a", reason="driver 580", ends="remove the annotation")
UPGRADE = DetachRequest(source="label y of node node-a", reason="paused", ends="it ends", when_unused=True)
DETACHED = "the GPUs of this node are detached"


class Gpus:
    """A backend whose calls return, or hang until the test ends them."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.hangs = False
        self.detached: str | None = None

    def detach(self, reason: str, timeout_s: float) -> bool:
        self.happened.append("closed")
        self.detached = reason
        return not self.hangs

    def reattach(self) -> None:
        self.happened.append("reattached")
        self.detached = None


class Inventory:
    """Its next look sees what the backend is; ``missing`` is the driver's absence."""

    def __init__(self, gpus: Gpus) -> None:
        self._gpus = gpus
        self.missing: str | None = None
        self.problem: str | None = None

    def refresh(self) -> None:
        self.problem = DETACHED if self._gpus.detached else self.missing


class Gate:
    def __init__(self, happened: list[str]) -> None:
        self.happened = happened
        self.reason: str | None = None
        self.busy = False

    def close(self, reason: str) -> None:
        if self.reason is None:
            self.happened.append("gate closed")
        self.reason = reason

    def open(self) -> None:
        self.happened.append("gate open")
        self.reason = None

    def wait_idle(self, timeout_s: float) -> bool:
        self.happened.append("calls ended" if not self.busy else "calls still work")
        return not self.busy


class Node:
    """`Detaching` with everything around it."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.gpus, self.gate = Gpus(self.happened), Gate(self.happened)
        self.inventory = Inventory(self.gpus)
        self.asked: DetachRequest | None = None
        self.claims: int | StorageError = 0
        self.now, self.publish_after_s = 100.0, 0.0
        self.told: list[tuple[str, str]] = []
        self.exporter_is_stuck = False
        self.detaching = Detaching(
            stand_in(self.gpus),
            stand_in(self.inventory),
            stand_in(self.gate),
            find=lambda: self.asked,
            prepared=self.prepared,
            changed=lambda: self.happened.append(f"taint {self.detaching.taint_value}"),
            published=self.published,
            clock=lambda: self.now,
            tell=lambda kind, reason, message: self.told.append((reason, message)),
            exporter_closed=self.exporter_closed,
        )

    def exporter_closed(self) -> bool:
        self.happened.append("exporter waited for")
        return not self.exporter_is_stuck

    def published(self) -> bool:
        self.now += 0.5
        self.publish_after_s -= 0.5
        if self.publish_after_s <= 0:
            self.happened.append("published")
        return self.publish_after_s <= 0

    def prepared(self) -> int:
        if isinstance(self.claims, StorageError):
            raise self.claims
        return self.claims

    def step(self, asked: DetachRequest | None) -> list[str]:
        self.asked = asked
        del self.happened[:]
        self.detaching.step()
        return list(self.happened)

    @property
    def gauge(self) -> float:
        value: float = metrics.detached._value.get()
        return value

    @property
    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.told]


@pytest.fixture
def node() -> Node:
    return Node()


def test_it_looks_every_second_only_while_it_is_asked(node: Node) -> None:
    assert node.detaching.step() == REST_S
    assert (node.happened, node.detaching.problem, node.detaching.taint_value, node.told) == ([], None, None, [])
    node.asked = ASKED
    assert node.detaching.step() == LOOK_S
    node.asked = None
    for _ in range(2):  # it takes the driver again, and sees that it is there
        assert node.detaching.step() <= LOOK_S
    assert node.detaching.step() == REST_S


def test_the_file_wakes_it(tmp_path: Path) -> None:
    woken: list[int] = []
    detaching = stand_in(SimpleNamespace(worker=SimpleNamespace(wake=lambda: woken.append(1))))
    wake_for_file(detaching, tmp_path)
    assert woken == []
    (tmp_path / FILE).symlink_to("nothing")
    wake_for_file(detaching, tmp_path)
    assert woken == [1]


def test_new_prepares_are_refused_and_devices_tainted_before_the_driver_is_closed(node: Node) -> None:
    node.claims = 10  # a request by a person does not wait for them
    steps = node.step(ASKED)
    order = ["gate closed", "taint requested", "calls ended", "published", "closed"]
    assert [step for step in steps if step in order] == [*order[:4], "taint requested", "closed", "taint requested"]
    assert (node.detaching.is_detached, node.gauge) == (True, 1)
    assert node.gpus.detached == "annotation x of node node-a: driver 580"
    assert node.detaching.problem == f"detached from the NVIDIA driver ({ASKED})"
    assert node.reasons == ["DriverDetaching", "DriverDetached"]
    assert node.step(ASKED) == [], "said and done once"


def test_a_driver_upgrade_waits_until_no_claim_is_prepared(node: Node) -> None:
    """Their pods are being evicted and need their unprepare, which may change GPUs."""
    node.claims = StorageError("disk")
    assert node.step(UPGRADE) == ["gate closed", "taint driver-upgrade"]
    assert "disk" in str(node.detaching.problem)
    node.claims = 2
    node.step(UPGRADE)
    assert not node.detaching.is_detached
    assert "2 prepared" in str(node.detaching.problem)
    node.claims = 1
    node.step(UPGRADE)
    assert "1 prepared" in str(node.detaching.problem)
    node.claims = 0
    assert "closed" in node.step(UPGRADE)
    assert node.reasons == ["DriverDetaching", "DriverDetached"]


def test_a_claim_that_a_call_in_work_prepared_is_waited_for(node: Node) -> None:
    wait = node.gate.wait_idle

    def prepares(timeout_s: float) -> bool:
        node.claims = 1
        return wait(timeout_s)

    node.gate.wait_idle = prepares  # type: ignore[method-assign]
    assert "closed" not in node.step(UPGRADE)
    assert "waiting for 1" in str(node.detaching.problem)


def test_a_request_that_changes_while_calls_are_waited_for_is_looked_at_again(node: Node) -> None:
    def withdrawn(timeout_s: float) -> bool:
        node.asked = None
        return True

    node.gate.wait_idle = withdrawn  # type: ignore[method-assign]
    assert "closed" not in node.step(ASKED)


def test_a_request_that_is_withdrawn_while_claims_are_waited_for_leaves_the_driver_open(node: Node) -> None:
    """k8s-driver-manager sets its labels back when it fails."""
    node.claims = 1
    node.step(UPGRADE)
    assert node.step(None) == ["gate open", "taint None"]
    assert (node.detaching.problem, node.gate.reason) == (None, None)


def test_reattach_waits_for_the_driver_and_then_opens_the_gate(node: Node) -> None:
    """Labels are set back before the new driver is installed, which takes minutes. A request in between detaches again:
    the upgrade failed and is tried once more."""
    node.step(UPGRADE)
    node.inventory.missing = "no NVML"
    assert node.step(None) == ["reattached", "taint driver-upgrade"]
    assert (node.detaching.is_detached, node.gauge) == (False, 0)
    for _ in range(3):
        assert node.step(None) == []
        assert node.gate.reason is not None
        assert "no NVML" in str(node.detaching.problem)
    assert "closed" in node.step(UPGRADE)
    assert node.detaching.is_detached
    node.step(None)
    node.inventory.missing = None
    node.inventory.refresh()
    assert node.step(None) == ["gate open", "taint None"]
    assert node.told[-1] == ("DriverReattached", "reattached to the NVIDIA driver")


def test_another_reason_while_detached_replaces_the_first(node: Node) -> None:
    node.step(UPGRADE)
    before = len(node.told)
    assert node.step(ASKED) == ["closed", "exporter waited for", "taint requested"]
    ((reason, message),) = node.told[before:]
    assert (reason, str(ASKED) in message) == ("DriverDetached", True), "who asks anew waits for an answer"
    node.step(ASKED)
    assert len(node.told) == before + 1
    assert (node.gpus.detached, node.gate.reason is not None and "driver 580" in node.gate.reason) == (str(ASKED), True)
    assert node.gauge == 1


@pytest.mark.parametrize(
    ("cause", "says"),
    [
        ("call", ("an NVML call has not returned", "delete its pod")),
        ("exporter", ("the usage exporter of this node has the driver open", "delete its pod")),
    ],
)
def test_who_keeps_the_driver_open_is_reported_until_it_is_closed(node: Node, cause: str, says: list[str]) -> None:
    node.gpus.hangs, node.exporter_is_stuck = cause == "call", cause == "exporter"
    for _ in range(2):
        node.step(ASKED)
    assert (node.detaching.is_detached, node.gauge) == (True, 0), "the driver must be left alone all the same"
    assert all(each in str(node.detaching.problem) for each in says)
    assert node.reasons == ["DriverDetaching", "DriverDetachIncomplete"]
    node.gpus.hangs = node.exporter_is_stuck = False
    node.step(ASKED)
    assert (node.gauge, node.reasons[-1]) == (1, "DriverDetached")
    assert not any(each in str(node.detaching.problem) for each in says)


def test_a_request_that_ends_while_a_call_hangs_is_taken_back(node: Node) -> None:
    node.gpus.hangs = True
    node.step(ASKED)
    assert "reattached" in node.step(None)
    node.step(None)
    assert node.gate.reason is None


@pytest.mark.parametrize(("publish_after_s", "waits"), [(1.0, True), (60.0, False)])
def test_an_api_server_or_calls_that_hang_do_not_keep_the_driver_open(
    node: Node, publish_after_s: float, waits: bool
) -> None:
    """The taint is waited for, but not for ever: the driver may be what has to be mended."""
    node.publish_after_s, node.gate.busy = publish_after_s, not waits  # nor do calls of the kubelet that do not end
    steps = node.step(ASKED)
    assert [step for step in steps if step in ("published", "closed")] == ["published", "closed"][not waits :]
