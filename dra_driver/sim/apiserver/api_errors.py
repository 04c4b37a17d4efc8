"""Errors with the real server's messages, codes and details (k8s.io/apimachinery pkg/api/errors), because people and
programs match on them. `status_body` turns one into a metav1.Status."""

from collections.abc import Sequence

from dra_driver.core import errors
from dra_driver.sim.apiserver.jsonvalue import Obj
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.validation import StatusCause


def _details(kind: ResourceKind, name: str) -> Obj:
    details: Obj = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.plural
    return details


def not_found(kind: ResourceKind, name: str) -> errors.NotFoundError:
    message = f'{kind.qualified} "{name}" not found'
    return errors.NotFoundError(message, status=404, reason="NotFound", details=_details(kind, name))


def already_exists(kind: ResourceKind, name: str) -> errors.AlreadyExistsError:
    message = f'{kind.qualified} "{name}" already exists'
    return errors.AlreadyExistsError(message, status=409, reason="AlreadyExists", details=_details(kind, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(kind: ResourceKind, name: str, why: str = MODIFIED, *, subresource: str = "") -> errors.ConflictError:
    """409: another client wrote first, or a precondition does not hold."""
    collection = f"{kind.qualified}/{subresource}" if subresource else kind.qualified
    message = f'Operation cannot be fulfilled on {collection} "{name}": {why}'
    details = _details(kind, name) | {"kind": collection.partition(".")[0] if not kind.group else kind.plural}
    return errors.ConflictError(message, status=409, reason="Conflict", details=details)


def precondition_failed(kind: ResourceKind, name: str, what: str, asked: str, found: str) -> errors.ConflictError:
    """409: a delete requires another UID or resourceVersion; ``what`` is ``UID`` or ``ResourceVersion``."""
    happened = "deleted and then recreated" if what == "UID" else "modified"
    shown_kind = f"{kind.kind}.{kind.group}" if kind.group else kind.kind
    message = (
        f'Operation cannot be fulfilled on {shown_kind} "{name}": the {what} in the precondition ({asked}) does not '
        f"match the {what} in record ({found}). The object might have been {happened}"
    )
    details = _details(kind, name) | {"kind": kind.kind}
    return errors.ConflictError(message, status=409, reason="Conflict", details=details)


def invalid_object(
    kind: ResourceKind, name: str, problems: Sequence[StatusCause], kind_name: str = ""
) -> errors.InvalidObjectError:
    """422 with every broken rule as a cause. ``kind_name`` replaces the kind's name in the message."""
    texts = [str(problem) for problem in problems]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    shown_name = kind_name or kind.kind
    shown_kind = f"{shown_name}.{kind.group}" if kind.group else shown_name
    causes = [{"reason": item.reason, "message": item.message, "field": item.field} for item in problems]
    details = _details(kind, name) | {"kind": shown_name, "causes": causes}
    message = f'{shown_kind} "{name}" is invalid: {listed}'
    return errors.InvalidObjectError(message, status=422, reason="Invalid", details=details)


def bad_request(message: str) -> errors.InvalidObjectError:
    return errors.InvalidObjectError(message, status=400, reason="BadRequest")


def forbidden(kind: ResourceKind, name: str, why: str, causes: Sequence[Obj] = ()) -> errors.ForbiddenError:
    details = _details(kind, name) | ({"causes": list(causes)} if causes else {})
    return errors.ForbiddenError(
        f'{kind.qualified} "{name}" is forbidden: {why}', status=403, reason="Forbidden", details=details
    )


def expired(asked: int, oldest: int) -> errors.GoneError:
    """410: the history does not reach back to the requested revision."""
    return errors.GoneError(f"too old resource version: {asked} ({oldest})", status=410, reason="Expired")


def status_error(status: int, reason: str, message: str, details: Obj | None = None) -> errors.KubernetesApiError:
    """Any other error (401, 404 of a path, 405, 406, 413, 415, 504)."""
    return errors.KubernetesApiError(message, status=status, reason=reason, details=details)


def status_body(error: errors.KubernetesApiError) -> Obj:
    body: Obj = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": str(error)}
    if error.reason:
        body["reason"] = error.reason
    if error.details is not None:
        body["details"] = error.details
    return body | {"code": error.status or 500}
