"""Devices of the GPU model catalog as the driver publishes them: whole, shared by a policy, and one per MIG profile.

`KnownDevice` lists values that differ between machines, so that lint does not rely on them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, Final

from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from dra_driver.config.policy import KIND, policy_problems
from dra_driver.core.model.gpu import ConfidentialCompute, Gpu, NvLinks, Snapshot
from dra_driver.core.model.terms import SharingTerms, Strategy
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION, invent
from dra_driver.kube.devices import attribute_text
from dra_driver.kube.objects.resource import Device, DeviceCounterConsumption
from dra_driver.kube.published import DIMENSIONS, DIRECT, SWITCH, Island, attributes, devices, names
from dra_driver.kubectl.lint.manifest import Manifest
from dra_driver.kubectl.lint.reading import plain
from dra_driver.scheduler.cel import DeviceView

DRIVER: Final = "gpu.nvidia.com"
OPTIONAL: Final = frozenset(
    {names.ADDRESSING_MODE, names.PCIE_ROOT, names.NUMA_NODE, names.CONFIDENTIAL_COMPUTE}
    | {names.NVLINK_ISLAND, names.NVLINK_ISLAND_SIZE, names.NVLINK_TYPE, names.CLIQUE, names.RAIL}
)
"""Attributes that some machines lack."""
VARYING: Final = OPTIONAL | {
    *(names.UUID, names.PARENT_UUID, names.DRIVER_VERSION, names.CUDA_DRIVER_VERSION),
    *(names.PLACEMENT_START, names.PCI_BUS_ID),
}
"""Attributes with other values on real machines than on catalog devices."""

# Published only by other versions and settings of NVIDIA's DRA driver.
OTHER_ATTRIBUTES: Final = frozenset(
    {"deviceID", "vendorID", "numa", "iommuFDEnabled", "gpuModuleID", "index", "minor"}
    | {f"partition{size}" for size in (1, 2, 4, 8)}
)
OTHER_CAPACITIES: Final = frozenset(
    {"addressableMemory", "shares", "memory", "multiprocessors", "copyEngines", "decoders", "encoders"}
    | {"jpegEngines", "ofaEngines"}
    | {f"memorySlice{index}" for index in range(16)}
)
_COUNTED: Final = (DeviceCounterConsumption(counter_set="catalog", counters={}),)
LARGEST_MEMORY: Final = "320Gi"
"""Upper limit for boards without memory in the catalog."""
_LABEL: Final = re.compile(r"(\d+)gb")


class KnownDevice(Struct, frozen=True, kw_only=True, dict=True):
    """A device on which expressions are evaluated. ``label`` is its name in messages.

    The values of ``varying`` attributes are invented. Devices have the names in ``unsure``, but the catalog lacks their
    values. If the memory is unknown, ``extremes`` have very little and very much memory; an expression is false only if
    it is false for both. ``label_gigabytes`` are those in the product name. ``bare`` devices lack optional attributes
    and only show which expressions then fail. Several claims can use a ``shared`` device. ``per_gpu`` counts such
    devices on a GPU of ``model``, 0 for another form of a counted device; ``nodes`` counts this shape per node.
    """

    driver: str
    label: str
    wire: Mapping[str, Any]
    varying: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    label_gigabytes: int | None = None
    extremes: tuple[DeviceView, ...] = ()
    bare: bool = False
    shared: bool = False
    model: str = ""
    per_gpu: int = 0
    nodes: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def view(self) -> DeviceView:
        """The device as expressions see it. Raises ValueError, TypeError and others for a malformed device."""
        return DeviceView(self.driver, self.wire, lists=True)  # a published list shows an enabled gate


@cache
def catalog_devices() -> tuple[KnownDevice, ...]:
    """Return all forms of all models of the catalog. Cached; immutable."""
    models = list(catalog.models().values())
    found = [device for model in models for device in _of_model(model)]
    first = next(model for model in models if model.mig is not None)
    whole, *others = _of_model(first)
    return (*found, _bare(whole), _bare(next(device for device in others if not device.shared)))


def _of_model(model: catalog.GpuModel) -> Iterator[KnownDevice]:
    gpu, island = _linked(model, invent(model, 0, "catalog"))
    confidential = ConfidentialCompute.OFF if model.cuda_compute_capability >= (9, 0) else None
    snapshot = Snapshot(
        driver_version=DEFAULT_DRIVER_VERSION,
        cuda_driver_version=DEFAULT_CUDA_VERSION,
        confidential_compute=confidential,
    )
    board = attributes.board(gpu, snapshot)
    gigabytes = _gigabytes(model.key)
    # Whole GPU next to its partitions if MIG mode can change at runtime.
    beside = bool(gpu.mig_profiles) and bool(gpu.mig_resetless)
    whole = devices.whole_gpu(gpu, board, None, beside_partitions=beside, island=island)
    if beside:
        whole = replace(whole, consumes_counters=_COUNTED)
    unsure = frozenset({names.MEMORY}) - set(whole.capacity)
    yield _known(model.product_name, whole, model=model.key, gigabytes=gigabytes, per_gpu=1, unsure=unsure)
    for strategy in Strategy:
        # The policy decides the number of shares.
        sharing = SharingTerms(strategy=strategy)
        shared = devices.whole_gpu(gpu, board, sharing, beside_partitions=False, island=island)
        label = f"{model.product_name} shared by {strategy}"
        yield _known(label, shared, model=model.key, gigabytes=None, per_gpu=0, unsure=unsure | {names.SHARES})
    for profile in gpu.mig_profiles:
        parts = devices.profile_parts(gpu, profile, board)
        partition = replace(devices.placement(gpu, parts, profile.starts[0]), consumes_counters=_COUNTED)
        unread = frozenset(each.capacity for each in DIMENSIONS if each.of(profile) is None)
        # A policy may share MIG devices.
        unsure = unread | {names.UUID, names.SHARES, names.COMPUTE_PERCENT}
        label, gigabytes = f"{profile.name} of {model.product_name}", _gigabytes(profile.name)
        yield _known(label, partition, model=model.key, gigabytes=gigabytes, per_gpu=len(profile.starts), unsure=unsure)


def _linked(model: catalog.GpuModel, gpu: Gpu) -> tuple[Gpu, Island | None]:
    """Return the GPU as a member of an island if its board has NVLinks; real machines can lack the links."""
    if model.nvlink is None:
        return gpu, None
    kind = SWITCH if model.nvlink.to_switches else DIRECT
    linked = replace(gpu, nvlinks=NvLinks(clique="00000000-0000-0000-0000-000000000000.0" if kind == SWITCH else None))
    return linked, Island(members=(gpu.uuid, gpu.uuid), kind=kind)


def _known(
    label: str, device: Device, *, model: str, gigabytes: int | None, per_gpu: int, unsure: frozenset[str]
) -> KnownDevice:
    # The NVIDIA driver and the kernel determine the addressing mode, of which the catalog has few; policies the rail.
    sent: dict[str, Any] = to_builtins(device)
    described = {names.ADDRESSING_MODE: {"string": "None"}, names.RAIL: {"int": 0}, **sent["attributes"]}
    wire = {**sent, "attributes": described, "capacity": sent.get("capacity", {})}
    memories = ("1Gi", LARGEST_MEMORY) if names.MEMORY in unsure else ()
    with_memory = ({**wire, "capacity": {**wire["capacity"], names.MEMORY: {"value": memory}}} for memory in memories)
    return KnownDevice(
        driver=DRIVER,
        label=label,
        wire=wire,
        varying=VARYING,
        unsure=unsure,
        extremes=tuple(DeviceView(DRIVER, each) for each in with_memory),
        label_gigabytes=gigabytes,
        shared=device.allow_multiple_allocations,
        model=model,
        per_gpu=per_gpu,
    )


def _bare(device: KnownDevice) -> KnownDevice:
    attributes = {name: value for name, value in device.wire["attributes"].items() if name not in OPTIONAL}
    return KnownDevice(
        driver=DRIVER,
        label=f"{device.label} on some machines",
        wire={**device.wire, "attributes": attributes},
        varying=VARYING,
        bare=True,
        unsure=device.unsure,
    )


def _gigabytes(name: str) -> int | None:
    found = _LABEL.search(name)
    return int(found[1]) if found else None


# --- Attributes of GpuPolicy objects of the input. Which GPUs a policy selects is not evaluated.

MAX_POLICIES: Final = 8
"""Maximum policies with evaluated attributes; each one doubles the evaluated devices."""


def devices_under(policies: Iterable[Manifest], devices: Sequence[KnownDevice]) -> tuple[KnownDevice, ...]:
    """Return each device with the attributes of each policy. Ignore policies that nodes reject."""
    found = [(policy.name, added) for policy in policies if (added := _attributes(policy))]
    return tuple(
        replace(
            device,
            label=f"{device.label} under GpuPolicy {name}",
            wire={**device.wire, "attributes": {**device.wire["attributes"], **added}},
            label_gigabytes=None,
            per_gpu=0,
        )
        for name, added in found[:MAX_POLICIES]
        for device in devices
        if not device.bare
    )


def _attributes(policy: Manifest) -> dict[str, dict[str, object]]:
    try:
        written = plain(policy.spot.node)
    except ValueError:
        return {}
    if policy.kind != KIND or policy_problems(written):
        return {}
    return {
        item.string("name"): {key.text: plain(value.node) for key, value in item.pairs() if key.text != "name"}
        for item in policy.spot.each("spec", "attributes")
    }


# Without these feature gates the API server drops counters and the fields of shared GPUs, and nodes do not publish such
# devices (kubernetes/kubernetes pkg/registry/resource/resourceslice/strategy.go).
_HINT = (
    "{what} are published only while feature gate {gate} is on (off by default before Kubernetes 1.36), and no device "
    "of the cluster shows that it is"
)


def gate_hint(wanted: Sequence[KnownDevice], cluster: Sequence[KnownDevice]) -> str:
    """Return why the cluster has none of the devices ``wanted`` by a class; "" if no gate can be the reason."""
    if not wanted:
        return ""
    if all(attribute_text(device.wire.get("attributes"), "", names.TYPE) == names.TYPE_MIG for device in wanted):
        seen = any(device.wire.get("consumesCounters") for device in cluster)
        return "" if seen else _HINT.format(what="MIG partitions created on demand", gate="DRAPartitionableDevices")
    if all(device.shared for device in wanted):
        seen = any(device.shared for device in cluster)
        return "" if seen else _HINT.format(what="shared GPUs", gate="DRAConsumableCapacity")
    return ""
