"""GPUs that have MIG and are published whole only: their mode is off, and switching it on takes a reset (Ampere).

Profiles by memory: NVIDIA MIG User Guide, "Supported MIG Profiles" of A100 and A30. Newer GPUs switch without a reset,
so their partitions are published in either mode."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from dra_driver.core.text import listed
from dra_driver.kube.devices import Wire, attribute_shown, newest_slices, unhealthy_by
from dra_driver.kube.published import names

_PRODUCT: Final = re.compile(r"\b(?:A100|A800|(A30))X?\b")
_PROFILES: Final = {
    24: ("1g.6gb", "1g.6gb+me", "2g.12gb", "4g.24gb"),
    40: ("1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    80: ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
}


class WholeOnlyGpu(NamedTuple):
    """``device``: device name of the whole GPU. ``profiles``: profiles of its partitions in MIG mode."""

    node: str
    uuid: str
    driver: str
    device: Wire
    profiles: tuple[str, ...]

    def as_partitions(self) -> Iterator[Wire]:
        """The GPU's device with the attributes of each of its partitions, for selectors."""
        attributes = self.device["attributes"]
        for profile in self.profiles:
            changed = {names.TYPE: {"string": names.TYPE_MIG}, names.PROFILE: {"string": profile}}
            yield {**self.device, "attributes": {**attributes, **changed}}


def whole_only_gpus(slices: Iterable[Wire]) -> list[WholeOnlyGpu]:
    """The healthy GPUs whose MIG mode needs a reset, and of which no partition is published."""
    gpus: dict[tuple[str, str], WholeOnlyGpu] = {}
    cut: set[tuple[str, str]] = set()
    for item in newest_slices(slices):
        spec = item["spec"]
        driver = str(spec.get("driver"))
        devices = spec.get("devices") or ()
        if devices and all(devices[at].get("consumesCounters") for at in (0, -1)):
            continue  # counters keep whole GPUs and their partitions apart; reading thousands of them takes seconds
        for device in devices:
            attributes = device.get("attributes")
            if parent := attribute_shown(attributes, driver, names.PARENT_UUID):
                cut.add((driver, parent))
            product = attribute_shown(attributes, driver, names.PRODUCT_NAME)
            found = _PRODUCT.search(product)
            is_whole = attribute_shown(attributes, driver, names.TYPE) == names.TYPE_GPU
            if found and is_whole and not unhealthy_by(device):
                uuid = attribute_shown(attributes, driver, names.UUID)
                memory = 24 if found[1] else 80 if "80GB" in product or "A100X" in product else 40
                node = str(device.get("nodeName") or spec.get("nodeName") or "")
                gpus[driver, uuid] = WholeOnlyGpu(node, uuid, driver, device, _PROFILES[memory])
    return [gpu for key, gpu in gpus.items() if key not in cut]


def mig_mode_off(gpus: Iterable[WholeOnlyGpu], policies: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Yield the state of the GPUs and the next step. ``policies``: policy in force by UUID, "" for none."""
    found = list(gpus)
    first = found[0]
    where = listed([f"{gpu.node}/{gpu.device['name']}" for gpu in found], 8)
    known = policies or {}
    why = (
        "MIG mode is off"
        if all(known.get(gpu.uuid) == "" for gpu in found)
        else "MIG mode is off, or a GpuPolicy rules out partitions"
    )
    product = attribute_shown(first.device["attributes"], first.driver, names.PRODUCT_NAME)
    verb = "is" if len(found) == 1 else "are"
    return (
        f"{where} ({product}) can have partitions and {verb} published whole only: {why}",
        f"switch MIG mode on: kubectl dra drain {first.node} --detach, then on the node nvidia-smi -i {first.uuid} "
        f"-mig 1 (it resets the GPU), then kubectl dra undrain {first.node}; or request whole GPUs",
    )
