"""A condition on devices holds for exactly those devices whose node has the label, for every model of the catalog.

The labels of GPU Feature Discovery are written down a second time here, from NVIDIA/k8s-device-plugin internal/lm
(resource.go, mig-strategy.go, nvml.go), v0.20.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import pytest

from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.catalog import CatalogProfile, GpuModel
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION
from dra_driver.kubectl.lint.catalog_devices import KnownDevice, catalog_devices
from dra_driver.kubectl.migrate.gfd_labels import (
    OF_NODES,
    DeviceForm,
    UntranslatableLabelError,
    condition,
    is_gfd,
    product_label,
    sanitised,
)
from dra_driver.scheduler.cel import DeviceView, compile_selector


def labels(model: GpuModel, *, sharing: str = "none", renamed: bool = False) -> dict[str, str]:
    """A node whose GPUs are whole, or shared by ``time-slicing`` or ``mps``."""
    shared = sharing != "none"
    found = _versions() | _of_gpu("nvidia.com/gpu", model, suffix="-SHARED" if shared and not renamed else "")
    found["nvidia.com/gpu.sharing-strategy"] = sharing
    return found


def single(model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    """A node under the MIG strategy ``single``: labels of the partition replace labels of the GPU."""
    of_gpu = _of_gpu("nvidia.com/gpu", model, suffix="")
    of_gpu.pop("nvidia.com/gpu.memory", None)  # always that of the partition, which the catalog does not always know
    return _versions() | of_gpu | _of_partition("nvidia.com/gpu", model, profile)


def mixed(model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    """A node under the MIG strategy ``mixed``: labels of the partition in addition to labels of the GPU."""
    found = _versions() | _of_gpu("nvidia.com/gpu", model, suffix="")
    return found | _of_partition(f"nvidia.com/mig-{profile.name.replace('+', '.')}", model, profile)


def matches(found: Mapping[str, str], key: str, operator: str, values: Sequence[str]) -> bool:
    """A node selector's requirement (k8s.io/apimachinery pkg/labels, Requirement.Matches)."""
    value = found.get(key)
    if operator in {"Exists", "DoesNotExist"}:
        return (value is not None) is (operator == "Exists")
    if operator in {"In", "NotIn"}:
        return (value is not None and value in values) is (operator == "In")
    if value is None or not re.fullmatch(r"[-+]?\d+", value):
        return False
    return int(value) > int(values[0]) if operator == "Gt" else int(value) < int(values[0])


def _versions() -> dict[str, str]:
    major, minor, revision = DEFAULT_DRIVER_VERSION.split(".")
    cuda_major, cuda_minor = map(str, DEFAULT_CUDA_VERSION)
    found = {"driver-version.full": DEFAULT_DRIVER_VERSION, "runtime-version.full": f"{cuda_major}.{cuda_minor}"}
    for suffix in ("", "-version"):
        found |= {f"driver{suffix}.major": major, f"driver{suffix}.minor": minor}
        found |= {f"runtime{suffix}.major": cuda_major, f"runtime{suffix}.minor": cuda_minor}
    found |= {"driver.rev": revision, "driver-version.revision": revision}
    return {f"nvidia.com/cuda.{name}": value for name, value in found.items()}


def _of_gpu(resource: str, model: GpuModel, suffix: str) -> dict[str, str]:
    major, minor = model.cuda_compute_capability
    found = {
        f"{resource}.product": _label(model.product_name) + suffix,
        f"{resource}.family": _family(major, minor),
        f"{resource}.compute.major": str(major),
        f"{resource}.compute.minor": str(minor),
        f"{resource}.sharing-strategy": "none",
    }
    if model.memory_mib:
        found[f"{resource}.memory"] = str(model.memory_mib)
    return found


