"""The admission webhook on a real API server: its answers are lint's, and its certificates change without a gap."""

import re
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from dra_driver.kubectl.lint import Finding, ManifestSource, known_from_catalog, lint
from dra_driver.webhook.verdict import LEFT_OUT, REFUSING
from tests.contract.config import samples
from tests.contract.deploy import opaque_manifests as opaque
from tests.e2e.cluster import wait
from tests.e2e.gates import SHARES
from tests.e2e.webhook_run import DENIED, LIFETIME_S, WebhookRun, kubectl_apply, milliseconds, policy_crd, webhook_run
from tests.unit.kubectl.lint.test_document import examples
from tests.unit.webhook.reviews import HOPPER, NO_MATCH, UNKNOWN, claim, device_class

WRONG = claim(UNKNOWN)
GIVEN_UP_S = 40.0
CHECKED = {"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"}


@pytest.fixture(scope="module")
def run(kubeconfig: str) -> Iterator[WebhookRun]:
    with webhook_run(kubeconfig) as made:
        if made is None:
            pytest.skip("this host is no node of the cluster, so its API server cannot be led to a webhook here")
        with policy_crd(made.rest):
            made.until_refused(WRONG)
            yield made


def test_a_wrong_claim_is_refused_with_the_sentence_of_lint(run: WebhookRun) -> None:
    said = run.ask(WRONG) or ""
    (finding,) = found_by_lint(WRONG)
    assert f"{finding.path}: {finding.message}; {finding.hint} (DRA016)" in said
    assert 'admission webhook "claims.gpu.dra-driver.io" denied' in said
    assert run.ask(claim(HOPPER)) is None
    printed = kubectl_apply({**WRONG, "metadata": {"name": "wrong"}})
    if printed is not None:
        print(printed)  # noqa: T201 - for `pytest -s`
        assert "denied the request" in printed


def test_a_warning_is_printed_by_kubectl_and_the_object_passes(run: WebhookRun) -> None:
    assert run.ask(claim(NO_MATCH)) is None
    printed = kubectl_apply({**claim(NO_MATCH), "metadata": {"name": "warned"}})
    if printed is not None:
        print(printed)  # noqa: T201 - for `pytest -s`
        assert "Warning: spec.devices.requests[0]" in printed
        assert "created (server dry run)" in printed


def found_by_lint(manifest: dict[str, Any]) -> list[Finding]:
    text = yaml.safe_dump(manifest, allow_unicode=True)
    return list(lint([ManifestSource(name="x", text=text)], known_from_catalog()).findings)


def refusing(manifest: dict[str, Any]) -> bool:
    """Whether the webhook refuses it, if the API server's own validation lets it through."""
    return any(finding.severity == "error" and finding.rule in REFUSING for finding in found_by_lint(manifest))


def left_to_others(manifest: dict[str, Any]) -> bool:
    return any(finding.severity == "error" and finding.rule in LEFT_OUT for finding in found_by_lint(manifest))


def test_a_hundred_manifests_with_parameters_get_the_answers_of_lint(run: WebhookRun) -> None:
    """Those with which the admission policy is compared; here the webhook is alone."""
    refused = 0
    for manifest in opaque.manifests():
        said = run.ask(manifest)
        if said is not None and "no matches for kind" in said:
            continue  # this API server does not serve the beta version
        assert (said is None) == (not refusing(manifest)), (manifest, said)
        refused += said is not None
    assert refused > opaque.COUNT // 5


def test_the_examples_of_the_rules_get_the_answers_of_lint(run: WebhookRun, gates: dict[str, bool]) -> None:
    """Every example of docs/lint.md that is a claim, template or class: refused here, or by the API server."""
    compared = by_webhook = 0
    for rule, _, text in examples():
        for manifest in loaded(text):
            if manifest.get("kind") not in CHECKED or not str(manifest.get("apiVersion")).startswith("resource.k8s"):
                continue
            said = run.ask(manifest)
            compared, by_webhook = compared + 1, by_webhook + (DENIED in (said or ""))
            if "'capacity': " in str(manifest) and not gates.get(SHARES, False):
                continue  # the API server drops the field before it asks
            if left_to_others(manifest):
                continue  # it may drop an unknown field and not refuse it
            if said is not None and DENIED not in said:
                continue  # refused by the API server itself
            assert (said is None) == (not refusing(manifest)), (rule, manifest, said)
    assert compared >= 40
    assert by_webhook >= 5


def loaded(text: str) -> list[dict[str, Any]]:
    try:
        found = [each for each in yaml.safe_load_all(text) if isinstance(each, dict)]
    except yaml.YAMLError:
        return []
    for number, each in enumerate(found):
        each.setdefault("metadata", {}).setdefault("name", f"example-{number}")
    return found


