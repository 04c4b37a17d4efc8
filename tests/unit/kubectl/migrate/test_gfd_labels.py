"""A condition on devices holds for exactly those devices whose node has the label, for every model of the catalog."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.simulated.spec import DEFAULT_CUDA_VERSION, DEFAULT_DRIVER_VERSION
from dra_driver.kubectl.lint.catalog_devices import KnownDevice, catalog_devices
from dra_driver.kubectl.migrate.gfd_labels import (
    OF_NODES,
    DeviceForm,
    UntranslatableLabelError,
    condition,
    is_gfd,
    plus,
    product_label,
    sanitised,
)
from dra_driver.scheduler.cel import DeviceView, compile_selector
from tests.unit.kubectl.migrate import gfd

DRIVER = "gpu.nvidia.com"
WHOLE, SHARE = DeviceForm(), DeviceForm(form="share")


@dataclass(frozen=True)
class Pair:
    """A device of the catalog, and the labels of a node that has such devices."""

    device: KnownDevice
    labels: Mapping[str, str]


@cache
def whole() -> tuple[Pair, ...]:
    return tuple(Pair(device, gfd.labels(catalog.models()[device.model])) for device in _of_type("gpu", shared=False))


@cache
def shares(renamed: bool) -> tuple[Pair, ...]:
    strategies = {"TimeSlicing": "time-slicing", "MPS": "mps"}
    return tuple(
        Pair(device, gfd.labels(catalog.models()[device.model], sharing=strategies[_text(device)], renamed=renamed))
        for device in _of_type("gpu", shared=True)
    )


@cache
def partitions(profile: str, strategy: str) -> tuple[Pair, ...]:
    found = []
    for device in _of_type("mig", shared=False):
        model = catalog.models()[device.model]
        of_device = device.wire["attributes"]["profile"]["string"]
        if model.mig is not None and of_device == profile:
            named = next(each for each in model.mig.profiles if each.name == profile)
            found.append(Pair(device, getattr(gfd, strategy)(model, named)))
    return tuple(found)


def _of_type(name: str, *, shared: bool) -> list[KnownDevice]:
    return [
        device
        for device in catalog_devices()
        if device.model and device.wire["attributes"]["type"]["string"] == name and device.shared is shared
    ]


def _text(device: KnownDevice) -> str:
    return str(device.wire["attributes"]["sharingStrategy"]["string"])


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
    """The number of comparisons; fails on the first that differs. Keys in ``refused`` have to be refused."""
    count = 0
    for key, operator, values in questions(pairs):
        text = translated(key, operator, values, wanted)
        if text is None:
            assert key in refused or operator in {"Gt", "Lt"}, (key, operator, values)
            continue
        assert key not in refused, key
        program = compile_selector(text or "true")
        for pair in pairs:
            expected = gfd.matches(pair.labels, key, operator, values)
            assert program.evaluate(pair.device.view) is expected, (key, operator, values, pair.device.label, text)
            count += 1
    return count


def translated(key: str, operator: str, values: list[str], wanted: DeviceForm) -> str | None:
    """None where the label is refused."""
    try:
        return condition(key, operator, values, wanted, DRIVER)
    except UntranslatableLabelError:
        return None


def test_the_versions_are_those_of_catalog_devices() -> None:
    """Otherwise the labels of versions would be compared with other versions."""
    assert gfd.DRIVER == DEFAULT_DRIVER_VERSION
    assert tuple(int(part) for part in gfd.CUDA.split(".")) == DEFAULT_CUDA_VERSION


def test_whole_gpus() -> None:
    """Every label of GFD on nodes with whole GPUs, every operator, every model."""
    assert len(whole()) == len(catalog.models())
    assert compared(whole(), WHOLE) > 5_000


@pytest.mark.parametrize("renamed", [False, True])
def test_shared_gpus(renamed: bool) -> None:
    """The same for shared GPUs, whose memory is published without what the NVIDIA driver keeps."""
    assert compared(shares(renamed), SHARE, refused=frozenset({"nvidia.com/gpu.memory"})) > 5_000


PROFILES = sorted({each.name for model in catalog.models().values() if model.mig for each in model.mig.profiles})


@pytest.mark.parametrize("profile", PROFILES)
def test_partitions_under_the_strategy_mixed(profile: str) -> None:
    """Labels of the partition and of its GPU."""
    wanted = DeviceForm(form="partition", profile=profile)
    assert compared(partitions(profile, "mixed"), wanted, refused=frozenset({"nvidia.com/gpu.memory"})) > 50


@pytest.mark.parametrize("profile", PROFILES)
def test_partitions_under_the_strategy_single(profile: str) -> None:
    """Labels of the GPU are those of the partition, where both exist."""
    wanted = DeviceForm(form="partition", profile=profile, single=True)
    assert compared(partitions(profile, "single"), wanted) > 50


def test_a_product_of_no_catalog_is_compared_as_gfd_writes_it() -> None:
    """Characters that a label cannot have, and several spaces."""
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


@pytest.mark.parametrize(
    ("value", "name", "profile", "shared"),
    [
        ("NVIDIA-A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB", "", False),
        ("Tesla-T4-SHARED", "Tesla-T4", "", True),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "NVIDIA-A100-SXM4-40GB", "1g.5gb", False),
        ("NVIDIA-A100-SXM4-40GB-MIG-1g.5gb.me", "NVIDIA-A100-SXM4-40GB", "1g.5gb+me", False),
        ("NVIDIA-H100-80GB-HBM3-MIG-3g.40gb-SHARED", "NVIDIA-H100-80GB-HBM3", "3g.40gb", True),
    ],
)
def test_product_labels_are_taken_apart(value: str, name: str, profile: str, shared: bool) -> None:
    """Suffixes say which form the devices have."""
    found = product_label(value)
    assert (found.name, found.profile, found.shared) == (name, profile, shared)


def test_profiles_get_their_plus_back() -> None:
    """A resource or label name has a dot in place of the plus."""
    assert [plus(each) for each in ("1g.10gb", "1g.10gb.me", "1g.24gb.me.all", "4g.96gb.gfx")] == [
        "1g.10gb", "1g.10gb+me", "1g.24gb+me.all", "4g.96gb+gfx"
    ]  # fmt: skip


@pytest.mark.parametrize("name", sorted(OF_NODES))
def test_labels_of_nodes_are_refused_with_a_reason(name: str) -> None:
    """They would have to be guessed."""
    key = f"nvidia.com/{name}"
    assert is_gfd(key)
    with pytest.raises(UntranslatableLabelError, match=r"\w{3}"):
        condition(key, "In", ["8"], WHOLE, DRIVER)


def test_the_presence_of_a_gpu_is_implied() -> None:
    """Every claim for a GPU brings the pod to a node with one."""
    assert condition("nvidia.com/gpu.present", "In", ["true"], WHOLE, DRIVER) == ""
    assert not is_gfd("kubernetes.io/hostname")
    assert not is_gfd("feature.node.kubernetes.io/pci-10de.present")
