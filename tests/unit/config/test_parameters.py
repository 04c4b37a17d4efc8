"""Opaque claim parameters: what decodes, and that every mistake is named by its path."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.config.parameters import API_VERSION, GpuConfig, MigDeviceConfig, decode
from dra_driver.core.errors import InvalidParametersError


def gpu_config(sharing: Any = None, **more: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "GpuConfig", "sharing": sharing} | more


def refusal(parameters: Any) -> str:
    with pytest.raises(InvalidParametersError) as caught:
        decode(parameters)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sharing", "asks_for"),
    [
        ({"strategy": "TimeSlicing"}, None),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": None}, None),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {}}, None),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": None}}, None),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Default"}}, None),
        ({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}, "time-slicing with interval Short"),
        ({"strategy": "MPS"}, "sharing through MPS"),
        ({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50}}, "sharing through MPS"),
    ],
)
def test_only_the_default_interval_needs_no_setup(sharing: Any, asks_for: str | None) -> None:
    """Empty sections and nulls are the hardware's default, and never a crash."""
    config = decode(gpu_config(sharing))
    assert config.sharing is not None
    assert config.sharing.asks_for == asks_for
    assert decode(gpu_config(None)) == GpuConfig()


@pytest.mark.parametrize("limit", ["10Gi", "1Mi", 1048576, "1.5G"])
def test_memory_limits_are_quantities_as_text_or_number(limit: Any) -> None:
    config = decode(gpu_config({"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": limit}}))
    assert isinstance(config, GpuConfig)
    assert config.sharing is not None
    assert config.sharing.mps is not None
    assert config.sharing.mps.default_memory


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, "parameters are nothing"),
        ([], "parameters are a list"),
        ({}, "apiVersion: expected 'resource.nvidia.com/v1beta1', got nothing"),
        ({"apiVersion": "gpu.nvidia.com/v1"}, "got 'gpu.nvidia.com/v1'"),
        ({"apiVersion": API_VERSION}, "kind: expected GpuConfig or MigDeviceConfig, got nothing"),
        ({"apiVersion": API_VERSION, "kind": ["GpuConfig"]}, "got a list"),
        ({"apiVersion": API_VERSION, "kind": "VfioDeviceConfig"}, "not supported by this version"),
        (gpu_config(Sharing={}), "Sharing: unknown field"),
        (gpu_config({"strategy": "MPS", "foo": 1}), "sharing.foo: unknown field"),
        (gpu_config({}), "sharing.strategy: is required"),
        (gpu_config("MPS"), "sharing: expected an object, got 'MPS'"),
        (gpu_config({"strategy": "mps"}), "sharing.strategy: expected 'TimeSlicing' or 'MPS', got 'mps'"),
        (
            gpu_config({"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "short"}}),
            "sharing.timeSlicingConfig.interval: expected 'Default', 'Short', 'Medium' or 'Long', got 'short'",
        ),
        (gpu_config({"strategy": "TimeSlicing", "mpsConfig": {}}), "mpsConfig cannot be combined"),
        (gpu_config({"strategy": "MPS", "timeSlicingConfig": {}}), "timeSlicingConfig cannot be combined"),
        (gpu_config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 101}}), "got 101"),
        (gpu_config({"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": True}}), "to 100, got true"),
        (
            gpu_config({"strategy": "MPS", "mpsConfig": {"defaultPinnedDeviceMemoryLimit": "1k"}}),
            "sharing.mpsConfig.defaultPinnedDeviceMemoryLimit: expected at least 1Mi, got '1k'",
        ),
        (
            gpu_config({"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {"0": []}}}),
            "sharing.mpsConfig.defaultPerDevicePinnedMemoryLimit.0: expected a quantity",
        ),
        (
            gpu_config({"strategy": "MPS", "timeSlicingConfig": {}}, kind="MigDeviceConfig"),
            "sharing.timeSlicingConfig: unknown field",
        ),
    ],
)  # fmt: skip
def test_every_mistake_is_named_by_its_path(parameters: Any, expected: str) -> None:
    assert expected in refusal(parameters)


def test_huge_parameters_are_refused_before_they_are_looked_at() -> None:
    """Neither length nor depth of what a user wrote costs the node process memory or stack."""
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    assert "larger than 10240 bytes" in refusal(gpu_config(x="a" * 11000))
    assert "larger than 10240 bytes" in refusal(gpu_config(x=[0] * 11000))
    assert "nested more than 16 levels" in refusal(gpu_config(x=deep))


def test_an_error_stays_short_whatever_was_written() -> None:
    parameters = gpu_config(**{f"field-{index}-{'x' * 100}": index for index in range(40)})
    assert "and 35 more" in refusal(parameters)
    assert len(refusal(parameters)) < 700


@pytest.mark.parametrize(("key", "shown"), [("a\nlevel=error", "a level=error"), ("größe", "größe")])
def test_a_key_can_neither_break_a_line_nor_command_a_terminal(key: str, shown: str) -> None:
    """The author of a claim chooses its keys; they must not falsify the pod's events."""
    assert refusal(gpu_config(**{key: 1})) == f"GpuConfig: {shown}: unknown field"
    limits = {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": {key: "1"}}}
    assert f".{shown}: expected at least 1Mi" in refusal(gpu_config(limits))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=8,
)
KNOWN = ["sharing", "strategy", "timeSlicingConfig", "interval", "mpsConfig", "defaultActiveThreadPercentage", "MPS"]


@given(st.recursive(JSON, lambda c: st.dictionaries(st.sampled_from(KNOWN), c, max_size=4), max_leaves=6))
def test_any_json_either_decodes_or_is_refused(value: Any) -> None:
    """Nothing that a user can store in a claim raises anything but the error for users."""
    parameters = {"apiVersion": API_VERSION, "kind": "GpuConfig"} | (
        value if isinstance(value, dict) else {"sharing": value}
    )
    try:
        config = decode(json.loads(json.dumps(parameters)))
    except InvalidParametersError as error:
        said = str(error)
    else:
        assert isinstance(config, GpuConfig | MigDeviceConfig)
        said = ""
    assert said.isprintable()
