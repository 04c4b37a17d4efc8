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
M = 'device.capacity["gpu.nvidia.com"].memory'


def selects(expression: str) -> bool:
    return compile_selector(expression).evaluate(VIEW)


@pytest.mark.parametrize(
    "expression",
    [
        'device.driver == "gpu.nvidia.com"',
        f'{A}.type == "gpu" && {A}.architecture == "Hopper"',
        f'{A}.productName.lowerAscii().matches("^.*h100.*$")',
        f"{M}.compareTo(quantity('60Gi')) >= 0",
        f"{M}.isGreaterThan(quantity('79Gi')) && {M}.isLessThan(quantity('80Gi'))",
        f"{M}.asInteger() == 81559 * 1048576",
        f"{M}.add(quantity('1Gi')).sub(quantity('1Gi')).compareTo({M}) == 0",
        "isQuantity('1Gi') && !isQuantity('1Gb') && sign(quantity('-1')) == -1",
        f'{A}.driverVersion.compareTo(semver("550.0.0")) >= 0',
        f"{A}.cudaComputeCapability.major() == 9 && {A}.driverVersion.minor() == 65 && {A}.driverVersion.patch() == 6",
        f'{A}.driverVersion == semver("580.65.06", true)',
        f"{A}.healthy && {A}.index < 4 && {A}.index == 0.0",
        f'{A}.architecture in ["Ampere", "Hopper"]',
        f'["H100", "A100"].exists(name, {A}.productName.contains(name))',
        f'{A}.productName.split(" ")[1] == "H100" && {A}.productName.substring(0, 6) == "NVIDIA"',
        f'{A}.productName.replace("NVIDIA ", "").startsWith("H100")',
        f'{A}.type + "!" == "gpu!"',
        'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:64"',
        "!device.allowMultipleAllocations",
    ],
)
def test_a_selector_selects_the_gpu_that_it_describes(expression: str) -> None:
    """Expressions as in classes and claims are true for the GPU that they describe."""
    assert selects(expression)


@pytest.mark.parametrize(
    "expression",
    [
        f'{A}.architecture == "Ampere"',
        f"{M}.compareTo(quantity('80Gi')) >= 0",
        f'{A}.type == "mig" && {A}.profile == "1g.10gb"',
        f'{A}.index == "0"',
        'has(device.attributes["gpu.nvidia.com"].profile)',
        'has(device.attributes["nic.example.com"].speed)',
        '"nic.example.com" in device.attributes',
        'device.driver == "nic.example.com" && device.attributes["nic.example.com"].speed > 100',
    ],
)
def test_a_selector_does_not_select_other_devices(expression: str) -> None:
    """The result is false; after a false driver check the attributes of other drivers are not read."""
    assert not selects(expression)


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


@pytest.mark.parametrize(
    "expression", [f'{A}.profile == "x" || true', f'true || {A}.profile == "x"', f'!({A}.profile == "x" && false)']
)
def test_logic_absorbs_an_error_where_the_other_side_decides(expression: str) -> None:
    """False decides ``&&`` and true decides ``||``, whatever the other side is."""
    assert selects(expression)


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
    """Nested macros that would run for hours end with an error."""
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
    """The error names a value that the API server would refuse."""
    unreadable = DeviceView("x", {"attributes": {"a": {"ints": [1]}}})
    with pytest.raises(CelEvaluationError, match="attribute a: unsupported attribute value of type ints"):
        compile_selector("true").evaluate(unreadable)
    with pytest.raises(ValueError, match="not a quantity"):
        DeviceView("x", {"capacity": {"a": {"value": "much"}}})


@pytest.mark.parametrize("key", ["[1]", "{1: 2}", "optional.of(1)"])
def test_keys_of_any_type_are_kept(key: str) -> None:
    """A list, map or optional is a key of its own, as in cel-go."""
    assert selects(f"{{{key}: 1}}.size() == 1")
