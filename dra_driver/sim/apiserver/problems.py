"""Refusals: the API server's errors with the words, reasons and details of the real one, and as Status objects.

In-process callers see the error classes of `dra_driver.errors`; the HTTP door turns them into metav1.Status bodies.
Texts and codes follow k8s.io/apimachinery pkg/api/errors and pkg/util/validation/field, because people and programs
match on them.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dra_driver.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    GoneError,
    InvalidObjectError,
    KubernetesApiError,
    NotFoundError,
)
from dra_driver.sim.apiserver.jsonvalue import Obj

if TYPE_CHECKING:
    from dra_driver.sim.apiserver.kind import ResourceKind


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One broken rule: ``reason`` is a cause of metav1 (FieldValueInvalid ...), ``message`` has no field path in it."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def quoted(value: object) -> str:
    """A value as the server quotes it: strings in double quotes, everything else as JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def invalid(path: str, value: object, detail: str) -> FieldProblem:
    """A value that breaks a rule."""
    return FieldProblem(path, "FieldValueInvalid", f"Invalid value: {quoted(value)}: {detail}")


def required(path: str, detail: str = "") -> FieldProblem:
    """A field that must be there and is not."""
    return FieldProblem(path, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def duplicate(path: str, value: object) -> FieldProblem:
    """A value that must be unique in its list."""
    return FieldProblem(path, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")


def unsupported(path: str, value: object, supported: Sequence[str]) -> FieldProblem:
    """A value outside an enumeration."""
    known = ", ".join(f'"{item}"' for item in supported)
    return FieldProblem(
        path, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {known}"
    )


def forbidden_field(path: str, detail: str) -> FieldProblem:
    """A field that may not be set or changed."""
    return FieldProblem(path, "FieldValueForbidden", f"Forbidden: {detail}")


def too_many(path: str, count: int, limit: int) -> FieldProblem:
    """A list that is too long."""
    return FieldProblem(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def too_long(path: str, limit: int) -> FieldProblem:
    """A text that is too long; the value itself is left out because it would fill the screen."""
    return FieldProblem(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def not_found_field(path: str, value: object, detail: str) -> FieldProblem:
    """A reference inside the object that leads nowhere."""
    return FieldProblem(path, "FieldValueNotFound", f"Not found: {quoted(value)}: {detail}")


def wrong_type(path: str, value: object, expected: str) -> FieldProblem:
    """A value of another JSON type than the schema's."""
    return FieldProblem(path, "FieldValueTypeInvalid", f"Invalid value: {quoted(value)}: must be {expected}")


def _details(kind: "ResourceKind", name: str) -> Obj:
    details: Obj = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.plural
    return details


def not_found(kind: "ResourceKind", name: str) -> NotFoundError:
    """404 for one object."""
    error = NotFoundError(f'{kind.qualified} "{name}" not found', status=404, reason="NotFound")
    error.details = _details(kind, name)
    return error


def already_exists(kind: "ResourceKind", name: str, hint: str = "") -> AlreadyExistsError:
    """409 for a taken name."""
    message = f'{kind.qualified} "{name}" already exists{hint}'
    error = AlreadyExistsError(message, status=409, reason="AlreadyExists")
    error.details = _details(kind, name)
    return error


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: "ResourceKind", name: str, why: str = MODIFIED, *, subresource: str = "") -> ConflictError:
    """409 because somebody else wrote first or a precondition does not hold."""
    collection = f"{kind.qualified}/{subresource}" if subresource else kind.qualified
    message = f'Operation cannot be fulfilled on {collection} "{name}": {why}'
    error = ConflictError(message, status=409, reason="Conflict")
    error.details = _details(kind, name) | {"kind": collection.partition(".")[0] if not kind.group else kind.plural}
    return error


def precondition_failed(kind: "ResourceKind", name: str, what: str, asked: str, found: str) -> ConflictError:
    """409 because a delete names another UID or resourceVersion; ``what`` is one of the two words."""
    happened = "deleted and then recreated" if what == "UID" else "modified"
    why = (
        f"the {what} in the precondition ({asked}) does not match the {what} in record ({found}). "
        f"The object might have been {happened}"
    )
    shown_kind = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    message = f'Operation cannot be fulfilled on {shown_kind} "{name}": {why}'
    error = ConflictError(message, status=409, reason="Conflict")
    error.details = _details(kind, name) | {"kind": kind.kind}
    return error


def invalid_object(
    kind: "ResourceKind", name: str, problems: Sequence[FieldProblem], said_kind: str = ""
) -> InvalidObjectError:
    """422 with every broken rule as a cause. ``said_kind`` is for the one rule that names the collection instead."""
    texts = [str(problem) for problem in problems]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    said = said_kind or kind.kind
    shown_kind = f"{said}.{kind.group}" if kind.group else said
    error = InvalidObjectError(f'{shown_kind} "{name}" is invalid: {listed}', status=422, reason="Invalid")
    causes = [{"reason": item.reason, "message": item.message, "field": item.field} for item in problems]
    details: Obj = {"name": name} if name else {}
    error.details = details | ({"group": kind.group} if kind.group else {}) | {"kind": said, "causes": causes}
    return error


def bad_request(message: str) -> InvalidObjectError:
    """400: the request cannot be understood."""
    return InvalidObjectError(message, status=400, reason="BadRequest")


def forbidden(kind: "ResourceKind", name: str, why: str, causes: Sequence[Obj] = ()) -> ForbiddenError:
    """403 by an admission rule."""
    error = ForbiddenError(f'{kind.qualified} "{name}" is forbidden: {why}', status=403, reason="Forbidden")
    error.details = _details(kind, name) | ({"causes": list(causes)} if causes else {})
    return error


def expired(asked: int, oldest: int) -> GoneError:
    """410: the history no longer reaches back that far."""
    return GoneError(f"too old resource version: {asked} ({oldest})", status=410, reason="Expired")


def status_error(status: int, reason: str, message: str, details: Obj | None = None) -> KubernetesApiError:
    """Any other answer (401, 404 of a path, 405, 406, 413, 415, 504)."""
    error = KubernetesApiError(message, status=status, reason=reason)
    error.details = details
    return error


def status_body(error: KubernetesApiError) -> Obj:
    """The metav1.Status object that says ``error`` to a client."""
    body: Obj = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
    }
    if error.reason:
        body["reason"] = error.reason
    if error.details is not None:
        body["details"] = error.details
    return body | {"code": error.status or 500}