def _of_partition(resource: str, model: GpuModel, profile: CatalogProfile) -> dict[str, str]:
    numbers = {"memory": profile.memory_mib, "multiprocessors": profile.multiprocessors}
    numbers |= dict.fromkeys(("slices.gi", "slices.ci"), profile.compute_slices)
    kinds = ("copy", "decoder", "encoder", "jpeg", "ofa")
    numbers |= {f"engines.{kind}": getattr(profile.engines, kind) for kind in kinds}
    name = f"{_label(model.product_name)}-MIG-{profile.name.replace('+', '.')}"
    found = {f"{resource}.product": name, f"{resource}.sharing-strategy": "none"}
    return found | {f"{resource}.{key}": str(value) for key, value in numbers.items() if value is not None}


def _label(name: str) -> str:
    """Characters that a label cannot have go; words are joined by a hyphen."""
    kept = "".join(each for each in name if each.isascii() and (each.isalnum() or each in "-_. "))
    return "-".join(kept.split())


def _family(major: int, minor: int) -> str:
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    return {9: "hopper", 10: "blackwell", 12: "blackwell"}[major]


DRIVER = "gpu.nvidia.com"
WHOLE, SHARE = DeviceForm(), DeviceForm(form="share")


class Pair(NamedTuple):
    """A device of the catalog, and the labels of a node that has such devices."""

    device: KnownDevice
    labels: Mapping[str, str]


@cache
def whole() -> tuple[Pair, ...]:
    return tuple(Pair(device, labels(catalog.models()[device.model])) for device in _of_type("gpu", shared=False))


@cache
def shares(renamed: bool) -> tuple[Pair, ...]:
    found = []
    for device in _of_type("gpu", shared=True):
        strategy = device.wire["attributes"]["sharingStrategy"]["string"]
        sharing = {"TimeSlicing": "time-slicing", "MPS": "mps"}[strategy]
        found.append(Pair(device, labels(catalog.models()[device.model], sharing=sharing, renamed=renamed)))
    return tuple(found)


@cache
def partitions(profile: str, strategy: Callable[[GpuModel, CatalogProfile], dict[str, str]]) -> tuple[Pair, ...]:
    found = []
    for device in _of_type("mig", shared=False):
        model = catalog.models()[device.model]
        of_device = device.wire["attributes"]["profile"]["string"]
        if model.mig is not None and of_device == profile:
            named = next(each for each in model.mig.profiles if each.name == profile)
            found.append(Pair(device, strategy(model, named)))
    return tuple(found)


def _of_type(name: str, *, shared: bool) -> list[KnownDevice]:
    found = [device for device in catalog_devices() if device.model and device.shared is shared]
    return [device for device in found if device.wire["attributes"]["type"]["string"] == name]


def questions(pairs: tuple[Pair, ...]) -> Iterator[tuple[str, str, list[str]]]:
    """Every label of the nodes, with every operator, and every value that any of the nodes has."""
    keys = sorted({key for pair in pairs for key in pair.labels})
    for key in keys:
        values = sorted({pair.labels[key] for pair in pairs if key in pair.labels})
        yield key, "Exists", []
        yield key, "DoesNotExist", []
        for value in values:
            yield key, "In", [value]
            yield key, "NotIn", [value]
            if value.isdigit():
                yield from ((key, "Gt", [str(int(value) - less)]) for less in (0, 1))
                yield from ((key, "Lt", [str(int(value) + more)]) for more in (0, 1))
        yield key, "NotIn", values[:3]


def compared(pairs: tuple[Pair, ...], wanted: DeviceForm, *, refused: frozenset[str] = frozenset()) -> int:
    """Return the number of comparisons; fail on the first difference. Keys in ``refused`` must be rejected."""
    count = 0
    for key, operator, values in questions(pairs):
        text = translated(key, operator, values, wanted)
        if text is None:
            assert key in refused or operator in {"Gt", "Lt"}, (key, operator, values)
            continue
        assert key not in refused, key
        program = compile_selector(text or "true")
        for pair in pairs:
            expected = matches(pair.labels, key, operator, values)
            assert program.evaluate(pair.device.view) is expected, (key, operator, values, pair.device.label, text)
            count += 1
    return count


