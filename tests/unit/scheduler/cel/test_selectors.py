"""Device selectors: results for a GPU, and errors."""

import threading
from typing import Any

import pytest

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import MAX_LENGTH, DeviceView, compile_selector

GPU: dict[str, Any] = {
    "name": "gpu-0",
    "attributes": {
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
        "architecture": {"string": "Hopper"},
        "cudaComputeCapability": {"version": "9.0.0"},
        "driverVersion": {"version": "580.65.6"},
        "index": {"int": 0},
        "healthy": {"bool": True},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:64"},
    },
    "capacity": {"memory": {"value": "81559Mi"}},
}
VIEW = DeviceView("gpu.nvidia.com", GPU)
A = 'device.attributes["gpu.nvidia.com"]'


def selects(expression: str) -> bool:
    return compile_selector(expression).evaluate(VIEW)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        (f'{A}.profile == "1g.10gb"', "no such key"),
        ('device.attributes["nic.example.com"].speed > 100', "no such key"),
        (f"{A}.architecture > 1", "no such overload"),
        (f'{A}.driverVersion == "580.65.6"', "no such overload"),
        (f"{A}.architecture", "expected a bool"),
        (f"quantity({A}.productName).isInteger()", "is not a quantity"),
        (f"semver({A}.productName).major() == 1", "not a semantic version"),
        (f'{A}.productName.matches("(" + {A}.type)', "error parsing regexp"),
        (f"[1, 2][{A}.index + 7] == 1", "index out of bounds"),
    ],
)
def test_failure_on_a_device_is_an_error(expression: str, what: str) -> None:
    """A selector that fails raises an error, which ends the scheduling attempt; its result is never false."""
    with pytest.raises(CelEvaluationError, match=what):
        selects(expression)


@pytest.mark.parametrize("operator", ["&&", "||"])
@pytest.mark.parametrize("failed_first", [True, False])
def test_logic_fails_where_no_side_decides(operator: str, failed_first: bool) -> None:
    """A missing attribute never counts as true or false, in both evaluators."""
    other = "true" if operator == "&&" else "false"
    terms = [f'{A}.profile == "x"', other] if failed_first else [other, f'{A}.profile == "x"']
    program = compile_selector(f" {operator} ".join(terms))
    for evaluate in (program.evaluate, program.evaluate_counting):
        with pytest.raises(CelEvaluationError, match="no such key"):
            evaluate(VIEW)


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("", "syntax error"),
        ("device.driver ==", "syntax error"),
        ("driver == 'x'", "1:1: undeclared name 'driver', did you mean 'device.driver'"),
        ("device.attribute['x'].y", "1:8: device has no field 'attribute', did you mean 'attributes'"),
        (f"{A}.architecture.lower() == 'hopper'", "undeclared function 'lower'"),
        ("quantities('1') == 1", "undeclared function 'quantities', did you mean 'quantity'"),
        ("[1].all(x, y > 0)", "undeclared name 'y'"),
        ("Foo{a: 1} == 1", "Foo is not a message type"),
        (f"{A}.type.exists(x, x == 'gpu')", "cannot be iterated"),
        (f"'%s'.format([{A}.type]) == 'gpu'", "%s cannot format a value of type any"),
        (f"{A}.driverVersion > semver('1.0.0')", "cannot be applied to"),
        ("[1, 'a'].size() == 2", "expected type int like the elements before, found string"),
        ("int('x') == 1", "this constant expression fails: type conversion error"),
        ("'a'.matches('(')", "invalid argument of matches"),
        ("9223372036854775808 > 0", "does not fit a signed 64-bit integer"),
        ("1 == 1.0", "cannot be applied to"),
        ("1", "a selector must be a bool"),
        ("'" + "x" * MAX_LENGTH + "' == ''", "too long"),
        ("(" * 400 + "true" + ")" * 400, "nested more than 250 levels"),
    ],
)
def test_mistakes_are_found_by_compilation(expression: str, what: str) -> None:
    """A mistake is reported with its position before any device is evaluated."""
    with pytest.raises(CelSyntaxError, match=what):
        compile_selector(expression)


def test_long_conditions_compile() -> None:
    """Kubernetes accepts a hundred alternatives, so this engine does."""
    assert selects(" || ".join([f'{A}.architecture == "x"'] * 100 + ["true"]))


def test_nested_macros_end_at_the_cost_limit() -> None:
    numbers = "[" + ",".join("1" * 60) + "]"
    bomb = "true"
    for name in "abcdef":
        bomb = f"{numbers}.all({name}, {bomb})"
    with pytest.raises(CelEvaluationError, match="cost limit exceeded"):
        selects(bomb)


def test_programs_are_shared_between_threads() -> None:
    """One program evaluates different devices in several threads at once with the right results."""
    program = compile_selector(f"{A}.index == 3")
    views = [DeviceView("gpu.nvidia.com", {"attributes": {"index": {"int": index}}}) for index in range(4)]
    wrong: list[int] = []

    def work(index: int) -> None:
        wrong.extend(index for _ in range(25) if program.evaluate(views[index]) != (index == 3))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert not wrong


def test_malformed_devices_are_refused() -> None:
    unreadable = DeviceView("x", {"attributes": {"a": {"ints": [1]}}})
    with pytest.raises(CelEvaluationError, match="attribute a: unsupported attribute value of type ints"):
        compile_selector("true").evaluate(unreadable)
    with pytest.raises(ValueError, match="not a quantity"):
        DeviceView("x", {"capacity": {"a": {"value": "much"}}})
