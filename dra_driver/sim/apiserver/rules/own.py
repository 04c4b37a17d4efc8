"""Validation and defaults of this project's own kinds, as their CustomResourceDefinitions have them.

A GpuPolicy is checked by the schema that nodes use, which is generated from the same models: a test asks a real API
server for the same answers. An unknown field is refused, as `kubectl --validate=strict` has it.
"""

from dra_driver.config.policy import policy_problems
from dra_driver.config.schema import path_text
from dra_driver.sim.apiserver.jsonvalue import Obj, dig
from dra_driver.sim.apiserver.kind import Review, WriteRules
from dra_driver.sim.apiserver.problems import StatusCause, required

_REQUIRED = ("observedAt", "driverName", "summary", "gpus", "policies", "problems")


def _default_policy(obj: Obj) -> None:
    spec = obj.get("spec")
    if isinstance(spec, dict):
        spec.setdefault("priority", 0)
        spec.setdefault("availability", "Open")


def _policy(obj: Obj, review: Review) -> list[StatusCause]:
    if review.subresource == "status":
        return []
    named = {"name": dig(obj, "metadata", "name", default="")}
    written = {"apiVersion": obj["apiVersion"], "kind": obj["kind"], "metadata": named}
    if "spec" in obj:
        written["spec"] = obj["spec"]
    found = policy_problems(written)
    return [
        StatusCause(path_text(problem.path), "FieldValueInvalid", f"Invalid value: {problem.text}") for problem in found
    ]


def _node(obj: Obj, review: Review) -> list[StatusCause]:
    status = obj.get("status") or {}
    if review.subresource != "status" or not isinstance(status, dict):
        return []
    return [
        required(f"status.{name}") for name in ("driverName", "observedAt", "summary", "gpus") if name not in status
    ]


POLICY_OBJECT_RULES = WriteRules(default=_default_policy, validate=_policy)
GPU_NODE_RULES = WriteRules(validate=_node)
