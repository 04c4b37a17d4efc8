"""Device selectors: results, errors, cost in Kubernetes' units, and the attributes that an expression reads."""

import subprocess
import sys
import threading
from typing import Any

import pytest

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import MAX_LENGTH, DeviceView, compile_selector
from dra_driver.scheduler.cel.conjuncts import AttributeRefs, find_attribute_refs, split_conjuncts
from dra_driver.scheduler.cel.cost import cost_bound
from tests.harness.cel import Expression, evaluate_counting, value_of

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
    with pytest.raises(CelEvaluationError, match=what):
        selects(expression)


@pytest.mark.parametrize("operator", ["&&", "||"])
@pytest.mark.parametrize("failed_first", [True, False])
def test_logic_fails_where_no_side_decides(operator: str, failed_first: bool) -> None:
    other = "true" if operator == "&&" else "false"
    terms = [f'{A}.profile == "x"', other] if failed_first else [other, f'{A}.profile == "x"']
    program = compile_selector(f" {operator} ".join(terms))
    for evaluate in (program.evaluate, lambda view: evaluate_counting(program, view)):
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
        ("optional.of(1)" + ".optMap(x, x)" * 40 + ".hasValue()", "too large"),  # copying macros
    ],
)
def test_mistakes_are_found_by_compilation(expression: str, what: str) -> None:
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


def complaint(expression: str) -> CelSyntaxError:
    with pytest.raises(CelSyntaxError) as caught:
        compile_selector(expression)
    return caught.value


def test_the_caret_points_at_the_position() -> None:
    error = complaint('device.driver == "x" &&\n  device.drivr == "y"')
    assert (error.line, error.column) == (2, 10)
    assert error.caret == '  |   device.drivr == "y"\n  |          ^'
    assert str(error).endswith(error.caret)
    assert error.problem == "device has no field 'drivr', did you mean 'driver'?"


def test_a_syntax_error_says_what_was_expected_and_a_long_line_is_cut_around_the_caret() -> None:
    expected = "syntax error at the end of the expression: expected an operator or ']'"
    assert complaint('device.attributes["x".a').problem == expected
    error = complaint("true || " * 1000 + "flase")
    assert "flase" in error.caret
    assert max(map(len, error.caret.split("\n"))) < 200


def value(text: str, **variables: object) -> object:
    given = {name: value_of(item) for name, item in variables.items()}
    return Expression(text, list(variables)).evaluate(given)


@pytest.mark.parametrize(
    ("text", "variables", "expected"),
    [
        pytest.param("object.a + request.b", {"object": {"a": 1}, "request": {"b": 2}}, 3, id="read by their names"),
        pytest.param("object.map(k, k + '!')", {"object": {"a": 1}}, ["a!"], id="a result of any type"),
        pytest.param("a.map(x, b.map(y, x * y))", {"a": [1, 2], "b": [3]}, [[3], [6]], id="slots of loops"),
        pytest.param("[x.inner].map(x, x + 1)", {"x": {"inner": 1}}, [2], id="hidden by a variable of a loop"),
        pytest.param(
            "[has(o.a), has(o.b), o.?b.hasValue(), o.a == null]",
            {"o": {"a": None}},
            [True, False, False, True],
            id="null and absent",
        ),
    ],
)
def test_variables_have_their_values(text: str, variables: dict[str, object], expected: object) -> None:
    assert value(text, **variables) == expected


def test_a_failure_says_what_is_missing_and_the_cost_of_one_call_is_limited() -> None:
    with pytest.raises(CelEvaluationError, match="no such key: b"):
        value("object.b", object={})
    with pytest.raises(CelEvaluationError, match="cost limit"):
        value("a.all(x, a.all(y, a.all(z, x + y + z >= 0)))", a=list(range(200)))


@pytest.mark.parametrize(("number", "kind"), [(2**63, "double"), (2**63 - 1, "int"), (True, "bool"), (0.5, "double")])
def test_numbers_have_the_types_of_kubernetes(number: object, kind: str) -> None:
    assert value(f"type(o) == {kind}", o=number) is True


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("device.driver", "undeclared name 'device'"),
        ("foo{a:" * 249 + "1" + "}" * 249, "is not a message type"),
        (".".join(["a"] * 3000), "nested too deeply"),
    ],
    ids=["unknown name", "deep message", "deep selection"],
)
def test_unknown_names_and_deep_nesting_do_not_compile(text: str, what: str) -> None:
    with pytest.raises(CelSyntaxError, match=what):
        Expression(text, ["a"])


