"""`kubectl dra usage`, `idle` and `quota` over HTTP: exporters through pods/proxy, and a Prometheus that is
away, slow or lies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from dra_driver.hardware.gpu.simulated.spec import parse_groups
from dra_driver.kubectl.commands import kubectl
from dra_driver.kubectl.commands.usage_source import Prometheus, PrometheusError
from dra_driver.kubectl.usage.device_use import decode
from tests.contract.node.exporter.test_process import GIB, Node, used
from tests.fakes.published import built, published
from tests.fakes.scripted_http import Exchange, ScriptedServer
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.harness.shown import holds

HOSTILE = "\x1b[2J=cmd"
PROXY = "/api/v1/namespaces/dra-driver/pods/exporter-a:8082/proxy/usage"
EXPORTER = {"metadata": {"name": "exporter-a", "namespace": "dra-driver"}, "spec": {"nodeName": "gpu-a"}}


def device(name: str, used: float | None, granted: float, **more: Any) -> dict[str, Any]:
    amount = None if used is None else int(used * GIB)
    values = {"usedBytes": amount, "peakBytes": amount, "grantBytes": int(granted * GIB), "percent": 50, "processes": 1}
    return {"request": "gpu", "device": name, "share": "", "idleSeconds": 0, **values, **more}


def claim_use(namespace: str, name: str, *devices: dict[str, Any]) -> dict[str, Any]:
    return {"uid": name, "namespace": namespace, "name": name, "pods": ["p"], "devices": list(devices)}


USAGE: dict[str, Any] = {
    "version": 1,
    "node": "gpu-a",
    "time": "2026-11-22T21:00:00Z",
    "windowSeconds": 3600,
    "knows": {"processes": True, "utilisation": "MIG without GPM"},
    "claims": [
        claim_use("team-a", "train", device("gpu-0", 60, 80)),
        claim_use("team-a", "rest", device("gpu-1", 0, 80, percent=None, processes=0, idleSeconds=3600)),
        claim_use("team-b", HOSTILE, device("gpu-2", 6, 80, energyJoules=3.6e6, estimated=True)),
        claim_use("team-b", "hidden", device("gpu-3", None, 80, percent=None, processes=None, idleSeconds=None)),
    ],
}
MIG = {
    "name": "gpu-2-mig-1g10gb-19-0",
    "attributes": {"profile": {"string": "1g.10gb"}, "productName": {"string": "H100"}},
    "capacity": {"memory": {"value": "10Gi"}},
}
GPU = {"name": "gpu-0", "attributes": {"productName": {"string": "H100"}}, "capacity": {"memory": {"value": "80Gi"}}}
SLICE = {
    "metadata": {"name": "s"},
    "spec": {"driver": "gpu.nvidia.com", "nodeName": "gpu-a", "pool": {"name": "gpu-a"}, "devices": [GPU, MIG]},
}
CLAIM: dict[str, Any] = {
    "metadata": {"name": "train", "namespace": "team-a", "labels": {"team": "ml"}},
    "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}]}},
    "status": {
        "allocation": {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.nvidia.com", "pool": "gpu-a", "device": "gpu-0"}]}
        }
    },
}
QUOTA: dict[str, Any] = {
    "metadata": {"name": "gpus", "namespace": "team-a"},
    "spec": {"hard": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "2"}},
    "status": {"used": {"gpu.nvidia.com.deviceclass.resource.k8s.io/devices": "1"}},
}

USER = {"resource": "pods", "name": "p", "uid": "u1"}


class Stage:
    """An API server and a Prometheus on one port."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Any]] = {
            "/api/v1/namespaces/dra-driver/pods": [EXPORTER],
            "/apis/resource.k8s.io/v1/resourceslices": [SLICE],
            "/apis/resource.k8s.io/v1/resourceclaims": [CLAIM],
            "/apis/resource.k8s.io/v1/deviceclasses": [],
            "/api/v1/resourcequotas": [QUOTA],
        }
        self.usage: tuple[int, Any] = (200, USAGE)
        self.said: dict[str, str] = {}
        """Values by a part of the question."""
        self.prometheus: tuple[int, bytes] | None = None
        self.asked: list[str] = []

    def answer(self, exchange: Exchange) -> None:
        path = unquote(exchange.seen.path)
        if path == "/api/v1/query":
            self._query(exchange, exchange.seen.body["query"])
        elif path == PROXY:
            exchange.json(self.usage[1], self.usage[0])
        elif path in self.lists:
            exchange.json({"kind": "List", "metadata": {}, "items": self.lists[path]})
        else:
            exchange.json({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}, 404)

    def _query(self, exchange: Exchange, question: str) -> None:
        self.asked.append(question)
        if self.prometheus is not None:
            status, data = self.prometheus
            exchange.raw(data, status, {"Location": "/api/v1/elsewhere"} if status == 302 else None)
            return
        value = next((value for part, value in self.said.items() if part in question), None)
        labels = {"namespace": "team-a", "claim": "train", "node": "gpu-a", "device": "gpu-0", "share": "", "pod": "p"}
        labels |= {"model": "H100", "estimated": "false", "request": "gpu"}
        result = [] if value is None else [{"metric": labels, "value": [0, value]}]
        exchange.json({"status": "success", "data": {"resultType": "vector", "result": result}})


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stage, str]]:
    stage = Stage()
    with ScriptedServer(stage.answer) as found:
        (tmp_path / "config").write_text(found.kubeconfig())
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.chdir(tmp_path)
        yield stage, found.url


