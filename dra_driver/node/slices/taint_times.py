"""Keeps ``timeAdded`` of taints that are sent without one. Pure.

The API server sets a missing ``timeAdded`` at each update (resource/v1 defaults.go, SetDefaults_DeviceTaint), and
eviction counts ``tolerationSeconds`` from it: any other change of the slice would begin that time anew.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from dra_driver.kube.types import Device, DeviceTaint
from dra_driver.node.slices import untrusted_slice

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

Times = Mapping[tuple[str, str, str, str], str]
"""``timeAdded`` by device name, and key, value and effect of the taint."""


def known_times(slices: Iterable[Mapping[str, Any]]) -> Times:
    """The times in existing resource slices, which any client may have written."""
    return {
        (str(device.get("name")), *_identity(taint)): taint["timeAdded"]
        for item in slices
        for device in _dicts(untrusted_slice.spec(item).get("devices"))
        for taint in _dicts(device.get("taints"))
        if isinstance(taint.get("timeAdded"), str) and _TIME.fullmatch(taint["timeAdded"])
    }


def with_times(devices: Sequence[Device], times: Times) -> list[Device]:
    """The devices; those with taints that lack a known time are copies."""
    return [_with_times(device, times) for device in devices]


def _with_times(device: Device, times: Times) -> Device:
    taints = device.get("taints", [])
    found = [times.get((device["name"], *_identity(taint))) if "timeAdded" not in taint else None for taint in taints]
    if not any(found):
        return device
    kept = [_at(taint, time) for taint, time in zip(taints, found, strict=True)]
    return {**device, "taints": kept}


def _at(taint: DeviceTaint, time: str | None) -> DeviceTaint:
    return taint if time is None else {**taint, "timeAdded": time}


def _identity(taint: Mapping[str, Any]) -> tuple[str, str, str]:
    return str(taint.get("key")), str(taint.get("value") or ""), str(taint.get("effect"))


def _dicts(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
