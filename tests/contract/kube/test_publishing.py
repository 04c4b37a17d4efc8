"""Publisher, reflector and REST client together, against the embedded cluster's API server over TLS."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from dra_driver.core.errors import ConflictError
from dra_driver.kube import paths
from dra_driver.kube.connection import Connection
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.objects.resource import ResourcePool, ResourceSliceSpec
from dra_driver.kube.rest import RestClient
from dra_driver.node.slices import Publisher
from dra_driver.node.slices.api import RestSlicesApi
from dra_driver.node.slices.diff import Delete, SliceBody
from dra_driver.sim.apiserver.server import ApiServer
from tests.fakes.scripted_http import Exchange, ScriptedServer
from tests.unit.node.slices.gpus import node_of

NODE, DRIVER = "node-a", "gpu.nvidia.com"


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[RestClient]:
    server = ApiServer(port=0)
    server.start()
    connection = Connection.load(str(server.kubeconfig(tmp_path / "kubeconfig")))
    client = RestClient(connection)
    try:
        client.create("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
        yield client
    finally:
        connection.close()
        server.stop()


def eventually(true: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


def slice_object(name: str) -> dict[str, Any]:
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}


def test_slices_are_published_repaired_and_left_at_the_end(rest: RestClient) -> None:
    api = RestSlicesApi(rest, DRIVER, NODE)
    events = EventRecorder(rest, DRIVER, NODE)
    events.start()
    publisher = Publisher.connect(rest, DRIVER, NODE, events)
    publisher.set_snapshot(node_of(65))
    publisher.start()
    eventually(lambda: publisher.published)
    names = sorted(item["metadata"]["name"] for item in api.list())
    assert [name[:28] for name in names] == ["00000-gpu.nvidia.com-node-a-", "00001-gpu.nvidia.com-node-a-"]
    rest.delete(paths.resource_slices(names[0]))
    began = time.monotonic()
    eventually(lambda: len(api.list()) == 2)
    assert time.monotonic() - began < 5
    assert names[1] in {item["metadata"]["name"] for item in api.list()}
    rest.create(paths.resource_slices(), slice_object("other"))
    eventually(lambda: "second publisher" in (publisher.problem or ""))
    eventually(lambda: len(rest.list(paths.events("default"))["items"]) == 1)
    publisher.stop()
    events.stop()
    assert len(api.list()) == 3


def test_a_second_start_writes_nothing(rest: RestClient) -> None:
    api = RestSlicesApi(rest, DRIVER, NODE)
    for _ in range(2):
        publisher = Publisher.connect(rest, DRIVER, NODE)
        publisher.set_snapshot(node_of(3))
        publisher.start()
        eventually(lambda: publisher.published)  # noqa: B023 - runs before the next turn
        publisher.stop()
    (item,) = api.list()
    assert item["metadata"]["generation"] == 1
    assert item["spec"]["pool"]["generation"] == 1


def test_only_the_slice_that_was_read_is_deleted_or_overwritten(rest: RestClient) -> None:
    """UID and resourceVersion are sent: a slice that changed, or another one of that name, stays."""
    api = RestSlicesApi(rest, DRIVER, NODE)
    read = rest.create(paths.resource_slices(), slice_object("s"))
    uid, version = read["metadata"]["uid"], read["metadata"]["resourceVersion"]
    changed = rest.merge_patch(paths.resource_slices("s"), {"metadata": {"labels": {"a": "b"}}})
    newest = changed["metadata"]["resourceVersion"]
    with pytest.raises(ConflictError):
        api.update(SliceBody(metadata=read["metadata"], spec=convert(read["spec"], ResourceSliceSpec)))
    other = "00000000-0000-0000-0000-000000000000"
    for stale in ({"uid": uid, "resource_version": version}, {"uid": other, "resource_version": newest}):
        with pytest.raises(ConflictError):
            api.delete(Delete(name="s", **stale))
    api.delete(Delete(name="s", uid=uid, resource_version=newest))
    assert api.list() == []


def test_a_list_is_as_new_as_what_was_written_and_current_after_a_conflict(tmp_path: Path) -> None:
    """Otherwise a pass would repair what it has just written, or meet the same conflict again."""
    answers: Iterator[dict[str, Any]] = iter(
        [
            {"metadata": {"resourceVersion": "5"}, "items": []},
            {"metadata": {"name": "s", "resourceVersion": "90"}},  # a dry run: nothing was written
            {"metadata": {"name": "s", "resourceVersion": "9"}},
            {"metadata": {"resourceVersion": "9"}, "items": []},
            {"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed"},
            {"metadata": {"resourceVersion": "12"}, "items": []},
        ]
    )

    def script(x: Exchange) -> None:
        answer = next(answers)
        x.json(answer, int(str(answer.get("code", 200))))

    spec = ResourceSliceSpec(driver=DRIVER, pool=ResourcePool(name=NODE))
    body = SliceBody(metadata={"name": "s", "resourceVersion": "8"}, spec=spec)
    with ScriptedServer(script) as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = RestSlicesApi(RestClient(Connection.load(str(tmp_path / "kubeconfig"))), DRIVER, NODE)
        api.list()
        api.create(body, dry_run=True)
        api.create(body)
        api.list()
        with pytest.raises(ConflictError):
            api.update(body)
        api.list()
        asked = [seen.query.get("resourceVersion") for seen in server.requests if seen.method == "GET"]
    assert asked == [None, "9", None]
