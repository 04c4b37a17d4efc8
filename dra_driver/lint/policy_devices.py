"""Catalog devices with the attributes that GpuPolicy objects of the input add to them.

Owns what lint concludes from policies that are checked together with claims: an attribute that one of them adds is
known, has a type and a value, and is there on some GPUs only. Which GPUs a policy selects is not looked at.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from dra_driver.cel import DeviceView
from dra_driver.config.policy import KIND, policy_problems
from dra_driver.lint.catalog_devices import KnownDevice
from dra_driver.lint.manifest import Manifest
from dra_driver.lint.nodes import plain

MOST_POLICIES: Final = 8
"""Policies of which the attributes are looked at; each doubles the devices that selectors are tried on."""


def devices_under(policies: Iterable[Manifest], devices: Sequence[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Another form of each device for each policy that adds attributes. Policies that nodes refuse add nothing."""
    found = [(policy.name, added) for policy in policies if (added := _attributes(policy))]
    return tuple(form for name, added in found[:MOST_POLICIES] for form in _forms(name, added, devices))


def _attributes(policy: Manifest) -> dict[str, dict[str, Any]]:
    try:
        written = plain(policy.spot.node)
    except ValueError:
        return {}
    if policy.kind != KIND or policy_problems(written):
        return {}
    return {
        item["name"]: {kind: value for kind, value in item.items() if kind != "name"}
        for item in written["spec"].get("attributes") or ()
    }


def _forms(name: str, added: dict[str, dict[str, Any]], devices: Sequence[KnownDevice]) -> Iterator[KnownDevice]:
    for device in devices:
        if not device.bare:
            wire = {**device.wire, "attributes": {**device.wire["attributes"], **added}}
            yield replace(
                device,
                label=f"{device.label} under GpuPolicy {name}",
                wire=wire,
                view=DeviceView(device.driver, wire),
                label_gigabytes=None,
                per_gpu=0,
            )
