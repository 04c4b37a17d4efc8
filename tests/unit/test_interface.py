"""tests/golden/interface.txt lists the names that users rely on, read from the source."""

import argparse
import ast
from collections import Counter

import pytest

from tests.fakes.scripts import SCRIPTS, script

interface = script("interface")
LEAST = {"chart": 130, "code": 35, "field": 190, "file": 30, "flag": 450, "key": 45, "metric": 60, "reason": 500}
LEAST |= {"series": 60, "variable": 55, "wire": 350, "word": 400}


@pytest.mark.slow
def test_every_kind_is_listed() -> None:
    found = Counter(line.partition(" ")[0] for line in set(interface.lines(SCRIPTS.parent)))
    assert {kind: found[kind] for kind, least in LEAST.items() if found[kind] < least} == {}
    assert found.keys() == LEAST.keys()


@pytest.mark.parametrize(
    ("before", "after", "gone"),
    [
        ('x = "GpuUnhealthy"', 'x = "GpuSick"', "reason GpuUnhealthy"),
        ('x = "gpu.nvidia.com/xid"', 'x = "gpu.nvidia.com/xids"', "key gpu.nvidia.com/xid"),
        ('Gauge("dra_driver_leader", "1 while")', 'Gauge("dra_driver_leads", "1 while")', "metric dra_driver_leader"),
        (
            "class A(Struct, rename='camel'):\n  in_use: int",
            "class A(Struct, rename='camel'):\n  used: int",
            "wire inUse",
        ),
        ('x = "health.json"', 'x = "faults.json"', "file health.json"),
    ],
)
def test_a_renamed_name_disappears(before: str, after: str, gone: str) -> None:
    assert gone in set(interface.names(ast.parse(before)))
    assert gone not in set(interface.names(ast.parse(after)))


def test_a_removed_choice_of_a_flag_changes_its_line() -> None:
    parser = argparse.ArgumentParser(prog="dra-driver x", add_help=False)
    parser.add_argument("-o", "--output", choices=("table", "json"))
    assert list(interface.flags(parser)) == ["dra-driver x -o table|json", "dra-driver x --output table|json"]


def test_values_and_fields_are_listed_by_path() -> None:
    assert list(interface.paths({"a": {"b": 1}, "c": []})) == ["a", "a.b", "c"]
    schema = {"properties": {"a": {"type": "array", "items": {"properties": {"b": {"enum": ["X", "Y"]}}}}}}
    assert list(interface.properties(schema)) == ["a array", "a[].b  X|Y"]


def test_texts_in_documentation_are_no_names() -> None:
    assert list(interface.names(ast.parse('"""health.json"""'))) == []
