"""Published devices, their counters, and their spread over slices, which the API server accepts."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.mig import MigProfile
from dra_driver.core.model.terms import GpuTerms, Interval, SharingTerms, Strategy, Taint
from dra_driver.core.quantity import Quantity
from dra_driver.hardware.gpu import catalog
from dra_driver.kube.objects.resource import DeviceAttribute, DeviceCapacity
from dra_driver.kube.shapes import is_subdomain
from dra_driver.node.slices import counters
from dra_driver.node.slices.build import Built, GpuGroup, build_devices, pool_name
from dra_driver.node.slices.diff import PoolIdentity, compute_writes
from dra_driver.node.slices.gates import ApiServerFeatures
from dra_driver.node.slices.layout import generate_name, index_of, split
from dra_driver.sim.apiserver.kind import Review
from dra_driver.sim.apiserver.rules.slices import SLICE_RULES
from tests.fakes.dra_objects import wire
from tests.fakes.stand_in import present
from tests.unit.node.slices.gpus import (
    A100,
    ALL,
    H100,
    NONE,
    RTX,
    gpu,
    h100s,
    instance,
    mig_gpu,
    node_of,
    snapshot,
    split_devices,
)


def test_what_the_hardware_does_not_report_is_absent() -> None:
    """A guess would match a selector."""
    bare = gpu(
        product_name=None, brand=None, architecture="", cuda_compute_capability=None, memory_bytes=None,
        pci_bus_id=None, pcie_root=None, numa_node=None, addressing_mode=None,
    )  # fmt: skip
    device = build_devices(snapshot(bare)).devices[0]
    assert sorted(device.attributes) == ["cudaDriverVersion", "driverVersion", "type", "uuid"]
    assert not device.capacity


def test_numa_node_zero_is_published_and_a_negative_one_is_not() -> None:
    """Zero is a node; -1 is how sysfs reports that there is none."""
    first, second = build_devices(snapshot(gpu(0, numa_node=0), gpu(1, numa_node=-1))).devices
    assert first.attributes["resource.kubernetes.io/numaNode"] == DeviceAttribute(int_=0)
    assert "resource.kubernetes.io/numaNode" not in second.attributes


def test_a_long_product_name_is_cut_between_characters_and_a_long_identifier_is_left_out() -> None:
    """64 bytes are the limit; half a UUID would name another GPU."""
    device = build_devices(snapshot(gpu(product_name="é" * 40, pcie_root="p" * 65))).devices[0]
    assert device.attributes["productName"].string == "é" * 32
    assert "resource.kubernetes.io/pcieRoot" not in device.attributes


@given(st.text(max_size=200), st.text(max_size=200))
def test_no_text_breaks_the_limits(name: str, version: str) -> None:
    """One value over the limit and the API server refuses all GPUs of the node."""
    shot = replace(snapshot(gpu(product_name=name, addressing_mode=name, brand=name)), driver_version=version)
    for attribute in build_devices(shot).devices[0].attributes.values():
        text = attribute.string or attribute.version or "1"
        assert 0 < len(text.encode()) <= 64


def test_terms_apply_to_their_gpu_only() -> None:
    shot = h100s(2)
    terms = {shot.gpus[0].uuid: GpuTerms(policy="hidden", offered=False)}
    assert {device.name.split("-mig")[0] for device in build_devices(shot, terms).devices} == {"gpu-1"}
    assert build_devices(shot, terms, ALL).left_out == ()


def test_a_gpu_in_mig_mode_and_a_double_minor_are_left_out_with_a_reason() -> None:
    shot = snapshot(gpu(0), gpu(1, mig_enabled=True), gpu(2), gpu(2, uuid="GPU-other"))
    assert [device.name for device in build_devices(shot).devices] == ["gpu-0", "gpu-2"]
    reasons = {gpu.label: gpu.reason for gpu in build_devices(shot).left_out}
    assert "MIG mode" in reasons["GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cd001"]
    assert "same minor number" in reasons["GPU-other"]


@pytest.mark.parametrize(
    ("node", "driver", "message"),
    [
        ("node_a", "gpu.nvidia.com", "node name 'node_a'"),
        ("", "gpu.nvidia.com", "node name ''"),
        ("a", "GPU.nvidia.com", "driver name"),
        ("a", "d" * 64, "at most 63"),
        ("n" * 245, "gpu.nvidia.com", "at most 253"),
    ],
)
def test_invalid_pool_names_are_refused_at_start(node: str, driver: str, message: str) -> None:
    """Otherwise the API server would refuse every write."""
    with pytest.raises(ConfigurationError, match=message):
        pool_name(node, driver)


IDENTITY = PoolIdentity(driver="gpu.nvidia.com", node="node-a", node_uid="u1", pool="node-a/gpu.nvidia.com")
EVERYTHING = GpuTerms(
    policy="p",
    sharing=SharingTerms(strategy=Strategy.TIME_SLICING, interval=Interval.SHORT, max_shares=4),
    taints=(Taint(key="example.com/reserved", value="ml", effect="NoSchedule"), Taint(key="k", effect="NoExecute")),
    attributes={f"extra{number}": number for number in range(40)},
)


def build(gpu: Gpu, terms: GpuTerms | None = None, features: ApiServerFeatures = ALL) -> Built:
    return build_devices(snapshot(gpu), {gpu.uuid: terms} if terms is not None else {}, features)


def problems(built: Built) -> list[Any]:
    """The embedded API server's problems with the slices."""
    found: list[Any] = []
    for body in compute_writes(split(built), [], IDENTITY).creates:
        found += SLICE_RULES.validate(wire(replace(body, metadata={"name": "x"})), Review())
    return found


