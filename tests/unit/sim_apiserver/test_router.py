"""Requests without a web server: paths, verbs, discovery, OpenAPI, logs and watches."""

import json
from typing import Any

import pytest

from dra_driver.core.errors import KubernetesApiError
from dra_driver.sim.apiserver.jsonvalue import utc_now
from dra_driver.sim.apiserver.kinds import ALL_KINDS, CONFIG_MAPS, PODS
from dra_driver.sim.apiserver.messages import ApiRequest, Reply, target_of
from dra_driver.sim.apiserver.pod_subresources import LogPlan, log_text
from dra_driver.sim.apiserver.router import Router
from dra_driver.sim.apiserver.store import Store
from tests.unit.sim_apiserver.builders import config_map, pod

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"


def _ask(store: Store, method: str, path: str, body: Any = None, **options: Any) -> Any:
    data = b"" if body is None else json.dumps(body).encode()
    request = ApiRequest(method=method, path=path, body=data, **options)
    return Router(store, utc_now).answer(request)


def _refusal(*asked: Any, **options: Any) -> int | None:
    with pytest.raises(KubernetesApiError) as refused:
        _ask(*asked, **options)
    return refused.value.status


def _json(reply: Any) -> Any:
    assert isinstance(reply, Reply)
    return json.loads(reply.body)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/v2/pods",
        "/api/v1/pods/p",
        "/api/v1/namespaces/a/nodes",
        "/api/v1/namespaces/a/pods/p/exec",
        "/api/v1/namespaces/a/pods/p/log/x",
        "/apis/resource.k8s.io/v1beta1/resourceslices",
    ],
)
def test_paths_that_name_nothing(path: str) -> None:
    assert target_of(path) is None


def test_discovery_and_openapi_cover_every_kind(store: Store) -> None:
    index = _json(_ask(store, "GET", "/openapi/v3"))["paths"]
    for kind in ALL_KINDS:
        root = f"apis/{kind.group}/{kind.version}" if kind.group else "api/v1"
        assert kind.plural in {item["name"] for item in _json(_ask(store, "GET", f"/{root}"))["resources"]}
        document = _json(_ask(store, "GET", index[root]["serverRelativeURL"].partition("?")[0]))
        patches = [path["patch"] for path in document["paths"].values()]
        mine = [item for item in patches if item["x-kubernetes-group-version-kind"]["kind"] == kind.kind]
        assert "fieldValidation" in {parameter["name"] for parameter in mine[0]["parameters"]}


def test_references_in_openapi_resolve() -> None:
    text = json.dumps(_json(_ask(Store(), "GET", "/openapi/v3/api/v1")))
    schemas = set(json.loads(text)["components"]["schemas"])
    refs = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert refs <= schemas


def test_lists_are_always_complete(store: Store) -> None:
    store.create(CONFIG_MAPS, config_map("a"))
    listed = _json(_ask(store, "GET", "/api/v1/configmaps", query={"limit": "1"}))
    assert "continue" not in listed["metadata"]
    assert _refusal(store, "GET", "/api/v1/configmaps", query={"continue": "abc"}) == 410


def test_logs_are_cut_as_asked(store: Store) -> None:
    store.create(PODS, pod(containers=[{"name": "a", "image": "i"}, {"name": "b", "image": "i"}]))
    store.logs.append("default", "p", "a", "one\ntwo\nthree\n")
    path = "/api/v1/namespaces/default/pods/p/log"
    plan = _ask(store, "GET", path, query={"container": "a", "tailLines": "2", "limitBytes": "6"})
    assert isinstance(plan, LogPlan)
    assert log_text(store.logs.read("default", "p", "a"), plan, utc_now) == b"two\nth"
    for query, text in (
        ({}, "a container name must be specified for pod p, choose one of: [a b]"),
        ({"container": "c"}, "container c is not valid for pod p"),
        ({"container": "a", "tailLines": "-1"}, "tailLines must be a number"),
    ):
        with pytest.raises(KubernetesApiError, match=text.replace("[", r"\[")):
            _ask(store, "GET", path, query=query)


def test_a_container_that_waits_has_no_log_yet(store: Store) -> None:
    store.create(PODS, pod())
    waiting = [{"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    status = {"metadata": {"name": "p", "namespace": "default"}, "status": {"containerStatuses": waiting}}
    store.update_status(PODS, status)
    with pytest.raises(KubernetesApiError, match="is waiting to start: ContainerCreating"):
        _ask(store, "GET", "/api/v1/namespaces/default/pods/p/log")


def test_bodies_are_read_by_their_media_type() -> None:
    yaml_body = ApiRequest(method="POST", path="/", headers={"content-type": "application/yaml"}, body=b"a: {b: 1}")
    assert yaml_body.object() == {"a": {"b": 1}}
    for headers, body, status in (
        ({"content-type": "text/plain"}, b"x", 415),
        ({}, b"[1]", 400),
        ({"content-type": "application/yaml"}, b"a: [", 400),
    ):
        with pytest.raises(KubernetesApiError) as refused:
            ApiRequest(method="POST", path="/", headers=headers, body=body).object()
        assert refused.value.status == status


def test_an_eviction_deletes_the_pod_that_was_meant(store: Store) -> None:
    """The UID among the preconditions keeps a later pod of the same name from harm."""
    uid = store.create(PODS, pod("a"))["metadata"]["uid"]
    path = "/api/v1/namespaces/default/pods/a/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "default"}}
    for wrong in ({**body, "kind": "Binding"}, {**body, "metadata": {"name": "b"}}):
        assert _refusal(store, "POST", path, wrong) == 400
    assert _refusal(store, "POST", path, {**body, "deleteOptions": {"preconditions": {"uid": "another"}}}) == 409
    assert store.find(PODS, "a", "default") is not None
    reply = _ask(store, "POST", path, {**body, "deleteOptions": {"preconditions": {"uid": uid}}})
    assert (reply.status, _json(reply)["status"]) == (201, "Success")
    assert store.find(PODS, "a", "default") is None
    assert _refusal(store, "POST", path, body) == 404
