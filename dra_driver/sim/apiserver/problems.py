"""Broken validation rules of one object, with the messages and reasons of the real API server.

Texts and reasons follow k8s.io/apimachinery pkg/util/validation/field, because people and programs match on them.
"""

import json
from collections.abc import Sequence

from msgspec import Struct


class StatusCause(Struct, frozen=True):
    """One broken rule. ``reason`` is a CauseType such as FieldValueInvalid; ``message`` does not have the path."""

    field: str
    reason: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


def quoted(value: object) -> str:
    """A value as JSON, as the real server quotes it in messages."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def invalid(path: str, value: object, detail: str) -> StatusCause:
    """A value that breaks a rule."""
    return StatusCause(path, "FieldValueInvalid", f"Invalid value: {quoted(value)}: {detail}")


def required(path: str, detail: str = "") -> StatusCause:
    """A required field that is missing."""
    return StatusCause(path, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def duplicate(path: str, value: object) -> StatusCause:
    """A value that must be unique in its list."""
    return StatusCause(path, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")


def unsupported(path: str, value: object, supported: Sequence[str]) -> StatusCause:
    """A value outside an enumeration."""
    known = ", ".join(f'"{item}"' for item in supported)
    return StatusCause(path, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {known}")


def forbidden_field(path: str, detail: str) -> StatusCause:
    """A field that may not be set or changed."""
    return StatusCause(path, "FieldValueForbidden", f"Forbidden: {detail}")


def too_many(path: str, count: int, limit: int) -> StatusCause:
    """A list that is too long."""
    return StatusCause(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def too_long(path: str, limit: int) -> StatusCause:
    """A text that is too long; the message leaves out the value."""
    return StatusCause(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def not_found_field(path: str, value: object, detail: str) -> StatusCause:
    """A reference to a part of the object that does not exist."""
    return StatusCause(path, "FieldValueNotFound", f"Not found: {quoted(value)}: {detail}")


def wrong_type(path: str, value: object, expected: str) -> StatusCause:
    """A value with another JSON type than the schema has."""
    return StatusCause(path, "FieldValueTypeInvalid", f"Invalid value: {quoted(value)}: must be {expected}")