def test_evaluation_imports_neither_lark_nor_cel_python() -> None:
    code = (
        "import sys; from dra_driver.scheduler.cel import *;"
        "compile_selector('device.driver == \"x\"').evaluate(DeviceView('x', {}));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'lark', 'celpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


DEVICE = DeviceView(
    "gpu.nvidia.com",
    {"attributes": {"type": {"string": "gpu"}, "index": {"int": 7}}, "capacity": {"memory": {"value": "80Gi"}}},
)


def test_the_limit_is_a_million() -> None:
    assert compile_selector("lists.range(499994).sum() >= 0").evaluate(DEVICE)
    with pytest.raises(CelEvaluationError, match="cost limit exceeded"):
        compile_selector("lists.range(499995).sum() >= 0").evaluate(DEVICE)


@pytest.mark.parametrize(
    "expression",
    [
        f"device.driver == 'gpu.nvidia.com' && {A}.type == 'gpu'",
        f"cel.bind(a, {A}, a.type.startsWith('g') && a.?index.orValue(1) == 7)",
        "device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0",
        f"{A}.exists(name, name == 'type')",
    ],
)
def test_typical_selectors_are_not_metered(expression: str) -> None:
    program = compile_selector(expression)
    most = cost_bound(program._ir)
    assert most is not None
    assert program.cost(DEVICE) <= most < 1_000_000


def test_an_oversized_device_is_metered() -> None:
    """The cost bound assumes texts as the API allows them; on longer texts the cost is counted."""
    giant = DeviceView("x", {"attributes": {"text": {"string": "a" * 5_000_000}, "same": {"string": "a" * 5_000_000}}})
    program = compile_selector('device.attributes["x"].text == device.attributes["x"].same')
    assert program.evaluate(giant)
    with pytest.raises(CelEvaluationError, match="cost limit exceeded"):
        compile_selector('device.attributes["x"].text.matches("^(a|b)*$")').evaluate(giant)


def chained(first: str, step: str, last: str, times: int) -> str:
    """Variables v0, v1, ..., each computed from the one before (``{v}`` in ``step`` and ``last``)."""
    bindings = [f"cel.bind(v0, {first}, "]
    bindings += [f"cel.bind(v{n}, {step.format(v=f'v{n - 1}')}, " for n in range(1, times)]
    return "".join(bindings) + last.format(v=f"v{times - 1}") + ")" * times


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(chained("[1, 1]", "[{v}, {v}]", "{v} == {v}", 24), marks=pytest.mark.slow),
        chained("[1, 1]", "{v} + {v}", "{v}.size() > 0", 24),
        chained("'aaaaaaaaaa'", "{v}.replace('a', {v})", "{v}.size() > 0", 4),
        "lists.range(9223372036854775807).size() > 0",
        "'%.999999999f'.format([1.0]) == ''",
    ],
)
def test_exponential_values_end_with_an_error(expression: str) -> None:
    with pytest.raises(CelEvaluationError):
        compile_selector(expression).evaluate(DEVICE)


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("a", ["a"]),
        ("a && b.c == 1", ["a", "b.c == 1"]),
        ("(a && (b && c)) && d", ["a", "b", "c", "d"]),
        ("a && b || c", ["a && b || c"]),
        ("a && (b || c)", ["a", "b || c"]),
        ("a && b ? c : d", ["a && b ? c : d"]),
        ("f(a && b) && x['&&'] == \"(\"", ["f(a && b)", "x['&&'] == \"(\""]),
        ("(a) == (b && c)", ["(a) == (b && c)"]),
        ("!(a && b)", ["!(a && b)"]),
        ("a // && b\n && c", ["a", "c"]),
    ],
)
def test_only_top_level_conjunctions_are_split(expression: str, parts: list[str]) -> None:
    assert list(split_conjuncts(expression)) == parts


def test_deep_parentheses_and_messages_give_one_conjunct_or_a_syntax_error() -> None:
    assert len(split_conjuncts("(" * 200 + "a && b" + ")" * 200)) == 1
    assert len(split_conjuncts("foo{a:" * 249 + "1" + "}" * 249)) == 1
    with pytest.raises(CelSyntaxError):
        split_conjuncts("(" * 5000 + "a" + ")" * 5000)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ('device.driver == "x"', AttributeRefs()),
        ("device.allowMultipleAllocations", AttributeRefs()),
        ('device.attributes["d"].type == "gpu"', AttributeRefs(attributes={("d", "type")})),
        ('device.attributes["d"]["type"] == "gpu"', AttributeRefs(attributes={("d", "type")})),
        ('has(device.attributes["d"].uuid)', AttributeRefs(attributes={("d", "uuid")})),
        ('device.attributes[?"d"].?uuid.hasValue()', AttributeRefs(attributes={("d", "uuid")})),
        ('device.attributes.d.x > device.attributes["d"].y', AttributeRefs(attributes={("d", "x"), ("d", "y")})),
        ('device.capacity["d"].memory.isGreaterThan(quantity("1"))', AttributeRefs(capacity={("d", "memory")})),
    ],
)
def test_constant_names_are_found(expression: str, expected: AttributeRefs) -> None:
    assert find_attribute_refs(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        '"d" in device.attributes',
        "has(device.attributes.d)",
        'device.attributes["d"].exists(name, name == "x")',
        'cel.bind(a, device.attributes["d"], a.x == 1)',
        'device.attributes["d"]["a" + "b"] == 1',
        "device.attributes[device.driver].x == 1",
        "[device].size() == 1",
    ],
)
def test_other_uses_of_the_device_count_as_everything(expression: str) -> None:
    assert find_attribute_refs(expression).everything


def test_an_expression_that_is_nested_too_deeply_is_a_syntax_error() -> None:
    """Of 249 levels, which cel-go takes, where the caller has used up much of Python's stack."""

    def split_below(frames: int) -> tuple[str, ...]:
        return split_below(frames - 1) if frames else split_conjuncts("(" * 249 + "a" + ")" * 249)

    with pytest.raises(CelSyntaxError, match="nested too deeply"):
        split_below(sys.getrecursionlimit() - 300)
