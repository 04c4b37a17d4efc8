"""Name formats of Kubernetes, and broken validation rules with the real API server's messages and reasons, on which
people and programs match (k8s.io/apimachinery pkg/util/validation with field, pkg/api/validate/content)."""

import json
import re
import secrets
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
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def invalid(path: str, value: object, detail: str) -> StatusCause:
    return StatusCause(path, "FieldValueInvalid", f"Invalid value: {quoted(value)}: {detail}")


def required(path: str, detail: str = "") -> StatusCause:
    return StatusCause(path, "FieldValueRequired", f"Required value: {detail}" if detail else "Required value")


def duplicate(path: str, value: object) -> StatusCause:
    return StatusCause(path, "FieldValueDuplicate", f"Duplicate value: {quoted(value)}")


def unsupported(path: str, value: object, supported: Sequence[str]) -> StatusCause:
    known = ", ".join(f'"{item}"' for item in supported)
    return StatusCause(path, "FieldValueNotSupported", f"Unsupported value: {quoted(value)}: supported values: {known}")


def forbidden_field(path: str, detail: str) -> StatusCause:
    return StatusCause(path, "FieldValueForbidden", f"Forbidden: {detail}")


def too_many(path: str, count: int, limit: int) -> StatusCause:
    return StatusCause(path, "FieldValueTooMany", f"Too many: {count}: must have at most {limit} items")


def too_long(path: str, limit: int) -> StatusCause:
    """A text that is too long; the message leaves out the value."""
    return StatusCause(path, "FieldValueTooLong", f"Too long: may not be more than {limit} bytes")


def not_found_field(path: str, value: object, detail: str) -> StatusCause:
    """A reference to a part of the object that does not exist."""
    return StatusCause(path, "FieldValueNotFound", f"Not found: {quoted(value)}: {detail}")


def wrong_type(path: str, value: object, expected: str) -> StatusCause:
    return StatusCause(path, "FieldValueTypeInvalid", f"Invalid value: {quoted(value)}: must be {expected}")


_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_PART = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_LABEL_RE = re.compile(_LABEL)
_SUBDOMAIN_RE = re.compile(_SUBDOMAIN)
_PART_RE = re.compile(_PART)
_C_IDENTIFIER_RE = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_DNS_1035 = "[a-z]([-a-z0-9]*[a-z0-9])?"
_DNS_1035_RE = re.compile(_DNS_1035)

_LABEL_TEXT = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must "
    f"start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for "
    f"validation is '{_LABEL}')"
)
_SUBDOMAIN_TEXT = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', "
    f"and must start and end with an alphanumeric character (e.g. 'example.com', regex used for "
    f"validation is '{_SUBDOMAIN}')"
)
_PART_TEXT = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character "
    f"(e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{_PART}')"
)
_LABEL_VALUE_TEXT = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', "
    f"and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or "
    f"'12345', regex used for validation is '({_PART})?')"
)
_DNS_1035_TEXT = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    f"alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', "
    f"regex used for validation is '{_DNS_1035}')"
)

# The base is cut so that base and suffix have at most 63 characters (k8s.io/apiserver pkg/storage/names/generate.go).
GENERATED_BASE_LENGTH = 58
# Without vowels, 0, 1 and 3, so that suffixes spell no words (k8s.io/apimachinery pkg/util/rand).
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def generated_name(base: str) -> str:
    """``base`` cut to 58 characters plus five random ones."""
    return base[:GENERATED_BASE_LENGTH] + "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(5))


def _format(name: str, pattern: re.Pattern[str], text: str, limit: int = 63) -> list[str]:
    problems = [] if len(name) <= limit else [f"must be no more than {limit} bytes"]
    return problems if pattern.fullmatch(name) else [*problems, text]


def dns_label(name: str) -> list[str]:
    return _format(name, _LABEL_RE, _LABEL_TEXT)


def dns_1035_label(name: str) -> list[str]:
    return _format(name, _DNS_1035_RE, _DNS_1035_TEXT)


def dns_subdomain(name: str) -> list[str]:
    return _format(name, _SUBDOMAIN_RE, _SUBDOMAIN_TEXT, 253)


def path_segment(name: str) -> list[str]:
    if name in {".", ".."}:
        return [f"may not be '{name}'"]
    return [f"may not contain '{mark}'" for mark in "/%" if mark in name]


def c_identifier(name: str) -> list[str]:
    """A C identifier of at most 32 characters (DeviceMaxIDLength of resource.k8s.io)."""
    if len(name) > 32:
        return ["must be no more than 32 bytes"]
    text = (
        "a valid C identifier must start with alphabetic character or '_', followed by a string of "
        "alphanumeric characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for "
        "validation is '[A-Za-z_][A-Za-z0-9_]*')"
    )
    return [] if _C_IDENTIFIER_RE.fullmatch(name) else [text]


def label_key(key: str) -> list[str]:
    """``[subdomain/]name``: keys of labels, annotations, taints, finalizers and conditions."""
    prefix, slash, part = key.rpartition("/")
    if "/" in prefix:
        return [
            f"a valid label key {_PART_TEXT} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
        ]
    problems = [f"prefix part {text}" for text in dns_subdomain(prefix)] if prefix else []
    if slash and not prefix:
        problems = ["prefix part must be non-empty"]
    if not part:
        return [*problems, "name part must be non-empty", f"name part {_PART_TEXT}"]
    if len(part) > 63:
        problems.append("name part must be no more than 63 bytes")
    return problems if _PART_RE.fullmatch(part) else [*problems, f"name part {_PART_TEXT}"]


def is_extended(resource: str) -> bool:
    """Return whether a resource is outside of Kubernetes' own domain (helper.IsExtendedResourceName). A class's
    implicit ``deviceclass.resource.kubernetes.io/<class>`` is inside, so it needs no limit."""
    domain, slash, _ = resource.partition("/")
    return bool(slash) and domain != "kubernetes.io" and not domain.endswith(".kubernetes.io")


def label_value(value: str) -> list[str]:
    return _format(value, _PART_RE, _LABEL_VALUE_TEXT) if value else []
