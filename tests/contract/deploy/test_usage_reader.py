"""The Role for people who ask the exporters: what `kubectl dra usage` requests, and no more."""

from collections.abc import Sequence
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.commands.usage_source import ask_exporters
from dra_driver.kubectl.usage.device_use import UseReport
from tests.fakes import chart
from tests.fakes.rbac import Access

NAMESPACE = "gpus"


class Asked:
    """An API server with one exporter, whose answer is empty; remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []

    def list(self, path: str, query: object = None) -> dict[str, Any]:
        assert query == {"labelSelector": "app.kubernetes.io/component=exporter"}
        self.requests.append(("GET", path))
        return {"items": [{"metadata": {"name": "exporter-a"}, "spec": {"nodeName": "a"}}]}

    def get_all(self, paths: Any, *, within_s: float | None = None) -> Sequence[Any]:
        assert within_s is not None
        self.requests += [("GET", path) for path in paths]
        return [{"version": 1, "windowSeconds": 60, "claims": []} for _ in paths]


def test_the_role_grants_what_the_command_asks_and_no_more() -> None:
    api = Asked()
    assert ask_exporters(api, NAMESPACE) == UseReport(source="1 of 1 exporters", window_s=60.0, uses=[], gaps=())
    role = chart.found(chart.objects({"usageReader": {"enabled": True}}, NAMESPACE), "Role", "dra-driver-usage-reader")
    assert role["metadata"]["namespace"] == NAMESPACE
    granted = {(verb, item) for rule in role["rules"] for item in rule["resources"] for verb in rule["verbs"]}
    asked = [access for request in api.requests if (access := Access.of_request(*request)) is not None]
    assert {(access.verb, access.resource) for access in asked} == granted
    assert {access.namespace for access in asked} == {NAMESPACE}


def test_it_is_off_as_delivered() -> None:
    names = {each["metadata"]["name"] for each in chart.objects()}
    assert "dra-driver-usage-reader" not in names


def test_a_node_without_an_exporter_is_named() -> None:
    with pytest.raises(ConfigurationError, match="in namespace gpus on node other: the exporter is off"):
        ask_exporters(Asked(), NAMESPACE, node="other")
