"""The webhook of deploy/chart: what it is asked about, and that its container reaches nothing."""

import copy
from typing import Any

import pytest

from dra_driver.config.controller_settings import ControllerSettings
from dra_driver.config.options import flags_of, load
from dra_driver.config.webhook_settings import WebhookSettings
from dra_driver.controller.webhook_part import dns_names
from dra_driver.kube import paths
from dra_driver.scheduler.cel import Expression, value_of
from dra_driver.webhook.http_message import REVIEWS
from dra_driver.webhook.review import CHECKED
from dra_driver.webhook.workers import WITHIN_S
from tests.contract.deploy import opaque_manifests as opaque
from tests.fakes import chart
from tests.fakes.rbac import Access, Rules
from tests.unit.webhook.reviews import HOPPER, claim, device_class

NAME, NAMESPACE = "dra-driver-webhook", "dra-driver"
PLURALS = {**opaque.PLURALS, "DeviceClass": "deviceclasses", "GpuPolicy": "gpupolicies"}


@pytest.fixture(scope="module")
def objects() -> list[dict[str, Any]]:
    return chart.objects({"webhook": {"enabled": True}})


@pytest.fixture(scope="module")
def webhooks(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """By the first part of the name."""
    found = chart.found(objects, "ValidatingWebhookConfiguration", NAME)["webhooks"]
    return {each["name"].partition(".")[0]: each for each in found}


def pod(values: dict[str, Any] | None = None) -> dict[str, Any]:
    spec: dict[str, Any] = chart.pod_spec(
        chart.objects({"webhook": {"enabled": True}, **(values or {})}), "Deployment", "dra-driver-controller"
    )
    return spec


def container(name: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
    (found,) = [each for each in pod(values)["containers"] if each["name"] == name]
    spec: dict[str, Any] = found
    return spec


def test_nothing_of_it_is_there_as_delivered() -> None:
    assert "webhook" not in str(chart.objects())


def test_what_it_needs_is_said_by_the_values() -> None:
    on = {"webhook": {"enabled": True}}
    assert "controller.enabled has to be true" in chart.refusal({**on, "controller": {"enabled": False}})
    assert "driverName has to be that" in chart.refusal({**on, "driverName": "gpu.example.com"})
    assert "wrong" in chart.refusal({"webhook": {"enabled": True, "wrong": 1}})
    assert "WEBHOOK_DIR" in chart.refusal({"webhook": {"enabled": True, "settings": {"WEBHOOK_DIR": "/x"}}})


def test_an_object_passes_where_it_does_not_answer(webhooks: dict[str, dict[str, Any]]) -> None:
    assert webhooks.keys() == {"claims", "classes", "policies"}
    for each in webhooks.values():
        assert (each["failurePolicy"], each["timeoutSeconds"], each["sideEffects"]) == ("Ignore", 3, "None")
        assert each["clientConfig"]["service"]["path"] == REVIEWS
        assert "caBundle" not in each["clientConfig"]  # or an upgrade would take out what the controller wrote
        assert each["timeoutSeconds"] > WITHIN_S


def test_objects_of_the_system_are_never_sent(webhooks: dict[str, dict[str, Any]]) -> None:
    """Nor those of its own namespace: what the webhook needs must not need the webhook."""
    (expression,) = webhooks["claims"]["namespaceSelector"]["matchExpressions"]
    assert expression == {
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", NAMESPACE]
    }  # fmt: skip


def test_it_is_asked_about_what_it_checks_and_never_about_updates_of_claims(
    webhooks: dict[str, dict[str, Any]],
) -> None:
    asked = {
        (operation, resource)
        for each in webhooks.values()
        for rule in each["rules"]
        for operation in rule["operations"]
        for resource in rule["resources"]
    }
    kinds = {PLURALS[kind] for _, kind in CHECKED}
    assert asked == {("CREATE", plural) for plural in kinds} | {("UPDATE", "deviceclasses"), ("UPDATE", "gpupolicies")}


def sent(
    webhooks: dict[str, dict[str, Any]], written: dict[str, Any], operation: str = "CREATE", old: Any = None
) -> bool:
    """Whether the API server would ask, by the conditions alone."""
    plural = PLURALS[written["kind"]]
    (each,) = [each for each in webhooks.values() if plural in each["rules"][0]["resources"]]
    request = {"operation": operation, "resource": {"resource": plural}}
    inputs = {"request": value_of(request), "object": value_of(written), "oldObject": value_of(old)}
    return all(
        Expression(condition["expression"], tuple(inputs)).evaluate_counting(inputs)[0] is True
        for condition in each["matchConditions"]
    )


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1beta2"])
def test_claims_of_this_driver_are_sent(webhooks: dict[str, dict[str, Any]], version: str) -> None:
    ours = claim(HOPPER, version)
    assert sent(webhooks, ours)
    assert sent(webhooks, {**ours, "kind": "ResourceClaimTemplate", "spec": {"spec": ours["spec"]}})


def test_other_claims_are_not_sent(webhooks: dict[str, dict[str, Any]]) -> None:
    other = claim('device.driver == "x.example"')
    part = other["spec"]["devices"]["requests"][0]["exactly"]
    part["deviceClassName"] = "x.example"
    assert not sent(webhooks, other)
    assert not sent(webhooks, {**other, "spec": {"devices": {}}})
    assert not sent(webhooks, {**other, "spec": {}})
    by_selector, by_config, by_alternative = (copy.deepcopy(other) for _ in range(3))
    by_selector["spec"]["devices"]["requests"][0]["exactly"]["selectors"].append({"cel": {"expression": HOPPER}})
    by_config["spec"]["devices"]["config"] = [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}}]
    by_alternative["spec"]["devices"]["requests"] = [
        {
            "name": "a",
            "firstAvailable": [
                {"name": "b", "deviceClassName": "x"},
                {"name": "c", "deviceClassName": "mig.nvidia.com"},
            ],
        }
    ]
    assert [sent(webhooks, each) for each in (by_selector, by_config, by_alternative)] == [True] * 3


