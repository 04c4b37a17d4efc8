"""`make mutants` takes long: that each mutation still applies, and how its place is found, is tested here."""

import pytest

from tests.fakes.scripts import SCRIPTS, script

mutants = script("mutants")
TEXT = """class A:
    def f(self):
        return g(
            1, 2,
        )

    def h(self):
        return g(1, 2)
"""


def test_every_mutation_applies() -> None:
    assert {each.name: problem for each in mutants.read() if (problem := each.problem(SCRIPTS.parent))} == {}


def mutant(at: str, old: str, new: str) -> "mutants.Mutant":  # type: ignore[name-defined]
    return mutants.Mutant(name="m", at=at, old=old, new=new, tests=())


def test_line_breaks_of_the_code_do_not_count() -> None:
    assert "return 3\n\n    def h" in mutant("a.py::A.f", "g(1, 2)", "3").applied(TEXT)


@pytest.mark.parametrize(
    ("at", "old", "new", "error"),
    [
        ("a.py", "g(1, 2)", "3", "stands 2 times in a.py"),
        ("a.py::A.x", "g(1, 2)", "3", "stands 0 times"),
        ("a.py::A.h", "return", "return (", "was never closed"),
    ],
)
def test_a_mutation_that_does_not_apply_is_an_error(at: str, old: str, new: str, error: str) -> None:
    with pytest.raises((ValueError, SyntaxError), match=error):
        mutant(at, old, new).applied(TEXT)