@pytest.mark.parametrize("terms", [None, EVERYTHING, replace(EVERYTHING, sharing=None)], ids=["plain", "all", "taints"])
@pytest.mark.parametrize("key", [key for key, model in catalog.models().items() if model.mig is not None])
def test_every_board_is_valid_in_every_state(key: str, terms: GpuTerms | None) -> None:
    gpu = mig_gpu(key)
    foreign = tuple(instance(gpu, profile.profile_id, 0) for profile in gpu.mig_profiles)
    on = replace(gpu, mig_enabled=True)
    for state in (gpu, on, *(replace(on, mig_instances=(one,)) for one in foreign)):
        for features in (ALL, NONE, replace(ALL, counters=False)):
            assert problems(build(state, terms, features)) == []


def test_what_no_profile_reports_is_no_capacity_of_the_whole_gpu() -> None:
    """A guess would match a selector."""
    gpu = mig_gpu(H100)
    silent = tuple(replace(profile, decoders=None) for profile in gpu.mig_profiles)
    found = build(replace(gpu, mig_profiles=silent, memory_bytes=None)).devices[0].capacity
    assert not {"decoders", "memory"} & set(found)
    assert found["multiprocessors"] == DeviceCapacity(value="132")


def test_memory_slices_are_left_out_beyond_the_limit_of_entries() -> None:
    """16 attributes, 7 capacities and 12 memory slices are over 32; the placement has the same facts."""
    gpu = mig_gpu(RTX, mig_enabled=True, addressing_mode="HMM")
    widest = build(replace(gpu, mig_instances=(instance(gpu, 0, 0),))).devices[0]
    assert not any(name.startswith("memorySlice") for name in widest.capacity)
    assert widest.attributes["placementSize"] == DeviceAttribute(int_=12)


def test_an_instance_of_an_unlisted_profile_has_its_own_numbers() -> None:
    gpu = mig_gpu(A100, mig_enabled=True)
    listed, found = gpu.profile(19), instance(gpu, 19, 2)
    assert listed is not None
    usual = build(replace(gpu, mig_instances=(found,))).devices[0]
    guest = replace(gpu, mig_profiles=(), mig_instances=(replace(found, profile=replace(listed, starts=())),))
    (device,) = build(guest).devices
    assert device.name == "gpu-0-mig-1g5gb-19-2"
    assert device.capacity == usual.capacity


def test_an_instance_of_unknown_size_is_left_out_with_a_reason() -> None:
    """Without capacities it would fail the allocation of every claim whose selector compares one."""
    gpu = mig_gpu(A100, mig_enabled=True)
    built = build(replace(gpu, mig_profiles=(), mig_instances=(instance(gpu, 19, 2),)))
    assert built.devices == []
    assert (
        "1g.5gb at memory slice 2 of gpu-0 is not published: the NVIDIA driver reports its size neither"
        in built.left_out[-1].reason
    )


def test_added_attributes_beyond_the_limit_are_reported() -> None:
    """A device has at most 32 attributes and capacities; one more would make the whole slice invalid."""
    built = build(mig_gpu(H100), EVERYTHING)
    assert {len(one.attributes) + len(one.capacity) for one in built.devices} == {32}
    (reason,) = [gpu.reason for gpu in built.left_out]
    assert "attributes that policy p adds to gpu-0 are left out" in reason


def test_rail_has_room_before_the_attributes_of_a_policy() -> None:
    terms = replace(EVERYTHING, attributes={**EVERYTHING.attributes, "rail": 3})
    assert {wire(one.attributes.get("rail")).get("int") for one in build(mig_gpu(H100), terms).devices} == {3}


