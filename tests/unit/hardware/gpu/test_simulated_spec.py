"""Descriptions of simulated GPUs, the catalogue of boards, and the messages for wrong ones."""

import json
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.core.errors import ConfigurationError
from dra_driver.hardware.gpu import catalog
from dra_driver.hardware.gpu.catalog import GpuModel, models
from dra_driver.hardware.gpu.simulated.spec import MAX_GPUS, parse_document, parse_groups


def test_uuids_are_the_same_every_time_and_different_on_every_node() -> None:
    """A restarted node must not look like new hardware; two nodes must not share a GPU."""
    first, again, other = ([item.gpu.uuid for item in parse_groups("8xl4-24gb", name).gpus] for name in ("a", "a", "b"))
    assert first == again
    assert len({*first, *other}) == 16
    assert parse_groups("8xl4-24gb", "n").gpus[:3] == parse_groups("3xl4-24gb", "n").gpus


@given(st.integers(1, MAX_GPUS), st.sampled_from(sorted(models())), st.text("abc-.0123", min_size=1, max_size=12))
def test_any_count_of_any_model_gives_unique_well_formed_gpus(count: int, key: str, node_name: str) -> None:
    """UUIDs, device names and PCI addresses identify GPUs all over the driver."""
    gpus = [item.gpu for item in parse_groups(f"{count}x{key}", node_name).gpus]
    assert len(gpus) == count
    for field in ("uuid", "minor", "pci_bus_id", "device_name"):
        assert len({getattr(gpu, field) for gpu in gpus}) == count
    assert all(len(gpu.uuid) == 40 and gpu.numa_node in (0, 1) for gpu in gpus)
    assert all(gpu.pci_bus_id and gpu.pci_bus_id[:4] == (gpu.pcie_root or "")[3:7] for gpu in gpus)


@given(st.text(max_size=40))
def test_no_text_crashes_the_short_form(text: str) -> None:
    try:
        found = parse_groups(text, "n")
    except ConfigurationError as error:
        assert re.search(r"expected <count>x<model>|unknown GPU model|GPUs in all", str(error))  # noqa: PT017
    else:
        assert found.gpus
        assert "x" in text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(
    ["minor", "count", "uuid", "memoryMiB", "pciBusId", "numaNode", "lost", "migEnabled", "instances"]
)


