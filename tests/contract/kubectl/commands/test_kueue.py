"""Kueue's Workloads, ClusterQueues and Configuration as `kubectl dra doctor` and `kubectl dra quota` read them."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_driver.kubectl.capacity import configuration, quotas_of, stocks_of
from dra_driver.kubectl.commands import kubectl
from tests.fakes.scripted_http import Exchange, ScriptedServer

DRIVER = "gpu.nvidia.com"
GROUP = "/apis/kueue.x-k8s.io"
KUEUE = f"{GROUP}/v1beta2"
CONFIG = "/api/v1/namespaces/kueue-system/configmaps/kueue-manager-config"
UNMAPPED = "DeviceClass x is not mapped in DRA configuration"
QUOTA = "insufficient unused quota for gpu.nvidia.com/h100-memory in flavor gpus, 9984Mi more needed"
Answers = dict[str, Any]
Serve = Callable[[Answers], AbstractContextManager[None]]


def workload(number: int, message: str) -> dict[str, Any]:
    condition = {"type": "QuotaReserved", "status": "False", "message": message}
    metadata = {
        "name": f"job-{number}",
        "namespace": "team-a",
        "ownerReferences": [{"kind": "Job", "name": f"{number}"}],
    }
    return {"metadata": metadata, "spec": {"queueName": "gpus"}, "status": {"conditions": [condition]}}


def cluster_queue() -> dict[str, Any]:
    resources = [{"name": "cpu", "nominalQuota": "32"}, {"name": f"{DRIVER}/h100-memory", "nominalQuota": "80Gi"}]
    used = [{"name": "cpu", "total": "1"}, {"name": f"{DRIVER}/h100-memory", "total": "9984Mi"}]
    spec = {"resourceGroups": [{"coveredResources": [], "flavors": [{"name": "gpus", "resources": resources}]}]}
    status = {"flavorsReservation": [{"name": "gpus", "resources": used}]}
    return {"metadata": {"name": "gpus"}, "spec": spec, "status": status}


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Serve:
    """An API server with these answers; other lists are empty."""

    @contextmanager
    def started(answers: Answers) -> Iterator[None]:
        def answer(exchange: Exchange) -> None:
            path = exchange.seen.path
            found = answers.get(path, {"items": [], "metadata": {}})
            if isinstance(found, int):
                exchange.json({"kind": "Status", "code": found, "reason": "Forbidden", "message": "no"}, found)
            else:
                exchange.json({"items": found, "metadata": {}} if isinstance(found, list) else found)

        with ScriptedServer(answer) as server:
            (tmp_path / "config").write_text(server.kubeconfig())
            monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
            yield

    return started


@pytest.fixture
def slices(capsys: pytest.CaptureFixture[str]) -> list[Any]:
    assert kubectl.main(["node-template", "1xh100-sxm5-80gb", "--node", "a", "-o", "json"]) == 0
    found: list[Any] = json.loads(capsys.readouterr().out)["items"]
    return found


def of_kueue(capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    kubectl.main(["doctor", "-o", "json"])
    printed = capsys.readouterr()
    findings = json.loads(printed.out)["items"]
    return [f"{each['seen']} -> {each['fix']}" for each in findings if each["check"] == "kueue"], printed.err


def test_doctor_counts_workloads_that_free_quota_does_not_help(
    serve: Serve, capsys: pytest.CaptureFixture[str]
) -> None:
    """Thousands of them are one line, within ten seconds of CPU time, the server's included."""
    waiting = [*(workload(number, UNMAPPED) for number in range(5000)), workload(5001, QUOTA)]
    with serve({f"{KUEUE}/workloads": waiting}):
        began = time.process_time()
        found, _ = of_kueue(capsys)
        assert time.process_time() - began < 10.0
    (line,) = found
    assert "workload/team-a/job-0 and 4999 more" in line
    assert UNMAPPED in line
    assert "kubectl dra kueue queues" in line


def test_doctor_compares_mappings_with_the_slices(
    serve: Serve, slices: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    quotas = [quota for stock in stocks_of(slices, DRIVER) for quota in quotas_of(stock, DRIVER)]
    config = configuration(quotas, DRIVER)
    mappings: Any = config["resources"]
    foreign = {"name": "other.example.com/things", "deviceClassNames": ["things"]}
    mappings["deviceClassMappings"].append(foreign)

    def findings() -> list[str]:
        data = {"data": {"controller_manager_config.yaml": yaml.safe_dump(config)}}
        with serve({"/apis/resource.k8s.io/v1/resourceslices": slices, CONFIG: data}):
            return of_kueue(capsys)[0]

    assert findings() == []
    mappings["deviceClassMappings"][0]["sources"][0]["counter"]["name"] = "multiprocessors"
    mappings["deviceClassMappings"][1]["name"] = f"{DRIVER}/a100-memory"
    (line,) = findings()
    assert f"without a mapping: {quotas[1].name}" in line
    assert f"of no published device: {DRIVER}/a100-memory" in line
    assert f"with other classes or sources: {quotas[0].name}" in line
    assert "restart Kueue." in line
    mappings["deviceClassMappings"] = [foreign]
    assert findings() == [], "mappings of other drivers are not ours"


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        ({f"{KUEUE}/workloads": 403}, "note: Kueue is not checked: this user may not list workloads.kueue.x-k8s.io"),
        ({f"{KUEUE}/workloads": 403, CONFIG: 403, GROUP: 404}, ""),
        ({CONFIG: {"data": {"config": "a: [b"}}}, "note: Kueue is not checked:"),
        ({CONFIG: {"data": {"config": "just text"}}}, "Configuration is of type str, not dict\n"),
        ({CONFIG: {"data": {"config": "resources: {deviceClassMappings: 3}"}}}, "deviceClassMappings is of type int"),
        (
            {CONFIG: {"data": {"config": "resources: {deviceClassMappings: [a]}"}}},
            "Mappings[] is of type str, not dict",
        ),
        ({f"{KUEUE}/workloads": 404}, ""),
        ({CONFIG: 404}, "no ConfigMap kueue-manager-config in namespace kueue-system; see `kubectl dra kueue config`"),
    ],
)
def test_doctor_goes_on_without_kueue(
    serve: Serve, slices: list[Any], capsys: pytest.CaptureFixture[str], answers: Answers, note: str
) -> None:
    with serve({"/apis/resource.k8s.io/v1/resourceslices": slices, **answers}):
        found, said = of_kueue(capsys)
    assert (found, note in said, "Kueue" in said) == ([], True, bool(note))