Printed = pytest.CaptureFixture[str]
Served = tuple[Stage, str]


@pytest.mark.usefixtures("server")
def test_usage_reports_source_and_gaps(capsys: Printed) -> None:
    assert kubectl.main(["usage", "-A"]) == 0
    out, err = capsys.readouterr()
    assert "from 1 of 1 exporters, window 1h" in err
    assert "cannot measure utilisation: MIG without GPM" in err
    lines = {line.split()[1]: line.split() for line in out.splitlines()}
    assert lines["train"][3:9] == ["gpu-0", "60.0", "GiB", "80.0", "GiB", "50%"]
    assert lines["hidden"][4] == "?"
    assert "\x1b" not in out


HELD: dict[str, tuple[int, list[dict[str, Any]]]] = {
    "team": (
        36,
        [
            claim_use(
                "team", "alone-whole-vr7kr",
                device("gpu-2", 30, 79.6, percent=90, processes=3, energyJoules=1e4),
            ),
            claim_use(
                "team", "cut-slice-zr4kz",
                device("gpu-1-mig-1g10gb-19-6", 5, 9.75, percent=70, energyJoules=8.3e3, estimated=True),
            ),
            claim_use("team", "pair-left-chnlw", device(
                "gpu-0", 4, 12, percent=20, share="a", energyJoules=2.5e3, estimated=True)),
            claim_use("team", "pair-right-bxsn9", device(
                "gpu-0", 6, 12, percent=40, share="b", processes=2, energyJoules=4.7e3, estimated=True)),
        ],
    ),
}  # fmt: skip
"""Exporter reports of the examples in the docs: window and claims, by namespace."""


