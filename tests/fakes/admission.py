"""Evaluates a ValidatingAdmissionPolicy with this project's CEL engine, which knows device selectors alone.

A selector has one variable, ``device``. So the variables of a policy are put into the attributes of a device, and the
policy's own ``variables`` are inlined. What the engine shares with the API server is cel-go's language and libraries;
the API server's types of ``request`` and ``object`` are not checked here (tests/e2e/test_access.py runs on a real one).
"""

import re
from collections.abc import Mapping
from typing import Any

from dra_driver.cel import DeviceView, compile_selector
from dra_driver.cel.values import DomainMap, StringMap

_INPUT = re.compile(r"(?<![\w.\"])(request|object|oldObject)\b")
_VARIABLE = re.compile(r"\bvariables\.(\w+)")


class Policy:
    """One policy. ``denial`` is the message of the first validation that fails, or None."""

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        self._spec = manifest["spec"]
        self._variables = {item["name"]: item["expression"] for item in self._spec["variables"]}

    def matches(self, request: Mapping[str, Any]) -> bool:
        return all(self._holds(item["expression"], request) for item in self._spec["matchConditions"])

    def denial(self, request: Mapping[str, Any]) -> str | None:
        """None also where the policy does not match. Raises CelEvaluationError, which denies the request as well."""
        if not self.matches(request):
            return None
        for validation in self._spec["validations"]:
            if not self._holds(validation["expression"], request):
                return str(validation.get("message") or validation["messageExpression"])
        return None

    def says(self, request: Mapping[str, Any], message: str) -> bool:
        """Whether one of the failed validations has this message."""
        failed = [item for item in self._spec["validations"] if not self._holds(item["expression"], request)]
        return any(
            item.get("message") == message
            or ("messageExpression" in item and self._holds(f'({item["messageExpression"]}) == "{message}"', request))
            for item in failed
        )

    def _holds(self, expression: str, request: Mapping[str, Any]) -> bool:
        while _VARIABLE.search(expression):
            expression = _VARIABLE.sub(lambda match: f"({self._variables[match[1]]})", expression)
        device = DeviceView("admission", {})
        fields = {"request": request, "object": request.get("object"), "oldObject": request.get("oldObject")}
        attributes = DomainMap({"admission": _value(fields)})
        device.env = (StringMap({"driver": "admission", "attributes": attributes, "capacity": DomainMap({})}),)
        return compile_selector(_INPUT.sub(r'device.attributes["admission"].\1', expression)).evaluate(device)


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return StringMap({key: _value(item) for key, item in value.items()})
    return [_value(item) for item in value] if isinstance(value, list) else value
