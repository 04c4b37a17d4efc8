"""Quantities, versions and named formats (k8s.io/apiserver pkg/cel/library/quantity.go, semverlib.go, format.go;
k8s.io/kube-openapi pkg/validation/strfmt).

``isInteger`` and ``asApproximateFloat`` depend on the representation of a number in k8s.io/apimachinery
pkg/api/resource: a 64-bit mantissa with a power of ten, or else a big decimal. ``validate`` returns as many findings as
Kubernetes, with other texts.
"""

import math
import re
import threading
from collections.abc import Callable
from typing import Final

from dra_driver.core.quantity import NANO, Format, Quantity, WrittenQuantity
from dra_driver.core.semver import Semver
from dra_driver.scheduler.cel.libraries.net import is_url
from dra_driver.scheduler.cel.operators import Function
from dra_driver.scheduler.cel.text import days_of
from dra_driver.scheduler.cel.values import NONE, CelQuantity, EvalError, NamedFormat, Optional, no_overload

_INT_MAX: Final = 2**63 - 1


class _Promoted(threading.local):
    """Quantities that a comparison in this evaluation turned into big decimals, as Go's Quantity.Cmp does in place."""

    def __init__(self) -> None:
        self.ids: dict[int, CelQuantity] = {}


_promoted = _Promoted()


def forget_promotions() -> None:
    """Clears the promoted quantities of this thread. Call it before an evaluation that uses ``isInteger``."""
    _promoted.ids.clear()


def parse_quantity(text: str) -> CelQuantity:
    try:
        return of_capacity(text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def of_capacity(text: str) -> CelQuantity:
    written = WrittenQuantity.parse(text)
    quantity, small = Quantity.of(written), written.small()
    if small is not None:
        mantissa, scale = small
        return CelQuantity(quantity, -mantissa if written.negative else mantissa, scale)
    capped = quantity.format is Format.BINARY_SI and abs(quantity.nano) == _INT_MAX * NANO
    mantissa, scale = (quantity.nano // NANO, 0) if capped else (quantity.nano, -9)
    return CelQuantity(quantity, mantissa, scale, big=True)


def _is_big(amount: CelQuantity) -> bool:
    return amount.big or _promoted.ids.get(id(amount)) is amount


def _as_int(amount: CelQuantity) -> int | None:
    if _is_big(amount) or amount.scale < 0:
        return None
    value = amount.mantissa * int(10**amount.scale)
    return value if -(2**63) <= value <= _INT_MAX else None


def as_integer(amount: CelQuantity) -> int:
    value = _as_int(amount)
    if value is None:
        raise EvalError("cannot convert value to integer")
    return value


def as_float(amount: CelQuantity) -> float:
    try:
        mantissa = float(amount.mantissa)
    except OverflowError:
        return math.inf if amount.mantissa > 0 else -math.inf
    return mantissa * float(f"1e{amount.scale}") if amount.scale else mantissa


def compare_amounts(one: CelQuantity, two: CelQuantity) -> int:
    if not _is_big(one) and _is_big(two):
        _promoted.ids[id(one)] = one
    return (one.quantity > two.quantity) - (one.quantity < two.quantity)


def _plus(one: CelQuantity, other: CelQuantity | int, factor: int) -> CelQuantity:
    two = (
        other
        if isinstance(other, CelQuantity)
        else CelQuantity(Quantity(other * NANO, Format.DECIMAL_EXPONENT), other, 0)
    )
    quantity = one.quantity + two.quantity if factor > 0 else one.quantity - two.quantity
    small = not _is_big(one) and not _is_big(two)
    if small and not two.mantissa:
        return CelQuantity(quantity, one.mantissa, one.scale, derived=True)
    if small and not one.mantissa:
        return CelQuantity(quantity, factor * two.mantissa, two.scale, derived=True)
    # The sum has the smaller scale; it stays a 64-bit mantissa if every intermediate result fits.
    scale = min(one.scale, two.scale)
    left, right = one.mantissa * 10 ** (one.scale - scale), factor * two.mantissa * 10 ** (two.scale - scale)
    fits = all(-(2**63) <= number <= _INT_MAX for number in (left, right, left + right))
    return CelQuantity(quantity, left + right, scale, big=not (small and fits), derived=True)


# --- versions


def parse_semver(text: str, normalize: bool = False) -> Semver:
    try:
        return Semver.parse(_normalized(text) if normalize else text)
    except ValueError as error:
        raise EvalError(str(error)) from error


def _normalized(text: str) -> str:
    """``v1.02`` as ``1.2.0``: no v, no leading zeros, three parts."""
    parts = text.removeprefix("v").split(".", 2)
    for position, part in enumerate(parts):
        if len(part) > 1:
            stripped = part.lstrip("0")
            parts[position] = stripped if stripped[:1] in set("0123456789") - {""} else "0" + stripped
    if len(parts) < 3:
        if "+" in parts[-1] or "-" in parts[-1]:
            raise ValueError("short version cannot contain PreRelease/Build meta data")
        parts += ["0"] * (3 - len(parts))
    return ".".join(parts)


def _holds(parse: Function) -> Callable[..., bool]:
    def holds(*arguments: object) -> bool:
        try:
            parse(*arguments)
        except EvalError:
            return False
        return True

    return holds


def compare_to(one: CelQuantity | Semver, two: CelQuantity | Semver) -> int:
    if isinstance(one, CelQuantity) and isinstance(two, CelQuantity):
        return compare_amounts(one, two)
    if isinstance(one, Semver) and isinstance(two, Semver):
        return one.compare(two)
    raise no_overload("compareTo")


def _wrapped(number: int) -> int:
    """An unsigned number of a version, converted to a signed one as in Go."""
    return number - 2**64 if number > _INT_MAX else number


def _authorization(*_: object) -> object:
    """Never called: no selector can have a value of the types that these functions accept, and the guards refuse."""
    raise no_overload()


_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_SUBDOMAIN: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_LABEL_1035: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?\Z")
_QUALIFIED: Final = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_LABEL_VALUE: Final = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?\Z")
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
_label_value = _shape(_LABEL_VALUE, 63, "a label value")
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
    "quantity": parse_quantity,
    "isQuantity": _holds(parse_quantity),
    "sign": lambda amount: (amount.quantity.nano > 0) - (amount.quantity.nano < 0),
    "asInteger": as_integer,
    "isInteger": lambda amount: _as_int(amount) is not None,
    "asApproximateFloat": as_float,
    "add": lambda one, two: _plus(one, two, 1),
    "sub": lambda one, two: _plus(one, two, -1),
    "compareTo": compare_to,
    "isLessThan": lambda one, two: compare_to(one, two) < 0,
    "isGreaterThan": lambda one, two: compare_to(one, two) > 0,
    "semver": parse_semver,
    "isSemver": _holds(parse_semver),
    "major": lambda version: _wrapped(version.major),
    "minor": lambda version: _wrapped(version.minor),
    "patch": lambda version: _wrapped(version.patch),
    **dict.fromkeys(
        (
            *("allowed", "check", "error", "errored", "fieldSelector", "group", "labelSelector", "name", "namespace"),
            *("path", "reason", "resource", "serviceAccount", "subresource"),
        ),
        _authorization,
    ),
    "format.named": named,
    "validate": validate,
    **{f"format.{name}": (lambda chosen=chosen: chosen) for name, chosen in _FORMATS.items()},
}