def translated(key: str, operator: str, values: list[str], wanted: DeviceForm) -> str | None:
    """None where the label is refused."""
    try:
        return condition(key, operator, values, wanted, DRIVER)
    except UntranslatableLabelError:
        return None


def test_whole_gpus() -> None:
    assert len(whole()) == len(catalog.models())
    assert compared(whole(), WHOLE) > 5_000


@pytest.mark.parametrize("renamed", [False, True])
def test_shared_gpus(renamed: bool) -> None:
    """The same for shared GPUs, whose published memory excludes the NVIDIA driver's reserve."""
    assert compared(shares(renamed), SHARE, refused=frozenset({"nvidia.com/gpu.memory"})) > 5_000


PROFILES = sorted({each.name for model in catalog.models().values() if model.mig for each in model.mig.profiles})


@pytest.mark.parametrize("profile", PROFILES)
def test_partitions_under_the_strategy_mixed(profile: str) -> None:
    wanted = DeviceForm(form="partition", profile=profile)
    assert compared(partitions(profile, mixed), wanted, refused=frozenset({"nvidia.com/gpu.memory"})) > 50


@pytest.mark.parametrize("profile", PROFILES)
def test_partitions_under_the_strategy_single(profile: str) -> None:
    wanted = DeviceForm(form="partition", profile=profile, single=True)
    assert compared(partitions(profile, single), wanted) > 50


def test_a_product_of_no_catalog_is_compared_as_gfd_writes_it() -> None:
    text = condition("nvidia.com/gpu.product", "In", ["Quadro-RTX-60008000"], WHOLE, DRIVER)
    device = _renamed(whole()[0].device, "Quadro  RTX 6000/8000")
    assert sanitised("Quadro  RTX 6000/8000") == "Quadro-RTX-60008000"
    assert compile_selector(text).evaluate(device)
    assert not compile_selector(text).evaluate(_renamed(whole()[0].device, "Quadro RTX 6000"))


def _renamed(device: KnownDevice, name: str) -> DeviceView:
    attributes = {**device.wire["attributes"], "productName": {"string": name}}
    return DeviceView(DRIVER, {**device.wire, "attributes": attributes})


@pytest.mark.parametrize(
    ("kibibytes", "label"), [(81559 * 1024, 81559), (81560 * 1024 - 1, 81559), (81560 * 1024, 81560)]
)
def test_memory_is_compared_in_whole_mebibytes(kibibytes: int, label: int) -> None:
    """GFD rounds down; boards of the catalog have whole ones."""
    device = whole()[0].device
    view = DeviceView(DRIVER, {**device.wire, "capacity": {"memory": {"value": f"{kibibytes}Ki"}}})
    for value in (81558, 81559, 81560, 81561):
        program = compile_selector(condition("nvidia.com/gpu.memory", "In", [str(value)], WHOLE, DRIVER))
        assert program.evaluate(view) is (value == label)


def test_the_presence_of_a_gpu_is_implied() -> None:
    assert condition("nvidia.com/gpu.present", "In", ["true"], WHOLE, DRIVER) == ""
    assert not is_gfd("kubernetes.io/hostname")
    assert not is_gfd("feature.node.kubernetes.io/pci-10de.present")


@pytest.mark.parametrize("name", sorted(OF_NODES))
def test_labels_of_nodes_are_refused_with_a_reason(name: str) -> None:
    assert is_gfd(f"nvidia.com/{name}")
    with pytest.raises(UntranslatableLabelError, match=r"\w{3}"):
        condition(f"nvidia.com/{name}", "In", ["8"], WHOLE, DRIVER)


def test_a_product_label_of_a_shared_partition_is_taken_apart() -> None:
    found = product_label("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb-SHARED")
    assert (found.name, found.profile, found.shared) == ("NVIDIA-H100-80GB-HBM3", "3g.40gb", True)