@given(st.dictionaries(field_names, json_values, min_size=1, max_size=4))
def test_no_value_of_a_field_crashes_the_file_form(fields: dict[str, object]) -> None:
    try:
        node = parse_document(json.dumps({"gpus": [{"model": "a30-24gb", **fields}]}), "n")
    except ConfigurationError as error:
        message = str(error)
    else:
        message = "gpus"
        assert all(0 <= item.gpu.minor <= 247 for item in node.gpus)
    assert message.startswith(("gpus", "not valid YAML"))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("8xh100", "did you mean h100-nvl-94gb"),
        ("h100-sxm5-80gb", "expected <count>x<model>"),
        ("", "expected <count>x<model>"),
        ("1xl4-24gb,", "cannot read ''"),
        ("1xl4-24gb+mig", "l4-24gb does not support MIG; leave out +mig"),
        ("1xa30-24gb+MIG", "cannot read '1xa30-24gb+MIG'"),
        ("0xl4-24gb", "1 to 64 GPUs in all"),
        ("64xl4-24gb,1xl4-24gb", "1 to 64 GPUs in all"),
        ("9999xl4-24gb", "1 to 64 GPUs in all"),
    ],
)
def test_a_wrong_short_form_is_refused_with_what_was_expected(spec: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_groups(spec, "n")
    assert message in str(caught.value)


MIG = "gpus: [{model: h100-sxm5-80gb, migEnabled: true, instances: [%s]}]"

FULL = """
driverVersion: 570.170.01
cudaDriverVersion: "12.8"
gpus:
- model: h100-sxm5-80gb
  minor: 5
  uuid: GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86
  productName: NVIDIA H100 80GB HBM3 (test)
  memoryMiB: 1000
  reservedMiB: 20
  pciBusId: 0000:65:00.0
  pcieRoot: pci0000:64
  numaNode: 3
  addressingMode: "None"
  migEnabled: true
  lost: fell off the bus
- model: l4-24gb
  count: 2
"""


def test_the_file_form_sets_every_field() -> None:
    """And what is not written comes from the catalogue; minors go on after the highest so far."""
    node = parse_document(FULL, "n")
    assert (node.driver_version, node.cuda_driver_version, node.unavailable) == ("570.170.01", (12, 8), None)
    first = node.gpus[0]
    gpu = first.gpu
    assert first.lost == "fell off the bus"
    assert (gpu.minor, gpu.uuid) == (5, "GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")
    assert (gpu.product_name, gpu.memory_bytes) == ("NVIDIA H100 80GB HBM3 (test)", 1000 * 2**20)
    assert gpu.reserved_bytes == 20 * 2**20
    assert (gpu.pci_bus_id, gpu.pcie_root, gpu.numa_node) == ("0000:65:00.0", "pci0000:64", 3)
    assert (gpu.addressing_mode, gpu.mig_enabled, gpu.cuda_compute_capability) == ("None", True, (9, 0))
    assert [item.gpu.minor for item in node.gpus] == [5, 6, 7]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a mapping with a list named gpus, got nothing"),
        ("- 1", "expected a mapping"),
        ("{}", "gpus: expected a list"),
        ("gpus: 3", "gpus: expected a list (empty for a node without GPUs), got int"),
        ("gpus: [3]", "gpus[0].model: expected the name"),
        ("gpus: [{model: h100-sxm5}]", "gpus[0].model: unknown GPU model 'h100-sxm5': did you mean h100-sxm5-80gb?"),
        ("gpus: [{model: l4-24gb, memory: 3}]", "gpus[0].memory: unknown field; did you mean memoryMiB?"),
        ("gpu: []\ngpus: []", "gpu: unknown field; did you mean gpus?"),
        ("gpus: [{model: l4-24gb, memoryMiB: 0}]", "gpus[0].memoryMiB: expected a whole number of MiB from 1"),
        ("gpus: [{model: l4-24gb, memoryMiB: true}]", "gpus[0].memoryMiB: expected a whole number"),
        ("gpus: [{model: l4-24gb, minor: 248}]", "gpus[0].minor: expected a whole number from 0 to 247"),
        ("gpus: [{model: l4-24gb, minor: 247}, {model: l4-24gb}]", "gpus[1].minor: 248 exceeds the highest"),
        ("gpus: [{model: l4-24gb, minor: 1}, {model: l4-24gb, minor: 1}]", "two GPUs have the minor 1"),
        ("gpus: [{model: l4-24gb, pciBusId: '0000:02:00.0'}, {model: l4-24gb}]", "two GPUs have the pci bus id"),
        ("gpus: [{model: l4-24gb, count: 2, minor: 1}]", "gpus[0].count: cannot be combined with minor"),
        ("gpus: [{model: l4-24gb, count: 65}]", "gpus[0].count: expected a whole number from 1 to 64"),
        ("gpus: [{model: l4-24gb, count: 40}, {model: l4-24gb, count: 40}]", "gpus[1]: more than 64 GPUs"),
        ("gpus: [{model: l4-24gb, migEnabled: true}]", "gpus[0].migEnabled: l4-24gb does not support MIG"),
        ("gpus: [{model: l4-24gb, migEnabled: 1}]", "gpus[0].migEnabled: expected true or false"),
        ("gpus: [{model: l4-24gb, uuid: GPU-1}]", "gpus[0].uuid: expected GPU- and a lower-case UUID"),
        ("gpus: [{model: l4-24gb, uuid: null}]", "gpus[0].uuid: expected GPU- and"),
        ("gpus: [{model: l4-24gb, productName: 'Größe'}]", "gpus[0].productName: expected a name"),
        ('gpus: [{model: l4-24gb, lost: "a\\nb"}]', "gpus[0].lost: expected a reason"),
        ("gpus: []\ncudaDriverVersion: 13.0", 'cudaDriverVersion: expected a quoted version such as "13.0", got 13'),
        ("gpus: [{model: h100-sxm5-80gb, instances: [{}]}]", "gpus[0].instances: they need migEnabled: true"),
        (MIG % "3", "gpus[0].instances[0]: expected a mapping with profile and start, got int"),
        (MIG % "{profile: 1g.10gb}", "gpus[0].instances[0]: expected a profile such as 3g.20gb and the memory slice"),
        (MIG % "{profile: 1g.5gb, start: 0}", "gpus[0].instances[0].profile: this board has 1g.10gb+me, 1g.10gb, "),
        (MIG % "{profile: 1g.10gb, start: 9}", "gpus[0].instances[0]: GPU-"),
        (MIG % "{profile: 1g.10gb, start: 0, compute: half}", "gpus[0].instances[0].compute: expected full, none or"),
        (MIG % "{profile: 1g.10gb, start: 0, compute: partial}", "compute: one compute slice cannot be divided"),
        (MIG % "{profile: 1g.10gb, start: 0, size: 1}", "gpus[0].instances[0].size: unknown field; known are compute,"),
        (
            MIG % "{profile: 3g.40gb, start: 0}, {profile: 1g.10gb, start: 3}",
            "gpus[0].instances[1]: no room for 1g.10gb",
        ),
        ("gpus: []\ndriverVersion: new", "driverVersion: expected a version such as 580.65.06, got 'new'"),
    ],
)
def test_a_wrong_file_is_refused_with_the_path_of_the_field(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_document(text, "n")
    assert message in str(caught.value)


def test_instances_that_exist_are_written_with_profile_and_place() -> None:
    cuts = "{profile: 3g.40gb, start: 4}, {profile: 1g.10gb, start: 2, compute: none}, "
    cuts += "{profile: 2g.20gb, start: 0, compute: partial}"
    node = parse_document((MIG % cuts).replace("migEnabled", "count: 2, migEnabled"), "n")
    assert len(node.gpus) == 2
    for item in node.gpus:
        found = item.gpu.mig_instances
        assert [(i.profile_name, i.start, i.size, i.gi_id, len(i.compute)) for i in found] == [
            ("2g.20gb", 0, 2, 3, 1),
            ("1g.10gb", 2, 1, 9, 0),
            ("3g.40gb", 4, 4, 2, 1),
        ]
        assert [i.device is not None for i in found] == [False, False, True]


MODELS = list(catalog.models().values())
MIG_MODELS = [model for model in MODELS if model.mig is not None]


def named(model: GpuModel) -> str:
    return model.key


@pytest.mark.parametrize("model", MODELS, ids=named)
def test_a_model_is_complete_enough_to_be_simulated(model: GpuModel) -> None:
    assert model.key == model.key.lower()
    assert 1 <= len(model.product_name) <= 95
    assert 0 < model.pci_device_id <= 0xFFFF
    assert (7, 0) <= model.cuda_compute_capability <= (12, 9)
    assert model.memory_mib is None or 10_000 < model.memory_mib < 300_000


@pytest.mark.parametrize("model", MIG_MODELS, ids=named)
def test_every_placement_fits_the_board_and_no_profile_takes_more_than_the_whole(model: GpuModel) -> None:
    table = model.mig
    assert table is not None
    for profile in table.profiles:
        assert all(start + profile.memory_slices <= table.memory_slices for start in profile.starts), profile.name
        assert profile.compute_slices <= table.compute_slices
        assert profile.max_instances <= len(profile.starts)
        assert profile.memory_mib is None or model.memory_mib is None or profile.memory_mib <= model.memory_mib
    assert len({profile.profile_id for profile in table.profiles}) == len(table.profiles)
    assert len({profile.enum for profile in table.profiles}) == len(table.profiles)
    assert len({profile.name for profile in table.profiles}) == len(table.profiles)


@pytest.mark.parametrize("model", MIG_MODELS, ids=named)
def test_a_larger_profile_never_has_less(model: GpuModel) -> None:
    assert model.mig is not None
    plain = [profile for profile in model.mig.profiles if "+" not in profile.name and "-" not in profile.name]
    for smaller, larger in pairwise(plain):
        assert (smaller.compute_slices, smaller.memory_slices) < (larger.compute_slices, larger.memory_slices)
        assert (smaller.memory_mib or 0) <= (larger.memory_mib or 10**9)


def test_broken_yaml_is_a_configuration_error_on_one_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        catalog.load_yaml("a: [1\nb: {")
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="not valid YAML: line 1: nested more than 100 levels deep"):
        catalog.load_yaml("[" * 60_000)
