"""Catalog devices with the attributes that GpuPolicy objects of the input add to them.

An attribute that a policy adds is known with its type and value, but only some GPUs have it. Which GPUs the policy
selects is not evaluated.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.config.policy import KIND, policy_problems
from dra_driver.kubectl.lint.catalog_devices import KnownDevice
from dra_driver.kubectl.lint.manifest import Manifest
from dra_driver.kubectl.lint.nodes import plain
from dra_driver.scheduler.cel import DeviceView

MAX_POLICIES: Final = 8
"""Limit of policies whose attributes are used; each one doubles the devices on which selectors are evaluated."""


def devices_under(policies: Iterable[Manifest], devices: Sequence[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Returns each device with the attributes of each policy. Policies that nodes refuse are ignored."""
    found = [(policy.name, added) for policy in policies if (added := _attributes(policy))]
    return tuple(form for name, added in found[:MAX_POLICIES] for form in _forms(name, added, devices))


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
