"""The kinds of devices that a smoke test tries, and the claim for one device of a kind. Pure.

The claims work with the classes of the chart (and of NVIDIA's driver). Whole and shared GPUs are told apart by the
attribute ``sharingStrategy``: ``device.allowMultipleAllocations`` does not compile where DRAConsumableCapacity is off.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from dra_driver.kube.published.names import MEMORY, PROFILE, SHARING_STRATEGY, TYPE, TYPE_GPU, TYPE_MIG

Wire = Mapping[str, Any]
Form = Literal["gpu", "mig", "shared"]
FORMS: Final[tuple[Form, ...]] = ("gpu", "mig", "shared")

WHOLE_CLASS: Final = "gpu.nvidia.com"
MIG_CLASS: Final = "mig.nvidia.com"
REQUEST: Final = "device"
_SHARE_MEMORY: Final = "64Mi"
"""Of a share; `nvidia-smi -L` needs none, and what is asked for is taken from others meanwhile."""


class TryKind(Struct, frozen=True, order=True):
    """One kind: ``name`` is the MIG profile, or the strategy by which GPUs are shared, "" for whole GPUs."""

    form: Form
    name: str = ""

    def __str__(self) -> str:
        """``whole GPU``, ``MIG 1g.10gb``, ``share (MPS)``."""
        return {"gpu": "whole GPU", "mig": f"MIG {self.name}", "shared": f"share ({self.name})"}[self.form]


def kinds_of(slices: Iterable[Wire]) -> dict[TryKind, Wire]:
    """The kinds that these slices publish, whole GPUs first, each with one of its devices."""
    found: dict[TryKind, Wire] = {}
    for item in slices:
        for device in item["spec"].get("devices") or ():
            kind = _kind_of(device)
            if kind is not None:
                found.setdefault(kind, device)
    return dict(sorted(found.items(), key=lambda pair: (FORMS.index(pair[0].form), pair[0].name)))


def claim_spec(kind: TryKind, example: Wire, driver: str) -> dict[str, Any]:
    """The ``spec`` of a claim for one device of this kind; ``example`` is a device, whose capacities a share asks."""
    domain = f'device.attributes["{driver}"]'
    shared = f'"{SHARING_STRATEGY}" in {domain}'
    expression = {
        "gpu": f'{domain}.{TYPE} == "{TYPE_GPU}" && !({shared})',
        "mig": f'{domain}.{TYPE} == "{TYPE_MIG}" && {domain}.{PROFILE} == "{kind.name}"',
        "shared": f'{shared} && {domain}.{SHARING_STRATEGY} == "{kind.name}"',
    }[kind.form]
    request: dict[str, Any] = {
        "deviceClassName": MIG_CLASS if kind.form == "mig" else WHOLE_CLASS,
        "selectors": [{"cel": {"expression": f'device.driver == "{driver}" && {expression}'}}],
    }
    least = dict(_least(example)) if kind.form == "shared" else {}
    if least:
        request["capacity"] = {"requests": least}
    return {"devices": {"requests": [{"name": REQUEST, "exactly": request}]}}


def _least(device: Wire) -> Iterator[tuple[str, str]]:
    """The smallest amount of each capacity that a claim may ask for (KEP-5075); of memory a little more."""
    for name, capacity in (device.get("capacity") or {}).items():
        policy = capacity.get("requestPolicy") or {}
        values, span = policy.get("validValues") or (), policy.get("validRange") or {}
        if values:
            yield name, values[0]
        elif span.get("min"):
            yield name, _SHARE_MEMORY if name == MEMORY and span["min"] == "1Mi" else span["min"]


def _kind_of(device: Wire) -> TryKind | None:
    """None for devices of types that this command does not know."""
    found = _text(device, TYPE)
    if found == TYPE_MIG and _text(device, PROFILE):
        return TryKind("mig", _text(device, PROFILE))
    if found != TYPE_GPU:
        return None
    strategy = _text(device, SHARING_STRATEGY)
    return TryKind("shared", strategy) if strategy else TryKind("gpu")


def _text(device: Wire, name: str) -> str:
    return str(((device.get("attributes") or {}).get(name) or {}).get("string") or "")
