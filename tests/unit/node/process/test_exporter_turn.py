"""The driver is changed after the exporter let go of it; one that is dead or stuck delays little."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.node.process.exporter_turn import IMPATIENT_S, WAIT_S, ExporterTurn
from tests.unit.node.process.exporter import Exporter


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Exporter]:
    found = Exporter(tmp_path / "driver.lock")
    yield found
    found.close()


@pytest.fixture
def turn(exporter: Exporter) -> ExporterTurn:
    return ExporterTurn(exporter.path, sleep=exporter.sleep, clock=exporter.clock)


def test_it_waits_until_the_exporter_has_let_go_and_keeps_it_away(turn: ExporterTurn, exporter: Exporter) -> None:
    exporter.open()
    exporter.told = True
    with turn.taken() as has_let_go:
        assert (has_let_go, exporter.is_open) == (True, False)
        with pytest.raises(BlockingIOError):
            exporter.open()
    exporter.open()


def test_two_changes_at_once_wait_once(turn: ExporterTurn, exporter: Exporter) -> None:
    """The lock is given back after the last of them."""
    exporter.open()
    exporter.told = True
    with turn.taken():
        waited_s = exporter.waited_s
        with turn.taken() as has_let_go:
            assert not has_let_go
        with pytest.raises(BlockingIOError):
            exporter.open()
    assert exporter.waited_s == waited_s
    exporter.open()


@pytest.mark.parametrize("ran", [False, True])
def test_without_an_exporter_nothing_waits(turn: ExporterTurn, exporter: Exporter, ran: bool) -> None:
    """It was never there, or has died with the driver open."""
    if ran:
        exporter.open()
        exporter.close()
    with turn.taken() as has_let_go:
        assert not has_let_go
    assert (exporter.waited_s, exporter.path.exists()) == (0, ran)


def test_a_stuck_exporter_is_waited_for_once_in_a_while(turn: ExporterTurn, exporter: Exporter) -> None:
    """Each change goes on without it."""
    exporter.open()
    exporter.is_stuck = True
    for _ in range(3):
        with turn.taken() as has_let_go:
            assert not has_let_go
    assert exporter.waited_s == pytest.approx(WAIT_S, abs=0.1)
    exporter.now += IMPATIENT_S
    with turn.taken():
        pass
    assert exporter.waited_s == pytest.approx(2 * WAIT_S, abs=0.2)


def test_it_is_known_whether_the_exporter_has_let_go(turn: ExporterTurn, exporter: Exporter) -> None:
    """Before the driver is said to be given up; where none has ever run, too."""
    assert turn.let_go()
    exporter.open()
    exporter.is_stuck = True
    assert [turn.let_go(), turn.let_go()] == [False, False]
    exporter.close()
    assert turn.let_go()
    exporter.open()
    exporter.told, exporter.is_stuck = True, False
    exporter.now += IMPATIENT_S
    assert turn.let_go()
    exporter.open()


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_lock_file_does_not_keep_a_gpu_from_being_changed(
    turn: ExporterTurn, exporter: Exporter, kind: str
) -> None:
    """The exporter may write in that folder."""
    if kind == "folder":
        exporter.path.mkdir()
    else:
        exporter.path.symlink_to("/proc/self/mem")
    with turn.taken() as has_let_go:
        assert not has_let_go


def test_no_descriptor_is_left(turn: ExporterTurn, exporter: Exporter) -> None:
    """Also after a change that failed."""
    exporter.open()
    exporter.close()
    before = len([*Path("/proc/self/fd").iterdir()])
    with pytest.raises(ZeroDivisionError), turn.taken():
        _ = 1 / 0
    assert len([*Path("/proc/self/fd").iterdir()]) == before