@pytest.mark.parametrize(
    "name",
    ["uuid", "type", "gpu.nvidia.com/uuid", "resource.kubernetes.io/pcieRoot", "a-b", "x" * 33, "", "B_/x", "a/"],
)
def test_an_added_attribute_has_a_valid_name_and_replaces_none(name: str) -> None:
    """A policy that sets uuid would break every claim that selects a GPU by UUID."""
    gpu = mig_gpu(H100)
    plain = build(gpu).devices
    built = build(gpu, GpuTerms(policy="p", attributes={name: "x"}))
    assert built.devices == plain
    assert repr(name) in built.left_out[0].reason


def test_added_values_keep_their_types() -> None:
    added: dict[str, str | int | bool] = {"team": "ml", "rack": 7, "spare": True, "example.com/zone": "a"}
    found = build(mig_gpu(A100), GpuTerms(attributes=added)).devices[0].attributes
    assert wire([found[name] for name in added]) == [{"string": "ml"}, {"int": 7}, {"bool": True}, {"string": "a"}]


@given(
    st.dictionaries(
        st.text(max_size=40) | st.from_regex(r"[a-z]{1,3}", fullmatch=True),
        st.text(max_size=80) | st.integers(-(2**70), 2**70) | st.booleans(),
        max_size=50,
    ),
    st.lists(st.tuples(st.text(max_size=70), st.text(max_size=70)), max_size=18),
)
def test_no_policy_makes_a_slice_invalid(extra: dict[str, Any], taints: list[tuple[str, str]]) -> None:
    """The other GPUs of the node would be lost with it."""
    terms = GpuTerms(
        policy="p",
        attributes=extra,
        taints=tuple(Taint(key=key, value=value, effect="NoSchedule") for key, value in taints),
    )
    assert problems(build(mig_gpu(A100), terms)) == []


def test_devices_of_a_gpu_share_common_parts() -> None:
    """Separate copies for the 208 devices of a node would be megabytes."""
    devices = build(mig_gpu(H100)).devices
    assert devices[1].attributes["productName"] is devices[-1].attributes["productName"]
    same_profile = [one for one in devices if one.name.startswith("gpu-0-mig-1g10gb-19-")]
    assert len({id(one.capacity) for one in same_profile}) == 1


def devices(count: int) -> list[Any]:
    return [{"name": f"gpu-{number}"} for number in range(count)]


def group(number: int, size: int, *, max_devices: int = 0, counted: bool = True) -> GpuGroup:
    named: Any = tuple({"name": f"gpu-{number}-{index}"} for index in range(size))
    counter_set: Any = {"name": f"gpu-{number}-counter-set", "counters": {"memory": {"value": "1"}}}
    return GpuGroup(devices=named, counter_set=counter_set if counted else None, max_devices=max_devices or size)


@pytest.mark.parametrize(("count", "sizes"), [(0, [0]), (1, [1]), (64, [64]), (65, [64, 1]), (200, [64, 64, 64, 8])])
def test_a_slice_has_at_most_64_devices_and_there_is_at_least_one(count: int, sizes: list[int]) -> None:
    """A 65th device would make the slice invalid with the first taint; an empty pool must be known to be empty."""
    slices = split_devices(devices(count))
    assert [len(one.devices) for one in slices] == sizes
    assert [device for one in slices for device in one.devices] == devices(count)
    assert [one.index for one in slices] == list(range(len(sizes)))


def test_counter_sets_come_first_eight_to_a_slice_and_never_beside_devices() -> None:
    """A ninth set, or devices in the same slice, would be refused; and devices refer to the sets."""
    slices = split(build_devices(h100s(16), features=ALL))
    assert [(len(one.counter_sets), len(one.devices)) for one in slices] == [(8, 0), (8, 0), *[(0, 52)] * 8]
    assert [one.index for one in slices] == list(range(10))


def test_in_1_34_a_gpu_that_may_be_cut_keeps_its_slice_while_it_is_not() -> None:
    groups = (group(0, 26), group(1, 0, max_devices=26, counted=False), group(2, 1, counted=False))
    before = split(Built(groups=groups), counters_beside_devices=True)
    assert [(len(one.counter_sets), len(one.devices)) for one in before] == [(1, 26), (0, 0), (0, 1)]
    whole = split(build_devices(node_of(2), features=ALL), counters_beside_devices=True)
    assert [(len(one.counter_sets), len(one.devices)) for one in whole] == [(0, 2)]


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(1, 64)), max_size=20))
def test_a_gpu_is_never_split_and_no_slice_is_too_long(sizes: list[tuple[int, int]]) -> None:
    """Half of a GPU in a slice that is not written yet would be half an offer."""
    groups = tuple(
        group(number, min(size, max_devices), max_devices=max_devices)
        for number, (size, max_devices) in enumerate(sizes)
    )
    slices = split(Built(groups=groups))
    assert all(len(one.devices) <= 64 and len(one.counter_sets) <= 8 for one in slices)
    assert all(not (one.devices and one.counter_sets) for one in slices)
    assert [device for one in slices for device in one.devices] == [d for one in groups for d in one.devices]
    for one in groups:
        assert sum(any(device in part.devices for device in one.devices) for part in slices) <= 1


