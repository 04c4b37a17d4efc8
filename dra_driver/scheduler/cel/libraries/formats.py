"""``format.NAME()`` and ``validate``: the named formats of Kubernetes.

Follows k8s.io/apiserver pkg/cel/library/format.go, k8s.io/apimachinery pkg/util/validation and k8s.io/kube-openapi
pkg/validation/strfmt. The number of findings is Kubernetes'; their texts differ.
"""

import re
from collections.abc import Callable
from typing import Final

from dra_driver.scheduler.cel.libraries.url import is_url
from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.text import days_of
from dra_driver.scheduler.cel.values import NONE, NamedFormat, Optional

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL_1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_UUID: Final = re.compile(r"[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\Z", re.I | re.A)
_BASE64: Final = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{4})\Z", re.A)
_DATE: Final = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})\Z", re.A)
_TIME: Final = re.compile(r"([0-9]{2}):([0-9]{2}):([0-9]{2})(.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})\Z", re.A)


def _shape(expression: "re.Pattern[str]", longest: int, what: str) -> Callable[[str], list[str]]:
    def validate(text: str) -> list[str]:
        found = [f"must be no more than {longest} bytes"] if len(text.encode("utf-8", "replace")) > longest else []
        return found if expression.match(text) else [*found, f"is not {what}"]

    return validate


def _prefix(validate: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Validates a prefix of a name, which may end with a dash."""

    def validate_prefix(text: str) -> list[str]:
        return validate(text[:-2] + "a" if len(text) > 1 and text.endswith("-") else text)

    return validate_prefix


_label = _shape(_LABEL, 63, "a DNS label (lower case letters, digits, -)")
_subdomain = _shape(_SUBDOMAIN, 253, "a DNS subdomain (labels joined by dots)")
_label_1035 = _shape(_LABEL_1035, 63, "a DNS label that starts with a letter")


def _qualified(text: str) -> list[str]:
    parts = text.split("/")
    if len(parts) > 2:
        return ["must be a name with an optional DNS subdomain prefix and '/'"]
    found: list[str] = []
    if len(parts) == 2:
        found += (
            [f"prefix part {finding}" for finding in _subdomain(parts[0])] if parts[0] else ["prefix part is empty"]
        )
    name = parts[-1]
    if not name:
        found.append("name part is empty")
    elif len(name.encode("utf-8", "replace")) > 63:
        found.append("name part must be no more than 63 bytes")
    return found if _QUALIFIED.match(name) else [*found, "name part has other characters than letters, digits, - _ ."]


def _label_value(text: str) -> list[str]:
    found = ["must be no more than 63 bytes"] if len(text.encode("utf-8", "replace")) > 63 else []
    return found if not text or _QUALIFIED.match(text) else [*found, "is not a label value"]


def _single(test: Callable[[str], bool], finding: str) -> Callable[[str], list[str]]:
    return lambda text: [] if test(text) else [finding]


def _is_date(text: str) -> bool:
    found = _DATE.match(text)
    if found is None:
        return False
    year, month, day = (int(part) for part in found.groups())
    if not 1 <= month <= 12:
        return False
    following = (year + 1, 1) if month == 12 else (year, month + 1)
    return 1 <= day <= days_of(*following, 1) - days_of(year, month, 1)


def _is_datetime(text: str) -> bool:
    date, mark, rest = text.lower().partition("t")
    if not mark or not _is_date(date):
        return False
    found = _TIME.match(rest.partition("t")[0])
    return found is not None and found[1] <= "23" and found[2] <= "59" and found[3] <= "59"


_FORMATS: Final = {
    format_name: NamedFormat(shown, regex_size, validate)
    for format_name, shown, regex_size, validate in [
        ("dns1123Label", "DNS1123Label", 30, _label),
        ("dns1123Subdomain", "DNS1123Subdomain", 60, _subdomain),
        ("dns1035Label", "DNS1035Label", 30, _label_1035),
        ("qualifiedName", "QualifiedName", 60, _qualified),
        ("dns1123LabelPrefix", "DNS1123LabelPrefix", 30, _prefix(_label)),
        ("dns1123SubdomainPrefix", "DNS1123SubdomainPrefix", 60, _prefix(_subdomain)),
        ("dns1035LabelPrefix", "DNS1035LabelPrefix", 30, _prefix(_label_1035)),
        ("labelValue", "LabelValue", 40, _label_value),
        ("uri", "URI", 1103, _single(is_url, "is not an absolute URI or path")),
        ("uuid", "uuid", 70, _single(lambda text: bool(_UUID.match(text)), "does not match the UUID format")),
        ("byte", "byte", 84, _single(lambda text: bool(_BASE64.match(text)), "is not base64")),
        ("date", "date", 71, _single(_is_date, "is not a date")),
        ("datetime", "datetime", 71, _single(_is_datetime, "is not a date and time")),
    ]
}


def named(name: str) -> Optional:
    return Optional(_FORMATS[name]) if name in _FORMATS else NONE


def validate(named_format: NamedFormat, text: str) -> Optional:
    found = named_format.validate(text)
    return Optional(found) if found else NONE


FUNCTIONS: Final[dict[str, Function]] = {
    "format.named": named,
    "validate": validate,
    **{f"format.{name}": (lambda chosen=chosen: chosen) for name, chosen in _FORMATS.items()},
}
"""Implementations by function, for all overloads of each."""
