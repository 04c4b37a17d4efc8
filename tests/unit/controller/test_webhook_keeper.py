"""The keeper of the webhook's certificates, with a store that refuses outdated writes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from dra_driver.controller.webhook_keeper import REPLACE_EVERY_S, WebhookKeeper
from dra_driver.controller.webhook_objects import has_bundle, secret_with, stored_of
from dra_driver.controller.webhook_plan import Life, Pair, Stored, Times
from dra_driver.core.errors import ConflictError, KubernetesApiError, NotFoundError
from tests.unit.controller.test_webhook_plan import DAY, NOW

SECRET, CONFIGURATION = "/secret", "/configuration"


class Store:
    """Two objects with versions. ``interfere`` is called before each write."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {
            SECRET: {"v": 0},
            CONFIGURATION: {"v": 0, "webhooks": [{"name": "a"}]},
        }
        self.writes: list[str] = []
        self.interfere: Callable[[str], None] = lambda path: None

    def get(self, path: str) -> dict[str, Any]:
        if path not in self.objects:
            raise NotFoundError(f"{path} not found")
        return dict(self.objects[path])

    def update(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        self.interfere(path)
        if body["v"] != self.objects[path]["v"]:
            raise ConflictError("the object has been modified")
        self.objects[path] = {**body, "v": body["v"] + 1}
        self.writes.append(path)
        return self.objects[path]

    @property
    def stored(self) -> Stored:
        return stored_of(self.objects[SECRET], lambda _: True)

    @property
    def announced(self) -> bool:
        return has_bundle(self.objects[CONFIGURATION], self.stored.bundle)


@dataclass
class World:
    """One store, and a clock that each replica may have of its own."""

    store: Store = field(default_factory=Store)
    now: datetime = NOW
    seconds: float = 0.0
    made: int = 0

    def make(self, now: datetime) -> Pair:
        self.made += 1
        end = (now + 90 * DAY).isoformat()
        return Pair(
            certificate=f"{now.isoformat()}/{end}/{self.made}".encode(), key=b"KEY", ca=f"ca{self.made};".encode()
        )

    def life(self, pair: Pair) -> Life | str:
        begin, end, _ = pair.certificate.decode().split("/")
        return Life(begin=datetime.fromisoformat(begin) - timedelta(hours=1), end=datetime.fromisoformat(end))

    def is_certificate(self, ca: bytes) -> bool:
        return True


class Replica:
    """A keeper that leads or not, with a folder of its own."""

    def __init__(self, world: World, folder: Path, *, leads: bool = True, ahead: timedelta = timedelta()) -> None:
        folder.mkdir(exist_ok=True)
        self.leading, self.folder, self.policies = leads, folder, None
        self.keeper = WebhookKeeper(
            world.store, self, world, lambda: self.policies, secret=SECRET, configuration=CONFIGURATION, folder=folder,
            times=Times.of(90 * DAY), clock=lambda: world.seconds, now=lambda: world.now + ahead,
        )  # fmt: skip

    def leads(self) -> bool:
        return self.leading

    def serves(self) -> str:
        path = self.folder / "serving.pem"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def one(world: World, tmp_path: Path) -> Replica:
    return Replica(world, tmp_path / "one")


@pytest.fixture
def other(world: World, tmp_path: Path) -> Replica:
    return Replica(world, tmp_path / "other", leads=False)


def test_the_leader_makes_announces_and_hands_over(world: World, one: Replica) -> None:
    one.keeper.step()
    assert world.store.writes == [SECRET, CONFIGURATION]  # trusted before it is served
    assert world.store.announced
    assert one.serves().startswith("not-after: 2026-04-01T00:00:00Z\n")
    assert "KEY" in one.serves()
    assert (one.folder / "serving.pem").stat().st_mode & 0o777 == 0o600


def test_the_other_replica_serves_the_same_and_writes_nothing(world: World, one: Replica, other: Replica) -> None:
    with pytest.raises(KubernetesApiError, match="holds no certificate yet"):
        other.keeper.step()
    assert (world.made, world.store.writes) == (0, [])
    one.keeper.step()
    other.keeper.step()
    assert other.serves() == one.serves()
    assert len(world.store.writes) == 2


def test_a_quiet_keeper_writes_nothing(world: World, one: Replica) -> None:
    for _ in range(3):
        one.keeper.step()
    former = (one.folder / "serving.pem").stat().st_ino
    writes = len(world.store.writes)
    assert one.keeper.step() == 30.0
    assert (len(world.store.writes), (one.folder / "serving.pem").stat().st_ino) == (writes, former)


def test_a_file_that_was_removed_is_written_again(one: Replica) -> None:
    one.keeper.step()
    (one.folder / "serving.pem").unlink()
    one.keeper.step()
    assert one.serves()


def test_a_bundle_that_was_taken_away_comes_back(world: World, one: Replica) -> None:
    """A deployment tool applies the chart again, which has none."""
    one.keeper.step()
    configuration = world.store.objects[CONFIGURATION]
    world.store.objects[CONFIGURATION] = {**configuration, "webhooks": [{"name": "a"}]}
    one.keeper.step()
    assert world.store.announced


def test_a_rotation_never_serves_what_is_not_announced(world: World, one: Replica, other: Replica) -> None:
    one.keeper.step()
    served = {one.serves()}
    world.now += 61 * DAY
    for _ in range(300):
        world.now += timedelta(minutes=1)
        for replica in (one, other):
            replica.keeper.step()
            current = world.store.stored.current
            assert current is not None
            bundle = json.dumps(world.store.objects[CONFIGURATION])
            assert world.store.announced or current.ca.decode() in bundle
            served.add(replica.serves())
    assert (world.made, len(served)) == (2, 2)
    assert world.store.stored.bundle == b"ca2;"


def test_an_expired_certificate_is_replaced_and_told(
    world: World, one: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    one.keeper.step()
    world.now += 200 * DAY
    world.seconds += 200 * 86400
    one.keeper.step()
    assert "it expired at 2026-04-01" in str([vars(record) for record in caplog.records])
    assert one.serves().startswith("not-after: 2026-10-18")
    assert world.store.announced
    assert "KEY" not in caplog.text


def test_a_certificate_that_may_not_be_replaced_yet_is_not_announced(world: World, one: Replica) -> None:
    """Its CA would take the place of that of the certificate that is still served."""
    one.keeper.step()
    for _ in range(2):
        good = dict(world.store.objects[CONFIGURATION])
        served = one.serves()
        expired = Stored(current=world.make(world.now - 200 * DAY))
        world.store.objects[SECRET] = secret_with(world.store.objects[SECRET], expired)
        try:
            one.keeper.step()
        except KubernetesApiError as error:
            assert "it expired at" in str(error)  # noqa: PT017 - the second time
            assert world.store.objects[CONFIGURATION] == good
            assert one.serves() == served
            break
    else:
        pytest.fail("it was replaced twice at once")
    world.seconds += REPLACE_EVERY_S
    one.keeper.step()
    assert world.store.announced


def test_a_follower_does_not_hand_over_an_expired_one(world: World, one: Replica, other: Replica) -> None:
    one.keeper.step()
    world.now += 200 * DAY
    with pytest.raises(KubernetesApiError, match="cannot be served: it expired"):
        other.keeper.step()
    assert other.serves() == ""


def test_of_two_leaders_one_wins_and_nothing_is_undone(world: World, one: Replica, other: Replica) -> None:
    """Both have read the empty Secret; the second write fails, and its pair is never announced."""
    other.leading = True

    def both(path: str) -> None:
        world.store.interfere = lambda path: None
        other.keeper.step()

    world.store.interfere = both
    with pytest.raises(ConflictError):
        one.keeper.step()
    assert one.serves() == ""
    one.keeper.step()
    assert one.serves() == other.serves()
    assert world.store.announced


def test_an_outdated_leader_does_not_take_a_ca_away(world: World, one: Replica, other: Replica) -> None:
    """It was stopped between its reads and its write of the configuration."""
    one.keeper.step()
    world.now += 61 * DAY
    world.store.objects[CONFIGURATION] = {**world.store.objects[CONFIGURATION], "webhooks": [{"name": "a"}]}
    other.leading = True

    def stopped(path: str) -> None:
        world.store.interfere = lambda path: None
        for _ in range(3):
            other.keeper.step()

    world.store.interfere = stopped
    with pytest.raises(ConflictError):
        one.keeper.step()
    assert world.store.announced
    assert world.store.stored.following is not None


def test_replicas_whose_clocks_differ_by_months_replace_little(world: World, tmp_path: Path, one: Replica) -> None:
    """Each finds the certificate of the other one useless, and leadership changes all the time."""
    ahead = Replica(world, tmp_path / "ahead", ahead=200 * DAY)
    for _ in range(50):
        for replica in (one, ahead):
            for leading in (one, ahead):
                leading.leading = leading is replica
            world.seconds += 10
            try:
                replica.keeper.step()
            except KubernetesApiError as error:
                assert "cannot be served" in str(error)  # noqa: PT017 - both happen
    assert world.made <= 2 + 2 * world.seconds / REPLACE_EVERY_S


def test_a_replica_that_lost_the_lease_writes_nothing(world: World, one: Replica) -> None:
    """It lost it while it read."""
    answers = iter([True, False, False])
    one.leads = lambda: next(answers, False)  # type: ignore[method-assign]
    with pytest.raises(KubernetesApiError, match="holds no certificate"):
        one.keeper.step()
    assert world.store.writes == []


def test_a_secret_that_is_missing_is_told_and_looked_for(world: World, one: Replica) -> None:
    del world.store.objects[SECRET]
    assert one.keeper._turn() == 5.0
    assert one.keeper.problem == "/secret not found"
    world.store.objects[SECRET] = {"v": 0}
    world.seconds += 5
    one.keeper._turn()
    assert one.keeper.problem is None
    assert one.serves()


def test_policies_are_handed_over_without_asking_the_api_server(world: World, one: Replica) -> None:
    one.keeper._turn()
    assert (one.folder / "policies.json").read_text() == "null"
    gone = world.store.objects
    world.store.objects = {}
    one.policies = {"a": [{"name": "team", "int": 1}]}  # type: ignore[assignment]
    one.keeper._turn()
    assert json.loads((one.folder / "policies.json").read_text()) == one.policies
    assert one.keeper.problem is None
    world.store.objects = gone


def test_a_folder_that_cannot_be_written_is_told(one: Replica) -> None:
    one.folder.rmdir()
    one.keeper._turn()
    assert "cannot write below" in str(one.keeper.problem)


def test_a_thread_that_does_not_move_is_told(world: World, one: Replica) -> None:
    assert one.keeper.hung is None
    world.seconds += 1000
    assert "has not moved for 1000 s" in str(one.keeper.hung)


def test_it_runs_and_stops(one: Replica) -> None:
    one.keeper.start()
    one.keeper.wake()
    one.keeper.policies_changed()
    one.keeper.stop()
