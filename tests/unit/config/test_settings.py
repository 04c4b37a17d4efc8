"""The node process' settings: where values come from, and what is wrong with the wrong ones."""

import re
from pathlib import Path

import pytest
import yaml

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.config.settings import load_node_settings, node_flags
from dra_driver.core.errors import ConfigurationError

ROOT = Path(__file__).parents[3]


def test_flag_wins_over_environment_and_that_over_the_default() -> None:
    environ = {"NODE_NAME": "from-env", "DRIVER_NAME": "env.example", "HTTP_ADDR": ":9"}
    settings = load_node_settings({"node_name": "from-flag", "http_addr": ""}, environ)
    assert settings.node_name == "from-flag"
    assert settings.driver_name == "env.example"
    assert settings.http_addr == "", "an empty flag is a value"
    assert settings.cdi_dir == "/var/run/cdi"


def test_empty_variable_counts_as_not_set() -> None:
    """Manifests often carry empty ones."""
    assert load_node_settings({"node_name": "n"}, {"CDI_DIR": "", "POD_UID": ""}).pod_uid is None


def test_every_wrong_setting_is_named_in_one_go() -> None:
    """One restart of a DaemonSet shows all wrong settings."""
    given = {"driver_name": "Bad_Name", "poll_interval": "soon", "cdi_dir": "cdi"}
    with pytest.raises(ConfigurationError) as caught:
        load_node_settings(given, {})
    text = str(caught.value)
    assert "--node-name (NODE_NAME) is missing" in text
    assert "--driver-name (DRIVER_NAME): 'Bad_Name': expected a DNS subdomain of at most 63" in text
    assert "--poll-interval (POLL_INTERVAL): 'soon': expected seconds from 0.1 to 3600" in text
    assert "--cdi-dir (CDI_DIR): 'cdi': expected an absolute path" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_name", "UPPER"), ("node_name", "-dash"), ("node_name", "a..b"), ("node_name", "a" * 254),
        ("node_name", "n\n"), ("driver_name", "a" * 64), ("driver_name", "a/b"), ("pod_uid", "../../etc"),
        ("pod_uid", "u" * 64), ("http_addr", "8080"), ("http_addr", ":70000"), ("http_addr", "host:http"),
        ("http_addr", ":٨٠"), ("driver_root", "relative"), ("dev_root", "/nul\0"),
        ("nvidia_cdi_hook_path", "nvidia-cdi-hook"), ("poll_interval", "0"), ("poll_interval", "nan"),
        ("poll_interval", "inf"), ("simulate", ""), ("simulate", "x" * 5000), ("log_format", "xml"),
        ("log_level", "INFO"),
    ],
)  # fmt: skip
def test_value_is_refused(field: str, value: str) -> None:
    flag = "--" + field.replace("_", "-")
    with pytest.raises(ConfigurationError, match=re.escape(flag)):
        load_node_settings({"node_name": "n", field: value}, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("node_name", "ip-10-0-0-1.eu-west-1.compute.internal"),
        ("http_addr", "[::1]:8080"),
        ("http_addr", ":0"),
        ("nvidia_cdi_hook_path", "none"),
        ("pod_uid", "b1c7e0f2-5d0a-4c61-9f7e-0f6f0a8c1d2e"),
        ("poll_interval", "0.5"),
    ],
)
def test_value_is_taken(field: str, value: str) -> None:
    assert str(getattr(load_node_settings({"node_name": "n"} | {field: value}, {}), field)) == value


def test_pool_name_must_fit_the_api() -> None:
    node = ".".join(["a" * 50] * 4)
    with pytest.raises(ConfigurationError, match="pool name NODE/DRIVER would have 254 characters"):
        load_node_settings({"node_name": node, "driver_name": "d" * 50}, {})


def test_error_shows_no_more_than_a_line_of_a_huge_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        load_node_settings({"node_name": "x" * 100_000}, {})
    assert len(str(caught.value)) < 500


def test_flags_and_variables_are_unique() -> None:
    flags = node_flags()
    assert len({flag.flag for flag in flags}) == len({flag.env for flag in flags}) == len(flags)


def test_the_deployed_daemonset_uses_only_variables_that_exist() -> None:
    manifest = yaml.safe_load((ROOT / "deploy/base/daemonset.yaml").read_text())
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["kubelet-plugin"]
    variables = {variable["name"] for variable in container["env"]}
    assert {"NODE_NAME", "POD_UID"} <= variables <= {flag.env for flag in node_flags()}


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("grace", "-1"), ("grace", "86401"), ("grace", "1e3"), ("max_evictions_per_minute", "0"),
        ("max_evictions_per_minute", "601"), ("brake_percent", "0"), ("brake_percent", "101"), ("brake_window", "59"),
        ("lease_duration", "2"), ("lease_duration", "121"), ("evict_extended_resource_pods", "yes"),
        ("namespace", "A"), ("driver_name", "a/b"), ("pod_name", ""), ("http_addr", "8080"), ("log_level", "all"),
    ],
)  # fmt: skip
def test_values_out_of_bounds_are_refused_with_the_name_of_the_flag(field: str, text: str) -> None:
    flag = next(flag.flag for flag in flags_of(ControllerSettings) if flag.field == field)
    with pytest.raises(ConfigurationError, match=flag):
        load(ControllerSettings, {field: text}, {})
