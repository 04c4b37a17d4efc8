"""The rules of the CustomResourceDefinition in CEL against the same rules in Python, with this project's CEL engine.

`tests/e2e/test_admission.py` asks a real API server. Types are checked there: here every value is dyn.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import pytest

from dra_driver.config.rules import RULES
from dra_driver.config.schema import problems, schemas
from tests.contract.config import samples
from tests.fakes.scripts import script
from tests.harness.cel import Expression, value_of

ROUNDS = 1000
Json = Mapping[str, Any]


@cache
def compiled(rule: str) -> Expression:
    return Expression(rule, ("self",))


@cache
def root() -> dict[str, Any]:
    schema: dict[str, Any] = script("schema_export").gpu_policy_crd()["spec"]["versions"][0]["schema"][
        "openAPIV3Schema"
    ]
    return schema


def broken_rules(schema: Json, value: Any) -> Iterator[str]:
    """The messages of the rules that a value breaks, as an API server finds them: outer ones first, null is absent."""
    for rule in schema.get("x-kubernetes-validations", ()):
        if compiled(rule["rule"]).evaluate({"self": value_of(value)}) is not True:
            yield rule["message"]
    if isinstance(value, dict):
        for name, field in schema.get("properties", {}).items():
            if name in value:
                yield from broken_rules(field, value[name])
    if isinstance(value, list) and "items" in schema:
        for item in value:
            yield from broken_rules(schema["items"], item)


def stored(schema: Json, value: Any) -> Any:
    """As an API server has it before it evaluates rules: with defaults, without nulls."""
    if isinstance(value, list):
        return [stored(schema.get("items", {}), item) for item in value]
    if not isinstance(value, dict):
        return value
    fields: Json = schema.get("properties", {})
    given = {name: item for name, item in value.items() if item is not None}
    defaults = {name: field["default"] for name, field in fields.items() if "default" in field}
    return {name: stored(fields.get(name, {}), item) for name, item in {**defaults, **given}.items()}


def said_by_nodes(value: Any) -> set[str]:
    return {problem.text for problem in problems(value, schemas()["GpuPolicy"])}


def test_rules_in_cel_refuse_what_nodes_refuse() -> None:
    """Of objects whose fields are right by themselves: an API server looks at rules only then, too."""
    known = {rule.message for rule in RULES.values()}
    compared: set[str] = set()
    for seed in range(ROUNDS):
        value = samples.right("GpuPolicy", seed)
        by_node, by_cel = said_by_nodes(value), set(broken_rules(root(), stored(root(), value)))
        assert by_node & known <= by_cel, value  # nodes look at an object's own rules once its parts are right
        assert by_node or not by_cel, value
        compared |= by_cel
    assert len(compared) >= 10, sorted(compared)


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_compiles(rule: str) -> None:
    """Rules of claims' parameters are not in the CustomResourceDefinition; their admission policy has them."""
    compiled(RULES[rule].cel)


@pytest.mark.parametrize(
    ("amount", "fits"),
    [
        ("1Mi", True), (2**20, True), ("1048575500m", True), ("1048575", False), ("-1", False), ("1Ei", True),
        ("2Ei", False),
    ],
)  # fmt: skip
def test_amounts_of_memory_have_the_bounds_of_nodes(amount: Any, fits: bool) -> None:
    """Fractions of a byte count as a whole one."""
    select = {"minMemory": amount}
    value = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "a"}}
    value |= {"spec": {"select": select}}
    assert bool(said_by_nodes(value)) != fits
    assert bool(list(broken_rules(root(), value))) != fits
