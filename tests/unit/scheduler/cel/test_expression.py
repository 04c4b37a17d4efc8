"""Expressions over named variables, and what the package imports."""

import subprocess
import sys

import pytest

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import Expression, value_of


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


def test_unknown_names_do_not_compile() -> None:
    """Among them ``device``, which selectors have alone."""
    with pytest.raises(CelSyntaxError, match="undeclared name 'device'"):
        Expression("device.driver", ["object"])


def test_a_failure_says_what_is_missing() -> None:
    with pytest.raises(CelEvaluationError, match="no such key: b"):
        value("object.b", object={})


def test_the_cost_of_one_call_is_limited() -> None:
    with pytest.raises(CelEvaluationError, match="cost limit"):
        value("a.all(x, a.all(y, a.all(z, x + y + z >= 0)))", a=list(range(200)))


@pytest.mark.parametrize(("number", "kind"), [(2**63, "double"), (2**63 - 1, "int"), (True, "bool"), (0.5, "double")])
def test_numbers_have_the_types_of_kubernetes(number: object, kind: str) -> None:
    assert value(f"type(o) == {kind}", o=number) is True


@pytest.mark.parametrize("text", ["foo{a:" * 249 + "1" + "}" * 249, ".".join(["a"] * 3000)])
def test_deep_nesting_does_not_compile(text: str) -> None:
    with pytest.raises(CelSyntaxError):
        Expression(text, ["a"])


def test_evaluation_imports_neither_lark_nor_cel_python() -> None:
    """Tests have them as oracles; a command that imported them would take longer to start than it may."""
    code = (
        "import sys; from dra_driver.scheduler.cel import *;"
        "compile_selector('device.driver == \"x\"').evaluate(DeviceView('x', {}));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'lark', 'celpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