@pytest.mark.parametrize(
    ("page", "command", "namespace"),
    [
        ("docs/usage-cost.md", "kubectl dra usage -n team", "team"),
        ("docs/usage-cost.md", "kubectl dra idle -n team", "team"),
    ],
)
def test_pages_show_what_is_printed(page: str, command: str, namespace: str, server: Served, capsys: Printed) -> None:
    window, claims = HELD[namespace]
    for each in claims:
        each["pods"] = [each["name"].split("-")[0]]
    server[0].usage = (
        200,
        {**USAGE, "knows": {"processes": True, "utilisation": True}, "claims": claims, "windowSeconds": window},
    )
    boards = SimulatedBackend(parse_groups("3xh100-sxm5-80gb", "gpu-a")).snapshot()
    server[0].lists["/apis/resource.k8s.io/v1/resourceslices"] = published(built(boards), on="gpu-a")
    server[0].lists[f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"] = []
    assert kubectl.main(command.split()[2:]) == 0
    out, err = capsys.readouterr()
    holds(page, command, err + out)


def test_csv_has_no_formulas_and_no_commands_of_terminals(server: Served, capsys: Printed) -> None:
    server[0].usage = (200, {**USAGE, "claims": [{**USAGE["claims"][2], "name": "=cmd|calc"}]})
    assert kubectl.main(["usage", "-A", "-o", "csv"]) == 0
    out = capsys.readouterr().out
    assert ",'=cmd|calc," in out
    assert out.splitlines()[0].startswith("namespace,claim,node,")


@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("by", ["claim", "pod", "namespace", "node"])
@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_sums_are_printed_in_every_form(by: str, output: str, capsys: Printed) -> None:
    assert kubectl.main(["usage", "-A", "--by", by, "-o", output]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    if output == "json":
        document = json.loads(out)
        assert (document["kind"], document["source"], document["by"]) == ("UsageSumList", "1 of 1 exporters", by)
        assert document["items"]


def test_use_is_summed_by_a_label_of_claims_and_their_pods(server: Served, capsys: Printed) -> None:
    lists = server[0].lists
    rest = {"metadata": {"name": "rest", "namespace": "team-a"}, "spec": {}, "status": {"reservedFor": [USER]}}
    lists["/apis/resource.k8s.io/v1/resourceclaims"].append(rest)
    lists["/api/v1/pods"] = [{"metadata": {"name": "p", "uid": "u1", "labels": {"team": "web"}}, "spec": {}}]
    assert kubectl.main(["usage", "-A", "--by", "label:team", "-o", "csv"]) == 0
    lines = [line.rsplit(",", line.count(",") - 2)[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["team,claimCount,deviceCount", "(the claim is gone),2,2", "ml,1,1", "web,1,1"]
    del lists["/api/v1/pods"]
    assert kubectl.main(["usage", "-A", "--by", "label:team"]) == 0
    out, err = capsys.readouterr()
    assert "cannot read labels of pods" in err
    assert "(no such label)" in out
    assert kubectl.main(["usage", "--by", "label:"]) == 2


def test_unreadable_claim_is_not_reported_as_deleted(server: Served, capsys: Printed) -> None:
    lists = server[0].lists
    bare = {**CLAIM, "status": {"reservedFor": [{"resource": "pods", "name": "p"}]}}
    rest = {"metadata": {"name": "rest", "namespace": "team-a"}, "status": 5}
    lists["/apis/resource.k8s.io/v1/resourceclaims"] = [bare, rest]
    lists["/api/v1/pods"] = [{"metadata": {"name": "p", "uid": 5}}]
    assert kubectl.main(["usage", "-A", "--by", "label:team", "-o", "csv"]) == 0
    out, err = capsys.readouterr()
    lines = [line.split(",")[:2] for line in out.splitlines()[1:]]
    assert lines == [["(the claim is gone or cannot be read)", "3"], ["ml", "1"]]
    assert "ResourceClaim team-a/rest" in err
    assert "note: Pod p cannot be read: metadata.uid: " in err


def test_an_exporter_whose_pod_cannot_be_read_is_a_gap_and_counts(server: Served, capsys: Printed) -> None:
    pods = server[0].lists["/api/v1/namespaces/dra-driver/pods"]
    pods += [{"metadata": {"name": "b"}, "spec": 5}]
    pods[0] = {**EXPORTER, "status": {"conditions": [{}]}}
    assert kubectl.main(["usage"]) == 0
    err = capsys.readouterr().err
    assert "from 1 of 2 exporters" in err
    assert "not read: exporter pod b cannot be read: spec: " in err
    del pods[0]
    assert kubectl.main(["usage"]) == 1
    assert "none of 1 exporters returned a valid response; exporter pod b cannot be read" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_incomplete_sum_and_mean_are_marked(capsys: Printed) -> None:
    assert kubectl.main(["usage", "--by", "namespace", "-n", "team-b"]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert ">=6.0 GiB" in line
    assert " 50%? " in line


def refusal(code: int, reason: str, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "code": code, "reason": reason, "message": message}


def test_silent_exporter_is_a_gap(server: Served, capsys: Printed) -> None:
    other = {"metadata": {"name": "exporter-b"}, "spec": {"nodeName": "gpu-b"}}
    server[0].lists["/api/v1/namespaces/dra-driver/pods"].append(other)
    assert kubectl.main(["usage", "-A"]) == 0
    out, err = capsys.readouterr()
    assert "from 1 of 2 exporters" in err
    assert "node gpu-b: " in err
    assert "train" in out


def test_missing_exporters_are_an_error(server: Served, capsys: Printed) -> None:
    server[0].usage = refusal(403, "Forbidden", 'User "u" cannot get pods/proxy')
    assert kubectl.main(["usage"]) == 1
    assert "kubectl auth can-i get pods --subresource proxy -n dra-driver" in capsys.readouterr().err
    server[0].usage = refusal(503, "ServiceUnavailable", "connection refused")
    assert kubectl.main(["usage"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "no usage data: none of 1 exporters" in err
    assert "connection refused" in err
    assert "auth can-i" not in err, "no right is missing"
    server[0].lists["/api/v1/namespaces/dra-driver/pods"] = []
    assert kubectl.main(["usage"]) == 2
    assert "exporter.enabled" in capsys.readouterr().err


@pytest.mark.usefixtures("server")
def test_idle_lists_idle_oversize_and_unknown_claims(capsys: Printed) -> None:
    assert kubectl.main(["idle", "-A", "--idle-for", "30m"]) == 0
    out = capsys.readouterr().out
    found = {line.split()[1]: line for line in out.splitlines()[1:]}
    assert "train" not in found
    assert found["rest"].endswith(" idle")
    assert "would fit 1g.10gb or a share of 8.0 GiB" in out
    assert found["hidden"].endswith(" unknown")
    assert kubectl.main(["idle", "-A", "--idle-for", "2h", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [item["finding"] for item in document["items"]] == ["oversize", "unknown"]


@pytest.mark.parametrize(
    ("exporter", "recorded"),
    [
        ((None, None, 40), {}),
        ((6, None, 6), {"dra_claim_memory_used": str(6 * GIB)}),
        ((None, 80, None), {"max_over_time(sum": str(20 * GIB)}),
    ],
)
@pytest.mark.parametrize("has_prometheus", [False, True])
def test_commands_agree_about_a_claim(
    server: Served,
    capsys: Printed,
    exporter: tuple[float | None, ...],
    recorded: dict[str, str],
    has_prometheus: bool,
) -> None:
    stage, url = server
    used, granted, peak = (None if each is None else each * GIB for each in exporter)
    here = device("gpu-0", 0, 0, usedBytes=used, grantBytes=granted, peakBytes=peak, processes=None)
    stage.usage = (200, {**USAGE, "claims": [{**claim_use("team-a", "train", here), "pods": ["stale"]}]})
    stage.said = {"count_over_time": "7200", **recorded}
    users = [USER, {"resource": "workloads", "name": "w"}]
    stage.lists["/apis/resource.k8s.io/v1/resourceclaims"] = [
        {**CLAIM, "status": {**CLAIM["status"], "reservedFor": users}}
    ]
    source = ["--prometheus", url, "--window", "2h"] if has_prometheus else []

    def told(*command: str) -> dict[str, Any]:
        assert kubectl.main([*command, "-A", "-o", "json"]) == 0
        (found,) = json.loads(capsys.readouterr().out)["items"]
        assert isinstance(found, dict)
        return found

    use, idle, claim = told("usage", *source), told("idle", "--all", *source), told("claims")
    assert use["pods"] == claim["pods"] == idle["pods"] == ["p", "workloads/w"]
    assert (use["grantedBytes"], use["peakBytes"]) == (idle["memoryBytes"], idle["peakBytes"])
    assert use["grantedBytes"] == 80 * GIB, "as published, where the source does not report it"
    assert (idle["finding"] == "oversize") <= (use["usedBytes"] is not None)
    if not has_prometheus and used is None:
        assert use["peakBytes"] is None


def test_history_comes_from_prometheus(server: Served, capsys: Printed) -> None:
    stage, url = server
    stage.said = {"count_over_time": "7200", "energy": "3.6e6", "max_over_time(sum": str(GIB)}
    assert kubectl.main(["usage", "-A", "--prometheus", url, "--window", "2h"]) == 0
    out, err = capsys.readouterr()
    assert f"from Prometheus at {url}, window 2h" in err
    assert "train" in out
    assert all("7200s" in question or "[" not in question for question in stage.asked)
    assert kubectl.main(["usage", "-A", "--prometheus", url, "--window", "2h", "-o", "json"]) == 0
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["observedSeconds"], item["energyJoules"]) == (7200, 3.6e6)


def test_quota_lists_rest_idle_and_unlimited_devices(server: Served, capsys: Printed) -> None:
    assert kubectl.main(["quota", "-A", "--idle"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["team-a", "gpus", "gpu.nvidia.com", "2", "1", "1", "0"]
    del server[0].lists["/api/v1/resourcequotas"]
    assert kubectl.main(["quota", "-A"]) == 0
    out, err = capsys.readouterr()
    assert "no limit" in out
    assert "does not support ResourceQuotas" in err


def test_invalid_quota_entries_do_not_hide_others(server: Served, capsys: Printed) -> None:
    lists = server[0].lists
    odd = {"hard": {**QUOTA["spec"]["hard"], "x": [], "cpu": 1.5}}
    lists["/api/v1/resourcequotas"] = [{**QUOTA, "spec": odd}]
    bare = {**CLAIM["status"], "reservedFor": [{"resource": "pods"}]}
    other = {**CLAIM, "metadata": {"name": "o", "namespace": "team-c"}, "status": bare}
    lists["/apis/resource.k8s.io/v1/resourceclaims"] = [CLAIM, other]
    assert kubectl.main(["quota", "-A", "-o", "csv"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert lines == [
        "team-a,gpus,gpu.nvidia.com.deviceclass.resource.k8s.io/devices,gpu.nvidia.com,2,1,1,",
        "team-c,,,gpu.nvidia.com,,1,,",
    ]
    for path in ("/api/v1/resourcequotas", "/apis/resource.k8s.io/v1/resourceclaims"):
        lists[path].append({"metadata": {"name": "bad", "namespace": "team-c"}, "spec": 5})
    lists["/apis/resource.k8s.io/v1/deviceclasses"] = [{"metadata": {"name": "bad"}, "spec": 5}]
    assert kubectl.main(["quota", "-A", "-o", "csv"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == lines[:1]
    assert "unlimited classes are not listed" in err
    for name in ("ResourceQuota team-c/bad", "ResourceClaim team-c/bad", "DeviceClass bad"):
        assert f"note: {name} cannot be read: spec: " in err
    lists["/api/v1/resourcequotas"] = [{"spec": 5}]
    assert kubectl.main(["quota", "-A"]) == 0
    assert "no devices in use" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((200, b"<html>"), "not JSON"),
        ((200, b"[" * 50_000), "not JSON"),
        ((200, b'{"status": "success", "data": {"resultType": "matrix", "result": []}}'), "not a vector"),
        ((422, b'{"status": "error", "error": "bad\x1b[2J"}'), "answered 422: "),
        ((302, b""), "answered 302"),
    ],
)
def test_a_prometheus_that_answers_something_else_is_named(
    server: Served, capsys: Printed, answer: tuple[int, bytes], said: str
) -> None:
    stage, url = server
    stage.prometheus = answer
    assert kubectl.main(["usage", "--prometheus", url]) == 1
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err
    assert len(stage.asked) == 1, "a redirect is not followed"


def test_a_prometheus_that_is_away_is_not_replaced_by_another_source(server: Served, capsys: Printed) -> None:
    del server
    assert kubectl.main(["usage", "--prometheus", "http://127.0.0.1:1"]) == 1
    assert "--prometheus" in capsys.readouterr().err


def test_slow_prometheus_times_out(server: Served) -> None:
    stage, url = server
    stage.prometheus = (200, b" " * 4096)
    with pytest.raises(PrometheusError):
        Prometheus(url, timeout_s=1e-6).ask("up")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    found = Node(tmp_path)
    yield found
    found.kubelet.stop()
    if found.process is not None:
        found.process.kill()


def has_looked_twice(node: Node) -> bool:
    answer = node.usage()
    return set(used(answer)) == {"claim-a", "claim-b"} and all(use.energy_joules for use in decode(answer).uses)


def test_each_value_of_a_claim_arrives(node: Node) -> None:
    node.exporter().wait_for(lambda: has_looked_twice(node))
    told = decode(node.usage())
    first, second = told.uses
    assert (first.namespace, first.claim, first.node, first.device) == ("team", "claim-a", "node-a", "gpu-0")
    assert (first.request, first.share, first.pods) == ("gpu", "sa", ("pod-a",))
    assert (first.used_bytes, first.granted_bytes, first.processes) == (4 * GIB, 20 * GIB, 1)
    assert (second.used_bytes, second.peak_bytes, second.sm_ratio) == (30 * GIB, 30 * GIB, 0.2)
    assert second.idle_s == 0.0
    assert second.energy_estimated
    assert told.window_s >= 0
    assert told.gaps == []