def test_policies_get_the_answers_of_lint(run: WebhookRun) -> None:
    """By schema or webhook."""
    refused = compared = 0
    for seed in range(1000, 1060):
        made = samples.right("GpuPolicy", seed) if seed % 3 == 0 else samples.broken("GpuPolicy", seed)
        header = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "e2e-sample"}}
        policy = {**header, "spec": made.get("spec")}
        found = [finding for finding in found_by_lint(policy) if finding.severity == "error"]
        if not isinstance(policy["spec"], dict) or any("unknown field" in finding.message for finding in found):
            continue  # dropped, or refused, as the client asks for
        said = run.ask(policy)
        assert (said is None) == (not found), (policy, found, said)
        compared, refused = compared + 1, refused + (said is not None)
    assert compared >= 30
    assert refused >= 5


def test_an_attribute_of_a_policy_is_known_when_the_policy_is_there(run: WebhookRun) -> None:
    policies = "/apis/gpu.dra-driver.io/v1alpha1/gpupolicies"
    spec = {"attributes": [{"name": "team", "string": "blue"}]}
    header = {"apiVersion": "gpu.dra-driver.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": "e2e-team"}}
    run.until_refused(WRONG)  # policies are known
    run.rest.create(policies, {**header, "spec": spec})
    try:
        wait(lambda: run.ask(WRONG), 30.0)
    finally:
        run.rest.delete(f"{policies}/e2e-team")
    run.until_refused(WRONG)


def test_an_old_wrong_class_keeps_its_labels_writable(run: WebhookRun) -> None:
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    good = {**device_class(HOPPER), "metadata": {"name": f"e2e-{run.suffix}.example.com"}}
    made = run.rest.create(classes, good)
    path = f"{classes}/{made['metadata']['name']}"
    try:
        made["metadata"]["labels"] = {"a": "b"}
        made = run.rest.update(path, made)
        made["spec"] = device_class(UNKNOWN)["spec"]
        with pytest.raises(Exception, match="has attribute 'team'"):
            run.rest.update(path, made)
    finally:
        run.rest.delete(path)


def test_objects_of_the_system_and_of_others_are_not_looked_at(run: WebhookRun) -> None:
    assert run.ask(WRONG, "kube-system") is None
    assert run.ask(WRONG, run.namespace) is None


def test_its_rotation_refuses_no_request(run: WebhookRun) -> None:
    """All the time a wrong claim is refused, so the API server always trusted what was served."""
    ca = run.put_certificate(datetime.now(UTC) - timedelta(seconds=LIFETIME_S * 0.7), timedelta(seconds=LIFETIME_S))
    wait(lambda: None if ca in run.bundle() else "not announced yet", 60.0)
    run.until_refused(WRONG)
    seen, missed, over = {run.bundle()}, [], threading.Event()
    asked = [0]

    def ask() -> None:
        while not over.is_set():
            asked[0] += 1
            if not run.refused(WRONG):
                missed.append(time.monotonic())

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for each in clients:
        each.start()
    try:
        deadline = time.monotonic() + 180
        while ca in (bundle := run.bundle()):
            seen.add(bundle)
            assert time.monotonic() < deadline, run.logs()
            time.sleep(0.5)
    finally:
        over.set()
        for each in clients:
            each.join()
    log = run.logs()
    print(f"{asked[0]} requests during the rotation, {len(missed)} not checked")  # noqa: T201 - for `pytest -s`
    assert missed == []
    assert len(seen) >= 2  # the old one, and both
    assert all(f"step={step}" in log for step in ("prepare", "announced", "serve", "forget")), log
    assert len(re.findall("serving a certificate", log)) >= 4  # both replicas, twice


def test_an_expired_certificate_is_replaced_and_told(run: WebhookRun) -> None:
    replaced = run.logs().count("step=replace")
    run.put_certificate(datetime.now(UTC) - timedelta(days=2), timedelta(days=1))
    wait(lambda: None if run.logs().count("step=replace") > replaced else "not replaced", 60.0)
    assert "it expired at" in run.logs()
    run.until_refused(WRONG)
    assert "PRIVATE KEY" not in run.logs()


def test_a_bundle_that_was_taken_out_comes_back(run: WebhookRun) -> None:
    path = f"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/{run.name}"
    hooks = run.rest.get(path)
    for each in hooks["webhooks"]:
        each["clientConfig"].pop("caBundle")
    run.rest.update(path, hooks)
    wait(lambda: None if run.bundle() else "not there", 60.0)
    run.until_refused(WRONG)


def test_how_long_a_request_takes(run: WebhookRun) -> None:
    """Printed for docs/webhook.md; the bound here is that of the webhook itself."""
    away = {**claim('device.driver == "x.example"')}
    away["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = "x.example"
    for what, manifest in (("not sent", away), ("good", claim(HOPPER)), ("refused", WRONG)):
        took = milliseconds(run, manifest, 200)
        print(f"{what}: p50 {took[100]:.1f} ms, p99 {took[198]:.1f} ms")  # noqa: T201 - for `pytest -s`
        assert took[100] < 3000


def test_everything_passes_while_the_webhook_is_down(run: WebhookRun) -> None:
    """Last: it ends the webhook."""
    for process in run.webhooks:
        process.kill()
    began = time.monotonic()
    assert run.ask(WRONG) is None
    assert time.monotonic() - began < GIVEN_UP_S
