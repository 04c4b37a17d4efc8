"""How long a good answer of the liveness probe counts."""

from dra_driver.node.process.endpoints import GOOD_S, Probe


class Sockets:
    """Sockets that answer until a test says that they do not, and the time."""

    def __init__(self) -> None:
        self.now, self.checks = 0.0, 0
        self.found: list[str] = []
        self.probe = Probe(self.check, lambda: self.now)

    def check(self) -> list[str]:
        self.checks += 1
        return self.found


def test_a_good_answer_counts_for_a_while() -> None:
    """A check wakes all threads of gRPC."""
    sockets = Sockets()
    for sockets.now in (0.0, GOOD_S / 2, GOOD_S - 0.1):
        assert sockets.probe.problems() == []
    assert sockets.checks == 1
    sockets.now, sockets.found = GOOD_S, ["no answer"]
    assert sockets.probe.problems() == ["no answer"]


def test_a_bad_answer_counts_once() -> None:
    """What answers again is alive at once, and what does not is checked by each probe."""
    sockets = Sockets()
    sockets.found = ["no answer"]
    assert [sockets.probe.problems() for _ in range(2)] == [["no answer"]] * 2
    sockets.found = []
    assert sockets.probe.problems() == []
    sockets.found = ["no answer"]
    assert (sockets.probe.problems(), sockets.checks) == ([], 3)
