"""Evaluate a ValidatingAdmissionPolicy with this project's CEL engine: every value is dyn, as the API server's types
are not checked, and ``authorizer``, ``params`` and ``namespaceObject`` do not compile (tests/e2e queries an API
server)."""

from collections.abc import Mapping
from typing import Any

from dra_driver.core.errors import CelEvaluationError
from tests.harness.cel import Expression, value_of

_INPUTS = ("request", "object", "oldObject", "variables")


class Policy:
    """One policy. Expressions are compiled once; a variable that fails is missing where it is used."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        spec = manifest["spec"]
        self._conditions = [_compiled(item["expression"]) for item in spec.get("matchConditions", ())]
        self._variables = {item["name"]: _compiled(item["expression"]) for item in spec.get("variables", ())}
        self._validations = [
            (_compiled(item["expression"]), item.get("message", ""), _message(item)) for item in spec["validations"]
        ]
        self.most_cost = 0
        """The most that one expression has cost so far, in units of the API server's limit of a million."""

    def matches(self, request: Mapping[str, Any]) -> bool:
        inputs = _inputs(request)
        return all(self._value(condition, inputs) is True for condition in self._conditions)

    def denial(self, request: Mapping[str, Any]) -> str | None:
        """The first of `denials`, or None. Raises CelEvaluationError, on which the policy's ``failurePolicy``
        decides."""
        return next(iter(self.denials(request)), None)

    def denials(self, request: Mapping[str, Any]) -> list[str]:
        """The messages of all validations that fail; an API server answers with the first."""
        if not self.matches(request):
            return []
        inputs = self._with_variables(_inputs(request))
        return [
            str(self._value(says, inputs)) if says is not None else message
            for condition, message, says in self._validations
            if self._value(condition, inputs) is not True
        ]

    def says(self, request: Mapping[str, Any], message: str) -> bool:
        return message in self.denials(request)

    def _with_variables(self, inputs: dict[str, Any]) -> dict[str, Any]:
        variables = inputs["variables"].data
        for name, expression in self._variables.items():
            try:
                variables[name] = self._value(expression, inputs)
            except CelEvaluationError:
                continue
        return inputs

    def _value(self, expression: Expression, inputs: Mapping[str, Any]) -> Any:
        value, cost = expression.evaluate_counting(inputs)
        self.most_cost = max(self.most_cost, cost)
        return value


def _compiled(text: str) -> Expression:
    return Expression(text, _INPUTS)


def _message(validation: Mapping[str, Any]) -> Expression | None:
    return _compiled(validation["messageExpression"]) if "messageExpression" in validation else None


def _inputs(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value_of(request.get(name) if name != "request" else request) for name in _INPUTS[:-1]} | {
        "variables": value_of({})
    }
