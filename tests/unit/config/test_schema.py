"""The checker itself: bounds, words and what it loads."""

import subprocess
import sys
from typing import Any

import pytest

from dra_driver.config.schema import FieldProblem, path_text, problems, sentence, shown

LIST = {"type": "list", "max": 2, "items": {"type": "boolean"}}
TEXT = {"type": "string", "min": 1, "max": 3, "pattern": "^[a-z]+$", "says": "a word"}


@pytest.mark.parametrize(
    ("value", "schema", "said"),
    [
        ("x", LIST, "expected a list, got 'x'"),
        ([True, 0], LIST, "[1]: expected true or false, got 0"),
        ([True] * 3, LIST, "expected at most 2 entries, got 3"),
        ("ab\n", TEXT, "expected a word, got 'ab\\n'"),
        ("", TEXT, "expected a word of 1 to 3 characters, got 0"),
        ("\ud800", TEXT, "expected a word, got '\\ud800'"),
        (1.0, {"type": "integer", "min": 0, "max": 9}, "expected a whole number from 0 to 9, got 1.0"),
        (2**200, {"type": "integer", "min": 0, "max": 9}, "expected a whole number from 0 to 9, got a huge number"),
        (2**200, {"type": "quantity", "min": 1, "max": 1024}, "expected at most 1Ki, got a huge number"),
        ("2Ki", {"type": "quantity", "min": 1, "max": 1024}, "expected at most 1Ki, got '2Ki'"),
        (["x"], {"type": "any"}, "expected an object, got a list"),
        ({"a": 1}, {"type": "map", "max": 0, "values": {"type": "boolean"}}, "expected at most 0 entries, got 1"),
    ],
)
def test_what_is_wrong_is_said_in_words(value: Any, schema: Any, said: str) -> None:
    """One sentence for the person who wrote it."""
    assert [str(problem) for problem in problems(value, schema)] == [said]


def test_paths_read_as_people_write_them() -> None:
    """Keys that people chose are cut, and cannot break a line."""
    assert path_text(("spec", "taints", 0, "key")) == "spec.taints[0].key"
    assert str(FieldProblem(("a\n", "b" * 100), "x")) == "a ." + "b" * 59 + "…: x"


def test_an_enumeration_of_one_reads_well() -> None:
    assert str(problems("b", {"type": "enum", "values": ["a"]})[0]) == "expected 'a', got 'b'"


def test_a_sentence_shows_five_problems_and_counts_the_rest() -> None:
    """An event's message is limited."""
    found = [FieldProblem((str(number),), "x") for number in range(7)]
    assert sentence(found) == "0: x; 1: x; 2: x; 3: x; 4: x; and 2 more"


def test_containers_are_named_and_not_printed() -> None:
    values: list[object] = [None, {}, [], True]
    assert [shown(value) for value in values] == ["nothing", "an object", "a list", "true"]


def test_decoding_loads_neither_pydantic_nor_yaml() -> None:
    """9 MiB of every node process' 60, for what a small walk does."""
    script = (
        "import sys; from dra_driver.config.parameters import decode, API_VERSION as v;"
        "from dra_driver.node.policy import PolicySource;"
        "decode({'apiVersion': v, 'kind': 'GpuConfig', 'sharing': {'strategy': 'MPS'}});"
        "print(sorted({'pydantic', 'yaml', 'dra_driver.config.schemas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"
