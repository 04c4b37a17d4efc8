"""Cost of selectors in Kubernetes' units, and limits."""

import pytest

from dra_driver.core.errors import CelEvaluationError, CelSyntaxError
from dra_driver.scheduler.cel import DeviceView, compile_selector
from dra_driver.scheduler.cel.cost import cost_bound

DEVICE = DeviceView(
    "gpu.nvidia.com",
    {"attributes": {"type": {"string": "gpu"}, "index": {"int": 7}}, "capacity": {"memory": {"value": "80Gi"}}},
)
A = 'device.attributes["gpu.nvidia.com"]'


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
        chained("[1, 1]", "[{v}, {v}]", "{v} == {v}", 24),
        chained("[1, 1]", "{v} + {v}", "{v}.size() > 0", 24),
        chained("'aaaaaaaaaa'", "{v}.replace('a', {v})", "{v}.size() > 0", 4),
        "lists.range(9223372036854775807).size() > 0",
        "'%.999999999f'.format([1.0]) == ''",
    ],
)
def test_exponential_values_end_with_an_error(expression: str) -> None:
    with pytest.raises(CelEvaluationError):
        compile_selector(expression).evaluate(DEVICE)


def test_chains_of_copying_macros_are_refused() -> None:
    """Each optMap copies its target; a long chain is refused before it fills the memory."""
    with pytest.raises(CelSyntaxError, match="too large"):
        compile_selector("optional.of(1)" + ".optMap(x, x)" * 40 + ".hasValue()")
