"""What the names of extended resources mean: nvidia.com/gpu, nvidia.com/mig-1g.10gb, nvidia.com/gpu.shared. Pure."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.kube.published import names
from dra_driver.kube.published.device_classes import Offer, class_of
from dra_driver.kubectl.migrate.gfd_labels import DeviceForm, plus, product_label, sanitised
from dra_driver.kubectl.migrate.ledger import at, list_at, mapping_at

GPU: Final = "nvidia.com/gpu"
SHARED: Final = ".shared"
MOST: Final = 32
"""Devices of a claim (resource/v1 types.go, AllocationResultsMaxSize)."""
_PROFILE: Final = re.compile(r"nvidia\.com/mig-([0-9]+g\.[0-9]+gb(?:[.-][a-z.]+)?)")
_COMPUTE: Final = re.compile(r"nvidia\.com/mig-[0-9]+c\..*")


class NoDeviceError(Exception):
    """No device of this driver is what the resource was; the message is the reason."""


class ResourceMeaning(Struct, frozen=True, kw_only=True):
    """What one unit of a resource is. ``strategy`` and ``replicas`` (units of each GPU) are of a share."""

    form: DeviceForm
    device_class: str
    strategy: str = ""
    replicas: int = 0
    several_refused: bool = False
    selector: str = ""


class KnownResources(Struct, frozen=True, kw_only=True):
    """What the configurations among the inputs say. ``of`` maps names that they share or rename to their meaning."""

    driver: str
    of: Mapping[str, ResourceMeaning] = field(default_factory=dict)

    def meaning(self, resource: str, spec: object) -> ResourceMeaning:
        """What ``resource`` was to a pod with ``spec``, whose labels may say it. Raises NoDeviceError."""
        said = said_by_labels(spec)
        base = resource.removesuffix(SHARED)
        if resource.startswith(f"{GPU[:-3]}mig-"):
            return self._partition(resource)
        known = self.of.get(resource)
        if base != GPU and known is None:
            raise NoDeviceError(f"{resource} is no resource of whole GPUs, MIG devices or shares of GPUs")
        if said is not None and said.profile and resource == GPU:
            return replace(partition_meaning(said.profile, self.driver), form=replace(said, single=True))
        if resource.endswith(SHARED) or (said is not None and said.form == "share"):
            mps = at(spec, "nodeSelector", f"{GPU}.sharing-strategy") == "mps"
            return known if known is not None and known.strategy else share_meaning("MPS" if mps else "TimeSlicing", 0)
        return known or ResourceMeaning(form=DeviceForm(), device_class=f"{names.TYPE_GPU}.nvidia.com")

    def _partition(self, resource: str) -> ResourceMeaning:
        if resource.endswith(SHARED):
            raise NoDeviceError("this driver shares whole GPUs among claims and no MIG devices; a claim for a smaller"
                                " profile is the nearest")  # fmt: skip
        if _COMPUTE.fullmatch(resource):
            raise NoDeviceError("this driver makes no compute instance that is smaller than its GPU instance")
        found = _PROFILE.fullmatch(resource)
        if found is None:
            raise NoDeviceError(f"{resource} names no MIG profile")
        return partition_meaning(plus(found[1]), self.driver)


def share_meaning(strategy: str, replicas: int, *, several_refused: bool = False) -> ResourceMeaning:
    return ResourceMeaning(
        form=DeviceForm(form="share"), device_class="gpu.nvidia.com", strategy=strategy, replicas=replicas,
        several_refused=several_refused,
    )  # fmt: skip


def partition_meaning(profile: str, driver: str) -> ResourceMeaning:
    """A MIG device of a profile, by the class that `kubectl dra classes` keeps for it."""
    return ResourceMeaning(form=DeviceForm(form="partition", profile=profile), device_class=class_name(profile, driver))


def class_name(profile: str, driver: str) -> str:
    return str(class_of(Offer(names.PROFILE, profile), driver)["metadata"]["name"])


def said_by_labels(spec: object) -> DeviceForm | None:
    """The form that a pod's product labels name by their suffix; None where they name none or several."""
    said = set()
    for key, value in _required_labels(spec):
        if key == f"{GPU}.product":
            parts = product_label(value)
            form = "partition" if parts.profile else "share" if parts.shared else "whole"
            said.add(DeviceForm(form=form, profile=parts.profile))
        elif key == f"{GPU}.sharing-strategy" and value in {"mps", "time-slicing"}:
            said.add(DeviceForm(form="share"))
    return said.pop() if len(said) == 1 else None


def _required_labels(spec: object) -> Iterable[tuple[str, str]]:
    """Pairs of key and value that a node must have one of."""
    yield from ((key, str(value)) for key, value in mapping_at(spec, "nodeSelector").items())
    required = ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    for term in list_at(spec, *required):
        for each in list_at(term, "matchExpressions"):
            if at(each, "operator") == "In":
                yield from ((str(at(each, "key")), str(value)) for value in list_at(each, "values"))


def amount(value: object) -> int:
    """The number of devices. Raises NoDeviceError for what is no whole number from 0 to 32."""
    try:
        found = Quantity.parse(str(value)).as_int()
    except ValueError as error:
        hint = "; a template must be rendered first" if "{{" in str(value) else ""
        raise NoDeviceError(f"expected a whole number of devices, got {str(value)[:40]!r}{hint}") from error
    if not 0 <= found <= MOST:
        raise NoDeviceError(f"a claim has {MOST} devices at most, got {found}")
    return found


_MPS_SERVER_MIB: Final = 64
_PERCENT, _LEAST_MIB, _MOST_MIB = 3, 256, 1024
"""What the NVIDIA driver keeps where it is not known, as ``kube/published/shares.py`` estimates it."""


class MemoryKnowledge(Struct, frozen=True, kw_only=True):
    """``said_mib``: as the user says, 0 if not. ``least_mib``: the least of the nodes that are among the inputs."""

    said_mib: int = 0
    least_mib: int = 0

    def of_pod(self, spec: object) -> int:
        """MiB that the shares of one GPU can have together; 0 where it is not known."""
        total = self.said_mib or _of_labels(mapping_at(spec, "nodeSelector")) or self.least_mib
        return shareable(total) if total else 0


def shareable(total_mib: int) -> int:
    """What a policy with MPS publishes of ``total_mib`` where the driver reports no reserve of its own."""
    reserve = min(max(total_mib * _PERCENT // 100, _LEAST_MIB), _MOST_MIB) + _MPS_SERVER_MIB
    return max(2, total_mib - min(reserve, total_mib // 2))


def _of_labels(labels: Mapping[str, object]) -> int:
    memory = str(labels.get("nvidia.com/gpu.memory", ""))
    if memory.isdigit():
        return int(memory[:9])
    name = product_label(str(labels.get("nvidia.com/gpu.product", ""))).name
    found = [model.memory_mib or 0 for model in catalog.models().values() if sanitised(model.product_name) == name]
    return min(found, default=0)
