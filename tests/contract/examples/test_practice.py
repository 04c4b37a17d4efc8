"""The examples from practice against the fields of Kubernetes 1.36, and against this project's own checks.

``tests/golden/openapi/practice.json`` is distilled from its OpenAPI document (scripts/distill_openapi.py).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.core.quantity import Quantity
from dra_driver.kubectl.commands import kubectl
from tests.fakes.practice import PRACTICE, ROOT, Wire, needed_api, objects_of
from tests.prometheus.dashboards import adapter_query

GOLDEN = json.loads((ROOT / "tests/golden/openapi/practice.json").read_text(encoding="utf-8"))
SCALARS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "Quantity": (str, int),
    "IntOrString": (int, str),
}


def misfits(value: Any, type_text: str, path: str) -> Iterator[str]:
    """Fields that Kubernetes does not know, and values of other types."""
    wanted = type_text.partition(" ")[0]
    if wanted[:2] in ("[]", "{}"):
        if not isinstance(value, list if wanted[:2] == "[]" else dict):
            yield f"{path}: {type(value).__name__}, expected {wanted}"
            return
        items = enumerate(value) if isinstance(value, list) else value.items()
        for key, item in items:
            yield from misfits(item, wanted[2:], f"{path}[{key}]")
    elif wanted in SCALARS:
        if not isinstance(value, SCALARS[wanted]) or (isinstance(value, bool) and wanted != "boolean"):
            yield f"{path}: {value!r}, expected {wanted}"
        elif wanted == "Quantity":
            Quantity.parse(str(value))
    elif wanted != "any":
        fields = GOLDEN["types"][wanted]
        for name, item in value.items():
            if name in fields:
                yield from misfits(item, fields[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}: no such field"


def of_object(item: Wire) -> list[str]:
    return list(misfits(item, GOLDEN["kinds"][f"{item['apiVersion']}/{item['kind']}"], item["kind"]))


def test_there_are_examples() -> None:
    """With a wrong path, the tests below would have no parameters and pass."""
    assert len(PRACTICE) >= 9


@pytest.mark.parametrize("path", PRACTICE, ids=lambda path: path.stem)
def test_every_field_is_one_of_kubernetes(path: Path) -> None:
    """A field that the API server would drop is a mistake that is seen when the workload does not do what it should."""
    assert [problem for item in objects_of(path) for problem in of_object(item)] == []


def test_a_wrong_field_is_found() -> None:
    """The check above can fail."""
    [quota, _] = objects_of(ROOT / "examples/practice/quota-on-classes.yaml")
    quota["spec"]["hart"] = quota["spec"].pop("hard")
    assert of_object(quota) == ["ResourceQuota.spec.hart: no such field"]
    quota["spec"] = {"hard": {"a": ["2"]}}
    assert of_object(quota) == ["ResourceQuota.spec.hard[a]: ['2'], expected Quantity"]


def test_the_examples_have_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """Not even a warning."""
    assert kubectl.main(["lint", "--strict", str(ROOT / "examples" / "practice")]) == 0, capsys.readouterr().out


def test_workload_examples_have_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    """The pod templates inside of the operators' objects, with the claims that they name."""
    assert kubectl.main(["lint", "--strict", str(ROOT / "examples" / "workloads")]) == 0, capsys.readouterr().out


def test_only_the_pod_group_needs_more_than_the_defaults() -> None:
    """What needs a gate says so in a line that the tests on a real cluster read."""
    assert {path.stem: needed_api(path) for path in PRACTICE if needed_api(path)} == {
        "podgroup-shared-claim": "scheduling.k8s.io/v1alpha2"
    }


def test_the_autoscaler_asks_for_the_metric_that_the_adapter_makes_of_ours() -> None:
    """Three names have to agree: the exporter's series, the adapter's metric, and the autoscaler's."""
    objects = {item["kind"]: item for item in objects_of(ROOT / "examples/practice/triton-autoscaled-share.yaml")}
    (rule,) = yaml.safe_load(objects["ConfigMap"]["data"]["config.yaml"])["rules"]
    (metric,) = objects["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] == rule["name"]["as"]
    series = rule["seriesQuery"].partition("{")[0]
    assert f"| `{series}` | gauge |" in (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    resources = {label: item["resource"] for label, item in rule["resources"]["overrides"].items()}
    assert resources == {"namespace": "namespace", "pod": "pod"}
    assert adapter_query(rule, "team-a", ["train-0"]) == (
        "avg by (pod) (sum by (pod, claim, request, device, share) "
        '(dra_claim_sm_utilization_ratio{namespace="team-a",pod=~"train-0"}))'
    )
