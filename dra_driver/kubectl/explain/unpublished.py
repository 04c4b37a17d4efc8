"""Finds classes that match nothing because the API server does not keep what their devices need.

A driver publishes MIG partitions that do not exist yet only while the API server keeps counters, and GPUs for several
claims only while it keeps the fields of shared devices. Both feature gates are off by default before 1.36
(pkg/features/kube_features.go). A class of such devices is recognised by its selectors: they match a published whole
GPU once its attributes are those of a partition, or of a shared GPU.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dra_driver.kube.published import names
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.explain.causes import Cause, CauseCode
from dra_driver.kubectl.explain.failed_clauses import is_selected_by
from dra_driver.kubectl.explain.objects import Wire, spec_of
from dra_driver.kubectl.explain.requests import RequestSpec
from dra_driver.scheduler.allocation import SchedulerFeatures


class _Form(NamedTuple):
    """Devices that need a gate: what they are, and the attributes that distinguish them from a whole GPU."""

    what: str
    gate: str
    attributes: Mapping[str, Wire]
    shared: bool = False


_PARTITION: Final = _Form(
    what="MIG partitions that do not exist yet",
    gate="DRAPartitionableDevices",
    attributes={names.TYPE: {"string": names.TYPE_MIG}, names.PROFILE: {"string": "1g.10gb"}},
)
_SHARED: Final = tuple(
    _Form(
        what="GPUs for several claims at once",
        gate="DRAConsumableCapacity",
        attributes={names.SHARING_STRATEGY: {"string": strategy}},
        shared=True,
    )
    for strategy in ("TimeSlicing", "MPS")
)


def unpublished_forms(
    state: ClusterState, specs: Sequence[RequestSpec], features: SchedulerFeatures
) -> Iterator[Cause]:
    """Yields a cause for each class that matches no published device, and would if a feature gate were on."""
    forms = [] if features.partitionable_devices else [_PARTITION]
    forms += [] if features.consumable_capacity else _SHARED
    if not forms:
        return
    kinds = list(_kinds(state.slices))
    seen: set[str] = set()
    for spec in specs:
        if spec.class_name in seen or not spec.class_selectors:
            continue
        seen.add(spec.class_name)
        if any(_selects(spec, driver, device) for driver, device in kinds):
            continue
        form = next((form for form in forms if any(_would_select(spec, form, *kind) for kind in kinds)), None)
        if form is not None:
            yield Cause(
                code=CauseCode.GATE_OFF,
                message=f"DeviceClass {spec.class_name} matches no published device: {form.what} are not published "
                f"while feature gate {form.gate} is off, as it is by default before Kubernetes 1.36",
                fix=f"enable {form.gate} in the API server, scheduler, controller manager and kubelets, upgrade to "
                "Kubernetes 1.36, or ask for whole GPUs",
                object=f"class/{spec.class_name}",
                blocks=False,
            )


def _kinds(slices: Sequence[Wire]) -> Iterator[tuple[str, Wire]]:
    """Driver and device, one for each driver, type and sharing strategy."""
    seen = set()
    for item in slices:
        driver = str(spec_of(item).get("driver"))
        for device in spec_of(item).get("devices") or ():
            attributes = device.get("attributes") or {}
            kind = (driver, *(str(attributes.get(name)) for name in (names.TYPE, names.SHARING_STRATEGY)))
            if kind not in seen:
                seen.add(kind)
                yield driver, device


def _selects(spec: RequestSpec, driver: str, device: Wire) -> bool:
    return all(is_selected_by(text, driver, device) for text in spec.class_selectors)


def _would_select(spec: RequestSpec, form: _Form, driver: str, device: Wire) -> bool:
    attributes: Mapping[str, Any] = device.get("attributes") or {}
    if (attributes.get(names.TYPE) or {}).get("string") != names.TYPE_GPU:
        return False
    changed = {**device, "attributes": {**attributes, **form.attributes}}
    if form.shared:
        changed["allowMultipleAllocations"] = True
    return _selects(spec, driver, changed)