def test_a_gpu_that_changes_leaves_the_other_slices_alone() -> None:
    before = split(Built(groups=(group(0, 26), group(1, 26), group(2, 26), group(3, 26))))
    after = split(Built(groups=(group(0, 26), group(1, 0, max_devices=26), group(2, 26), group(3, 26, max_devices=26))))
    changed = [one.index for one, other in zip(before, after, strict=True) if one.devices != other.devices]
    assert changed == [1]


@given(
    st.integers(0, 0xFFFFE),  # its successor still has five digits: 64 million devices on one node
    st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?){0,3}", fullmatch=True),
)
def test_names_are_valid_ordered_and_carry_their_index(index: int, node: str) -> None:
    """Name order is allocation order, and slices are matched by the index; node names may have 253 characters."""
    name = generate_name(index, "gpu.nvidia.com", node) + "x7k2p"
    assert is_subdomain(name)
    assert len(name) <= 63
    assert index_of(name) == index
    assert generate_name(index, "d", node) < generate_name(index + 1, "d", node)


@pytest.mark.parametrize("name", ["node-a-gpu.nvidia.com-x7k2p", "0000-a", "", "00000", "g0000-a"])
def test_other_names_have_no_index(name: str) -> None:
    """Slices of drivers for Kubernetes 1.35 and before, and of people, do not match."""
    assert index_of(name) is None


# The RTX PRO 6000 has so many kinds of partitions that its layouts are not to be counted; its numbers are as regular.
BOARDS = [key for key, model in catalog.models().items() if model.mig is not None and key != RTX]
Layout = tuple[tuple[MigProfile, int], ...]


def layouts(gpu: Gpu, start: int = 0, *, media: bool = True) -> Iterator[Layout]:
    """Every set of placements side by side. The engines of the ``+me`` profiles exist once (``media``)."""
    if start >= gpu.memory_slices:
        yield ()
        return
    yield from layouts(gpu, start + 1, media=media)
    for profile in gpu.mig_profiles:
        takes = profile.name.endswith("+me")
        if start in profile.starts and (media or not takes):
            for rest in layouts(gpu, start + profile.memory_slices, media=media and not takes):
                yield ((profile, start), *rest)


@pytest.mark.parametrize("key", BOARDS)
def test_counters_are_enough_for_every_layout_of_the_hardware(key: str) -> None:
    """A counter that is too small would exclude a layout that the hardware allows.

    Engines that exist once are the exception.
    """
    gpu = mig_gpu(key)
    counter_set = counters.wire_set(gpu, counters.available(gpu, ()))
    left = {name: amount(counter.value) for name, counter in counter_set.counters.items()}
    uses = {profile: counters.consumed_by(profile, counter_set) for profile in gpu.mig_profiles}
    numbers = {
        profile: {name: amount(counter.value) for name, counter in taken.items()} for profile, taken in uses.items()
    }
    checked = 0
    for layout in layouts(gpu):
        checked += 1
        for name, most in left.items():
            assert sum(numbers[profile].get(name, 0) for profile, _ in layout) <= most, (key, layout, name)
    assert checked > 20


def amount(value: object) -> int:
    return Quantity.parse(str(value)).as_int()


def test_an_instance_of_an_unknown_profile_takes_its_memory_slices() -> None:
    gpu = mig_gpu(A100)
    strange = replace(instance(gpu, 9, 4), profile_id=99)
    left = counters.available(gpu, (strange, *[instance(gpu, 0, 0)] * 3))
    assert min(left.values()) == 0
    assert counters.available(gpu, (strange,))["multiprocessors"] == 98
    described = replace(strange, profile=gpu.profile(9))
    assert counters.available(gpu, (described,))["multiprocessors"] == 98 - 42


def test_a_partition_consumes_counters_of_the_set_only() -> None:
    """A counter that the set lacks would make the whole pool invalid to the scheduler."""
    gpu = mig_gpu(H100, memory_bytes=None)
    found = counters.wire_set(gpu, counters.available(gpu, ()))
    profile = present(gpu.profile(14))
    taken = {**counters.consumed_by(profile, found), **counters.memory_slices_taken(2, 2)}
    assert set(taken) <= set(found.counters)
    assert {name for name in taken if name.startswith("memory")} == {"memory-slice-2", "memory-slice-3"}
