"""GPUs that have MIG and are published whole only: their mode is off, and switching it on takes a reset (Ampere).

Profiles by memory: NVIDIA MIG User Guide, "Supported MIG Profiles" of A100 and A30. Newer GPUs switch without a reset,
so their partitions are published in either mode."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from dra_driver.core.model.gpu_node import GpuNodeStatus, HealthWord
from dra_driver.core.model.gpu_operation import OPERATION_TAINT, Operation
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
    """``device``: device name of the whole GPU. ``profiles``: profiles of its partitions in MIG mode. ``published``:
    the device is in a ResourceSlice."""

    node: str
    uuid: str
    driver: str
    device: Wire
    profiles: tuple[str, ...]
    published: bool = True

    @property
    def target(self) -> str:
        """The GPU as ``kubectl dra gpu`` takes it: an unpublished one has no name."""
        return f"{self.node}/{self.device['name'] if self.published else self.uuid}"

    @property
    def is_switching(self) -> bool:
        """Return whether the node process switches its MIG mode on, or waits until it can."""
        taints = self.device.get("taints") or ()
        return any(each.get("key") == OPERATION_TAINT and each.get("value") == Operation.MIG_ON for each in taints)

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
            profiles = _profiles_of(product)
            is_whole = attribute_shown(attributes, driver, names.TYPE) == names.TYPE_GPU
            if profiles and is_whole and not unhealthy_by(device):
                uuid = attribute_shown(attributes, driver, names.UUID)
                node = str(device.get("nodeName") or spec.get("nodeName") or "")
                gpus[driver, uuid] = WholeOnlyGpu(node, uuid, driver, device, profiles)
    return [gpu for key, gpu in gpus.items() if key not in cut]


def unpublished_gpus(reports: Mapping[str, GpuNodeStatus]) -> list[WholeOnlyGpu]:
    """The healthy GPUs of GpuNodes whose MIG mode needs a reset, and of which a policy leaves nothing to publish."""
    found: list[WholeOnlyGpu] = []
    for node, status in reports.items():
        for gpu in status.gpus:
            profiles = _profiles_of(gpu.product_name or "")
            if profiles and gpu.policy and not gpu.offered_as and gpu.health is not HealthWord.UNHEALTHY:
                texts = {names.TYPE: names.TYPE_GPU, names.PRODUCT_NAME: gpu.product_name, names.UUID: gpu.uuid}
                device = {"name": gpu.name, "attributes": {key: {"string": text} for key, text in texts.items()}}
                found.append(WholeOnlyGpu(node, gpu.uuid, status.driver_name, device, profiles, published=False))
    return found


def _profiles_of(product: str) -> tuple[str, ...]:
    """The profiles of a board that needs a reset for its MIG mode; () for others."""
    found = _PRODUCT.search(product)
    if found is None:
        return ()
    return _PROFILES[24 if found[1] else 80 if "80GB" in product or "A100X" in product else 40]


def mig_mode_off(gpus: Iterable[WholeOnlyGpu], policies: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return the state of the GPUs and the next step. ``policies``: policy in force by UUID, "" for none."""
    found = list(gpus)
    first = found[0]
    where = listed([f"{gpu.node}/{gpu.device['name']}" for gpu in found], 8)
    known = policies or {}
    why = (
        "MIG mode is being switched on, which waits until no claim and no process uses the GPU"
        if all(gpu.is_switching for gpu in found)
        else "MIG mode is off"
        if all(known.get(gpu.uuid) == "" for gpu in found)
        else "MIG mode is off, or a GpuPolicy rules out partitions"
    )
    product = attribute_shown(first.device["attributes"], first.driver, names.PRODUCT_NAME)
    is_one = len(found) == 1
    state = f"{'is' if is_one else 'are'} published whole only"
    if not any(gpu.published for gpu in found):
        state = f"publish{'es' if is_one else ''} no devices"
    return (
        f"{where} ({product}) can have partitions and {state}: {why}",
        f"switch MIG mode on: kubectl dra gpu mig-mode {first.target} on (--evict frees the GPU), or mig.mode: "
        "WhenFree in its GpuPolicy; or request whole GPUs",
    )
