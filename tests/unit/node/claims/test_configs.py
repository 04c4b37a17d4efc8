"""Which opaque config applies to which result."""

from typing import Any, Literal

import pytest

from dra_driver.config.device_config import GpuConfig, MigDeviceConfig
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.claim import OpaqueConfig
from dra_driver.node.claims.planning.sharing_plan import config_for, decode_all
from tests.fakes.claims import ref, result
from tests.fakes.stand_in import present
from tests.unit.node.claims.sharing import config

Source = Literal["FromClass", "FromClaim"]


def entry(interval: str, *requests: str, source: Source = "FromClaim", kind: str = "GpuConfig") -> OpaqueConfig:
    sharing: dict[str, Any] = {"strategy": "TimeSlicing"}
    if kind == "GpuConfig":
        sharing["timeSlicingConfig"] = {"interval": interval}
    return config(kind, sharing, *requests, source=source)


def winner(request: str, *configs: OpaqueConfig) -> str | None:
    """The setting of the config that applies to ``request``."""
    found = config_for(result(request=request), decode_all(ref(1), configs), GpuConfig)
    return found[1].asks_for if found else None


@pytest.mark.parametrize(
    ("configs", "wins"),
    [
        ([entry("Long"), entry("Short")], True),
        ([entry("Short"), entry("Long", source="FromClass")], True),
        *(([entry("Short", named)], True) for named in ("main", "main/small")),
        *(([entry("Short", named)], False) for named in ("main/large", "small", "other")),
        ([entry("Short", "main"), entry("Long", "b")], True),
        ([entry("Short"), entry("", kind="MigDeviceConfig")], True),
    ],
)
def test_the_last_config_that_applies_wins_and_the_claims_over_the_classs(
    configs: list[OpaqueConfig], wins: bool
) -> None:
    """It names the request in full, by its base, or names none; configs of another kind do not apply."""
    assert winner("main/small", *configs) == ("time-slicing with interval Short" if wins else None)


def test_a_mig_config_that_names_a_gpu_request_is_refused() -> None:
    """Naming the request says that it was meant, and it cannot be done."""
    with pytest.raises(InvalidParametersError, match="whole GPU; use kind GpuConfig"):
        winner("gpu", entry("", "gpu", kind="MigDeviceConfig"))


def test_a_gpu_config_is_passed_over_for_a_partition_and_refused_where_it_is_named() -> None:
    """As for MIG configs: a class default for whole GPUs does not exclude partitions."""
    part = result("gpu-0-mig-1g10gb-19-0")
    meant = entry("", kind="MigDeviceConfig")
    found = present(config_for(part, decode_all(ref(1), [meant, entry("Short")]), MigDeviceConfig))
    assert found[1].kind == "MigDeviceConfig"
    with pytest.raises(InvalidParametersError, match="is a MIG partition; use kind MigDeviceConfig"):
        config_for(part, decode_all(ref(1), [entry("Short", "gpu")]), MigDeviceConfig)


def test_a_wrong_config_is_refused_even_when_another_wins() -> None:
    wrong = OpaqueConfig(source="FromClass", requests=(), parameters={"kind": "GpuConfig"})
    with pytest.raises(InvalidParametersError) as caught:
        decode_all(ref(1), [wrong, entry("Short")])
    assert "config[0] (FromClass) of claim default/claim-1" in str(caught.value)
    assert str(caught.value).endswith("correct the device class")
