"""The checker itself: bounds, words and what it loads."""

import re
import subprocess
import sys
from typing import Any

import pytest

from dra_driver.config.schema import FieldProblem, path_text, problems
from dra_driver.config.schemas.export import gpu_node_crd, gpu_policy_crd

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
        ("b", {"type": "enum", "values": ["a"]}, "expected 'a', got 'b'"),
        (["x"], {"type": "any"}, "expected an object, got a list"),
        ({"a": 1}, {"type": "map", "max": 0, "values": {"type": "boolean"}}, "expected at most 0 entries, got 1"),
    ],
)
def test_what_is_wrong_is_said_in_words(value: Any, schema: Any, said: str) -> None:
    assert [str(problem) for problem in problems(value, schema)] == [said]


def test_paths_read_as_people_write_them() -> None:
    assert path_text(("spec", "taints", 0, "key")) == "spec.taints[0].key"
    assert str(FieldProblem(("a\n", "b" * 100), "x")) == "a ." + "b" * 59 + "…: x"


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


@pytest.mark.parametrize("crd", [gpu_policy_crd(), gpu_node_crd()], ids=["GpuPolicy", "GpuNode"])
def test_columns_show_fields_that_the_schema_has(crd: dict[str, Any]) -> None:
    """kubectl shows an empty column for a path that leads nowhere, and says nothing."""
    (version,) = crd["spec"]["versions"]
    root = version["schema"]["openAPIV3Schema"]
    assert version["subresources"] == {"status": {}}
    for column in version["additionalPrinterColumns"]:
        schema = root
        for step in re.sub(r"\[[^]]*\]", ".[]", column["jsonPath"]).strip(".").split("."):
            if step == "metadata":
                break
            schema = schema["items"] if step == "[]" else schema["properties"][step]
        else:
            assert schema["type"] == column["type"], column
