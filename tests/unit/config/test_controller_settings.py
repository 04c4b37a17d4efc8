"""Settings of the controller: defaults and bounds."""

import pytest

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.core.errors import ConfigurationError


def test_nothing_is_evicted_unless_it_is_asked_for() -> None:
    settings = load(ControllerSettings, {}, {})
    assert (settings.evict_extended_resource_pods, settings.grace) == (False, 60)
    assert (settings.max_evictions_per_minute, settings.brake_percent, settings.brake_window) == (10, 20, 600)


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("grace", "-1"),
        ("grace", "86401"),
        ("grace", "1e3"),
        ("max_evictions_per_minute", "0"),
        ("max_evictions_per_minute", "601"),
        ("brake_percent", "0"),
        ("brake_percent", "101"),
        ("brake_window", "59"),
        ("lease_duration", "2"),
        ("lease_duration", "121"),
        ("evict_extended_resource_pods", "yes"),
        ("namespace", "A"),
        ("driver_name", "a/b"),
        ("pod_name", ""),
        ("http_addr", "8080"),
        ("log_level", "all"),
    ],
)
def test_values_out_of_bounds_are_refused_with_the_name_of_the_flag(field: str, text: str) -> None:
    flag = next(flag.flag for flag in flags_of(ControllerSettings) if flag.field == field)
    with pytest.raises(ConfigurationError, match=flag):
        load(ControllerSettings, {field: text}, {})
