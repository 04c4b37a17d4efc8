"""What a pod says to NVIDIA's container runtime: RuntimeClass and environment. Pure.

Devices of a claim come by CDI, which the container runtime itself applies, and which sets NVIDIA_VISIBLE_DEVICES=void
so that NVIDIA's runtime, where it is the default, adds nothing. A value of the pod would be an offer to that runtime.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from dra_driver.kubectl.migrate.input import Path, list_at
from dra_driver.kubectl.migrate.ledger import Ledger

_RUNTIME_CLASSES: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy"})
_ALL: Final = re.compile(r"all|[0-9,]+|GPU-.*")


def tidy(spec: dict[str, Any], with_devices: Collection[tuple[str, int]], base: Path, ledger: Ledger) -> None:
    """Removes what would make NVIDIA's runtime add devices; ``with_devices`` are containers by list and index."""
    name = spec.get("runtimeClassName")
    if name in _RUNTIME_CLASSES:
        del spec["runtimeClassName"]
        text = "removed: the container runtime itself applies CDI, and the RuntimeClass goes with NVIDIA's toolkit"
        ledger.changed((*base, "runtimeClassName"), text)
    for list_name, index in sorted(with_devices):
        container = spec[list_name][index]
        place = (*base, list_name, index, "env")
        kept = []
        for number, each in enumerate(list_at(container, "env")):
            if not _is_removed(each, (*place, number), ledger):
                kept.append(each)
        if "env" in container:
            container["env"] = kept
            if not kept:
                del container["env"]


def sees_all_gpus(spec: Mapping[str, Any], base: Path, ledger: Ledger) -> bool:
    """Notes containers that ask for no GPU and get all of them through NVIDIA's runtime; whether there are any."""
    found = False
    for list_name in ("containers", "initContainers"):
        for index, container in enumerate(list_at(spec, list_name)):
            for number, each in enumerate(list_at(container, "env")):
                if _name(each) == "NVIDIA_VISIBLE_DEVICES" and _ALL.fullmatch(str(each.get("value") or "")):
                    found = True
                    ledger.lost(
                        (*base, list_name, index, "env", number),
                        "the container gets GPUs from NVIDIA's runtime without being allocated any; it stays as it is."
                        " A monitor can have a claim with adminAccess instead (examples/admin-access.yaml)",
                    )
    return found


def _is_removed(variable: Any, path: Path, ledger: Ledger) -> bool:
    name = _name(variable)
    if name == "NVIDIA_VISIBLE_DEVICES":
        ledger.changed(path, "removed: the claim decides which GPUs the container sees")
        return True
    if name == "NVIDIA_DRIVER_CAPABILITIES":
        ledger.changed(path, "stays and has no effect: containers with a claim have all of the driver's libraries")
    if name.startswith("NVIDIA_REQUIRE_"):
        ledger.changed(path, "stays and has no effect: nothing compares it with the driver; a selector on"
                             " cudaDriverVersion or driverVersion would keep the pod off older drivers")  # fmt: skip
    return False


def _name(variable: Any) -> str:
    name = variable.get("name") if isinstance(variable, Mapping) else None
    return name if isinstance(name, str) else ""
