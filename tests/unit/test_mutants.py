"""Mutations that no longer apply prove nothing: the texts of tests/mutants.toml stand in the code."""

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_mutation_applies_once() -> None:
    """`make mutants` takes long; a line that moves to another file is noticed here."""
    spec = importlib.util.spec_from_file_location("mutants", ROOT / "scripts/mutants.py")
    assert spec is not None
    assert spec.loader is not None
    mutants = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = mutants
    spec.loader.exec_module(mutants)
    assert {each.name: problem for each in mutants.read() if (problem := each.problem(ROOT))} == {}
