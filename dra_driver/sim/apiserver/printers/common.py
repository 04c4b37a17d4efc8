"""Parts of all tables: ages, names, joins, and the two columns of kinds without a printer.

Texts follow k8s.io/apimachinery pkg/util/duration and pkg/printers/internalversion/printers.go of
kubernetes/kubernetes.
"""

from datetime import datetime

from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries, mapping, parse_time
from dra_driver.sim.apiserver.kind import Column, Printer

NAME = Column("Name", format="name")
AGE = Column("Age")
NONE = "<none>"
UNKNOWN = "<unknown>"


def duration(seconds: float) -> str:
    """A duration as ``5s``, ``3m20s``, ``26h`` or ``3d4h``: at most two units."""
    total = int(seconds)
    if total < -1:
        return "<invalid>"
    if total < 120:
        return f"{max(total, 0)}s"
    minutes = total // 60
    if minutes < 10:
        return f"{minutes}m{total % 60}s" if total % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    return _hours(total // 3600, minutes % 60)


def _hours(hours: int, minutes: int) -> str:
    if hours < 8:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    if hours < 48:
        return f"{hours}h"
    days = hours // 24
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    if days < 730:
        return f"{days}d"
    years = days // 365
    return f"{years}y{days % 365}d" if years < 8 and days % 365 else f"{years}y"


def since(stamp: object, now: datetime) -> str:
    """How long ago ``stamp`` was; ``<unknown>`` without one."""
    moment = parse_time(stamp)
    return UNKNOWN if moment is None else duration((now - moment).total_seconds())


def age(obj: Obj, now: datetime) -> str:
    """The object's age."""
    return since(dig(obj, "metadata", "creationTimestamp"), now)


def name(obj: Obj) -> str:
    """metadata.name"""
    return str(dig(obj, "metadata", "name", default=""))


def containers(obj: Obj) -> list[object]:
    """Names and images of a pod template's containers: two cells."""
    found = entries(obj, "spec", "template", "spec", "containers")
    return [",".join(item.get("name", "") for item in found), ",".join(item.get("image", "") for item in found)]


def label_text(labels: Obj) -> str:
    """A label map as ``a=b,c=d``."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


def selector_text(selector: Obj) -> str:
    """A metav1.LabelSelector as one line."""
    operators = {"In": "in", "NotIn": "notin"}
    parts = [f"{key}={value}" for key, value in sorted(mapping(selector, "matchLabels").items())]
    for item in entries(selector, "matchExpressions"):
        values = ",".join(item.get("values") or ())
        operator = item.get("operator", "")
        negated = "!" if operator == "DoesNotExist" else ""
        parts.append(
            f"{item['key']} {operators[operator]} ({values})" if operator in operators else f"{negated}{item['key']}"
        )
    return ",".join(parts) or NONE


def count(obj: Obj, *path: str) -> int:
    """A number of the object, 0 if it is missing."""
    found = dig(obj, *path, default=0)
    return found if isinstance(found, int) else 0


DEFAULT_PRINTER = Printer(
    (NAME, Column("Created At", "date")),
    lambda obj, _now: [name(obj), dig(obj, "metadata", "creationTimestamp", default="")],
)
NAME_AND_AGE = Printer((NAME, AGE), lambda obj, now: [name(obj), age(obj, now)])