def test_all_hundred_manifests_can_be_judged_by_the_conditions(webhooks: dict[str, dict[str, Any]]) -> None:
    """A condition that fails skips the webhook."""
    for written in opaque.manifests():
        if written["kind"] != "DeviceClass" and "v1" in written["apiVersion"]:
            assert sent(webhooks, written), written
        else:
            sent(webhooks, written)


def test_classes_and_policies_are_sent_where_the_spec_changed(webhooks: dict[str, dict[str, Any]]) -> None:
    own = device_class(HOPPER)
    relabelled = {**own, "metadata": {"labels": {"a": "b"}}}
    assert sent(webhooks, own)
    assert not sent(webhooks, relabelled, "UPDATE", own)
    assert sent(webhooks, own, "UPDATE", {**own, "spec": {}})
    assert not sent(webhooks, {**own, "spec": {}})
    policy = {"kind": "GpuPolicy", "spec": {"priority": 1}}
    assert sent(webhooks, policy)
    assert not sent(webhooks, {**policy, "status": {}}, "UPDATE", policy)
    assert sent(webhooks, policy, "UPDATE", {**policy, "spec": {}})


def test_its_container_has_no_token_and_no_rights() -> None:
    """Its input is shaped by tenants."""
    own = container("webhook")["securityContext"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    assert own["capabilities"] == {"drop": ["ALL"]}
    mounts = {each["mountPath"]: each for each in container("webhook")["volumeMounts"]}
    assert all(each["readOnly"] for each in mounts.values())
    token = mounts["/var/run/secrets/kubernetes.io/serviceaccount"]["name"]
    volumes = {each["name"]: each for each in pod()["volumes"]}
    assert volumes[token].keys() == {"name", "emptyDir"}
    assert volumes["webhook"]["emptyDir"]["medium"] == "Memory"  # keys are never on a disk


def variables(name: str, settings: type[Any]) -> dict[str, str]:
    found = {item["name"]: str(item.get("value", "x")) for item in container(name)["env"]}
    assert found.keys() <= {flag.option.env for flag in flags_of(settings)}
    return found


def test_both_containers_share_the_folder_and_every_setting_is_known() -> None:
    controller, webhook = (
        load(ControllerSettings, {}, variables("controller", ControllerSettings)),
        load(WebhookSettings, {}, variables("webhook", WebhookSettings)),
    )
    assert controller.webhook_dir == webhook.webhook_dir
    for name in ("controller", "webhook"):
        assert webhook.webhook_dir in {each["mountPath"] for each in container(name)["volumeMounts"]}
    assert controller.webhook_name == NAME
    ports = {each["name"]: each["containerPort"] for each in container("webhook")["ports"]}
    assert webhook.webhook_addr == f":{ports['webhook']}"
    assert webhook.http_addr == f":{ports['http-webhook']}"
    assert container("webhook")["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http-webhook"}


def test_policies_in_files_are_told_to_it() -> None:
    """They may add attributes that no object has."""
    values = {"policies": {"a.yaml": "kind: GpuPolicy\n"}}
    said = [
        {item["name"]: item.get("value") for item in container("webhook", each)["env"]}["POLICY_FILES"]
        for each in ({}, values)
    ]
    assert said == ["false", "true"]


def test_the_service_leads_to_it_by_the_name_in_its_certificates(objects: list[dict[str, Any]]) -> None:
    service = chart.found(objects, "Service", NAME)
    reference = chart.found(objects, "ValidatingWebhookConfiguration", NAME)["webhooks"][0]["clientConfig"]["service"]
    assert (reference["name"], reference["namespace"], reference["port"]) == (NAME, NAMESPACE, 443)
    assert service["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "webhook"}]
    assert dns_names(reference["name"], reference["namespace"])[0] == f"{NAME}.{NAMESPACE}.svc"
    labels = chart.found(objects, "Deployment", "dra-driver-controller")["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()


def test_the_controller_may_read_and_write_two_names_and_create_nothing(objects: list[dict[str, Any]]) -> None:
    rules = Rules(objects, account="dra-driver-controller", namespace=NAMESPACE)
    for path in (paths.secret(NAMESPACE, NAME), paths.validating_webhook_configuration(NAME)):
        for method, allowed in (("GET", True), ("PUT", True), ("PATCH", False), ("DELETE", False)):
            access = Access.of_request(method, path)
            assert access is not None
            assert rules.allow(access) == allowed
        for method, other in (
            ("POST", path.rpartition("/")[0]),
            ("GET", f"{path}-x"),
            ("GET", path.rpartition("/")[0]),
        ):
            access = Access.of_request(method, other)
            assert access is not None
            assert not rules.allow(access)
    assert chart.found(objects, "Secret", NAME).keys() == {"apiVersion", "kind", "metadata", "type"}


def test_network_policies_let_api_servers_in() -> None:
    """They come from addresses of nodes, which no selector knows."""
    policy = chart.found(
        chart.objects({"webhook": {"enabled": True}, "networkPolicy": {"enabled": True}}), "NetworkPolicy", NAME
    )
    assert policy["spec"]["ingress"][0] == {"ports": [{"port": "webhook"}]}


def test_metrics_of_the_webhook_are_scraped() -> None:
    objects = chart.objects({"webhook": {"enabled": True}, "metrics": {"podMonitor": {"enabled": True}}})
    endpoints = chart.found(objects, "PodMonitor", "dra-driver")["spec"]["podMetricsEndpoints"]
    assert [each["port"] for each in endpoints] == ["http", "http-webhook"]