def test_doctor_goes_on_with_an_invalid_quantity_in_a_slice(
    serve: Serve, slices: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (counters,) = (entry["counters"] for item in slices for entry in item["spec"].get("sharedCounters") or ())
    counters["memory"]["value"] = "much"
    mapping = {"resources": {"deviceClassMappings": [{"name": f"{DRIVER}/h100-memory"}]}}
    data = {"data": {"config": yaml.safe_dump(mapping)}}
    with serve({"/apis/resource.k8s.io/v1/resourceslices": slices, CONFIG: data}):
        found, said = of_kueue(capsys)
    assert (found, "note: Kueue is not checked:" in said, "much" in said) == ([], True, True)


def test_quota_shows_the_reserved_part_of_a_cluster_queue(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    unused = {**cluster_queue(), "metadata": {"name": "new"}, "status": {}}
    with serve({f"{KUEUE}/clusterqueues": [cluster_queue(), unused]}):
        assert kubectl.main(["quota", "-A"]) == 0
    lines = [line.split()[1:] for line in capsys.readouterr().out.splitlines()]
    assert ["clusterqueue/gpus", f"{DRIVER}/h100-memory", "80.0", "GiB", "9.8", "GiB", "70.2", "GiB", "<none>"] in lines
    assert ["clusterqueue/new", f"{DRIVER}/h100-memory", "80.0", "GiB", "?", "?", "<none>"] in lines


@pytest.mark.parametrize("unreadable", [0, 1])
def test_quota_shows_an_unreadable_amount_as_unknown(
    serve: Serve, capsys: pytest.CaptureFixture[str], unreadable: int
) -> None:
    """The sum of two flavors is unknown too, whichever comes first."""
    queue = cluster_queue()
    flavors = queue["spec"]["resourceGroups"][0]["flavors"]
    flavors += json.loads(json.dumps(flavors))
    flavors[unreadable]["resources"][1]["nominalQuota"] = "much"
    with serve({f"{KUEUE}/clusterqueues": [queue]}):
        assert kubectl.main(["quota", "-A"]) == 0
    (line,) = (line.split()[1:] for line in capsys.readouterr().out.splitlines() if "clusterqueue/gpus" in line)
    assert line == ["clusterqueue/gpus", f"{DRIVER}/h100-memory", "?", "9.8", "GiB", "?", "<none>"]


def test_quota_names_a_cluster_queue_by_its_kind(serve: Serve, capsys: pytest.CaptureFixture[str]) -> None:
    quota = {
        "metadata": {"name": "gpus", "namespace": "team-a"},
        "spec": {"hard": {"count/resourceclaims.resource.k8s.io": "4"}},
    }
    with serve({f"{KUEUE}/clusterqueues": [cluster_queue()], "/api/v1/resourcequotas": [quota]}):
        assert kubectl.main(["quota", "-A", "-o", "name"]) == 0
    assert capsys.readouterr().out.splitlines() == ["resourcequota/gpus", "clusterqueue.kueue.x-k8s.io/gpus"]


REFUSED = "this user may not list {}.kueue.x-k8s.io"


@pytest.mark.parametrize(
    ("status", "group", "note"),
    [
        (403, 200, f"note: quotas of Kueue are not listed: {REFUSED.format('clusterqueues')}"),
        (404, 404, ""),
        (403, 404, ""),
    ],
)
def test_quota_goes_on_without_kueue(
    serve: Serve, capsys: pytest.CaptureFixture[str], status: int, group: int, note: str
) -> None:
    """RBAC refuses a tenant's list although the cluster has no Kueue."""
    with serve({f"{KUEUE}/clusterqueues": status, **({GROUP: group} if group == 404 else {})}):
        kubectl.main(["quota", "-A"])
    said = capsys.readouterr().err
    assert (note in said, "Kueue" in said) == (True, bool(note))


@pytest.mark.parametrize(("more", "named"), [({}, True), ({GROUP: 404}, False)])
def test_explain_names_a_missing_right_only_with_kueue(
    serve: Serve, capsys: pytest.CaptureFixture[str], more: Answers, named: bool
) -> None:
    pod = {
        "metadata": {"name": "train", "namespace": "default", "uid": "u"},
        "spec": {
            "containers": [{"name": "main"}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "gpus"}],
        },
    }
    refused = {f"{KUEUE}/namespaces/default/workloads": 403}
    version = {"gitVersion": "v1.36.2", "major": "1", "minor": "36"}
    with serve({"/version": version, "/api/v1/pods": [pod], **refused, **more}):
        kubectl.main(["explain", "pod/train", "-n", "default"])
    said = " ".join("".join(capsys.readouterr()).split())
    assert "default/train" in said
    assert (REFUSED.format("workloads") in said, "kueue" in said) == (named, named)
