"""The state of a cluster: read as far as allowed, without secrets, refused when it is malformed."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import (
    ApiUnreachableError,
    ConfigurationError,
    ForbiddenError,
    GoneError,
    NotFoundError,
    StorageError,
)
from dra_driver.kube.objects.core import Node
from dra_driver.kube.shapes import misfit, read_all
from dra_driver.kube.state import ClusterState, read_cluster, with_objects
from dra_driver.kube.state_file import dump, load, objects_of, read_documents

Obj = dict[str, Any]
SECRET = "hunter2"


class Server:
    """Answers lists by path; an exception as answer is raised, once when it is in a list."""

    def __init__(self, **lists: Any) -> None:
        self.lists = lists
        self.asked: list[str] = []

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Obj:
        return {"gitVersion": "v1.36.2", "major": "1", "minor": "36"}

    def list(self, path: str, query: Mapping[str, str] | None = None) -> Obj:
        self.asked.append(path)
        answer = self.lists.get(path.rpartition("/")[2], [])
        if "devicetaintrules" in path and not path.startswith("/apis/resource.k8s.io/v1beta2"):
            answer = NotFoundError("404")
        if answer and isinstance(answer, list) and isinstance(answer[0], Exception):
            answer = answer.pop(0)
        if isinstance(answer, dict):
            answer = answer["local" if "/namespaces/" in path else "everywhere"]
        if isinstance(answer, Exception):
            raise answer
        return {"items": answer}


def named(name: str, **fields: Any) -> Obj:
    return {"metadata": {"name": name, "namespace": "team-a"}, **fields}


def test_a_cluster_is_read_with_its_version() -> None:
    state = read_cluster(Server(pods=[named("p", spec={"nodeName": "a"})], devicetaintrules=[named("r", spec={})]))
    assert state.server_version == "v1.36.2"
    assert [pod["spec"]["nodeName"] for pod in state.pods] == ["a"]
    assert len(state.taint_rules) == 1
    assert state.gaps == ()


def test_what_is_forbidden_or_not_served_is_a_gap_and_not_the_end() -> None:
    server = Server(nodes=ForbiddenError("no"), resourceslices=NotFoundError("404"))
    state = read_cluster(server)
    assert [gap.partition(":")[0] for gap in state.gaps] == ["nodes", "resourceslices"]


def test_without_rights_on_the_cluster_the_own_namespace_is_read() -> None:
    server = Server(pods={"everywhere": ForbiddenError("no"), "local": [named("mine")]})
    state = read_cluster(server, "team-a")
    assert [pod["metadata"]["name"] for pod in state.pods] == ["mine"]
    assert state.gaps == ("pods: no",)
    assert "/apis/resource.k8s.io/v1/namespaces/team-a/resourceclaimtemplates" in server.asked


def test_a_list_that_grew_too_old_is_read_again_and_no_answer_is_an_error() -> None:
    assert read_cluster(Server(pods=[GoneError("old"), named("p")])).gaps == ()
    with pytest.raises(ApiUnreachableError):
        read_cluster(Server(nodes=ApiUnreachableError("down")))


def test_nothing_secret_is_kept() -> None:
    """A snapshot holds the fields that scheduling needs, and no environment, argument or command of a container."""
    container = {
        "name": "main",
        "command": [SECRET],
        "args": [SECRET],
        "env": [{"name": "PASSWORD", "value": SECRET}],
        "resources": {"requests": {"cpu": "1"}, "claims": [{"name": "gpu"}]},
        "ports": [{"hostPort": 80, "name": SECRET}],
    }
    volumes = [
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
        {"name": "x", "csi": {"volumeAttributes": {"token": SECRET}}},
    ]
    annotations = {"note": SECRET, "kubectl.kubernetes.io/last-applied-configuration": SECRET}
    pod = {
        "metadata": {"name": "p", "annotations": annotations, "managedFields": [{"manager": SECRET}]},
        "spec": {"containers": [container], "volumes": volumes, "nodeSelector": {"zone": "1"}, "hostAliases": [SECRET]},
        "status": {"phase": "Pending", "containerStatuses": [{"state": {"terminated": {"message": SECRET}}}]},
    }
    node = {"metadata": {"name": "n"}, "spec": {"providerID": SECRET}, "status": {"images": [{"names": [SECRET]}]}}
    claim: dict[str, Any] = {"metadata": {"name": "c"}, "status": {"devices": [{"driver": "d", "data": {"x": SECRET}}]}}
    events = [
        {**named("e"), "reason": "Unhealthy", "message": SECRET, "involvedObject": {"kind": "Pod"}},
        {**named("f"), "reason": "FailedScheduling", "message": "0/1", "involvedObject": {"kind": "Pod"}},
    ]
    applied = {"metadata": {"annotations": {"note": SECRET}}, "spec": {"metadata": {"annotations": {"x": SECRET}}}}
    claim["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied)}
    template = {"metadata": {"name": "t"}, "spec": {"metadata": {"annotations": {"note": SECRET}}, "spec": {}}}
    broken = {"metadata": {"name": "b", "annotations": {"kubectl.kubernetes.io/last-applied-configuration": SECRET}}}
    state = read_cluster(
        Server(
            pods=[pod],
            nodes=[node],
            resourceclaims=[claim],
            resourceclaimtemplates=[template],
            deviceclasses=[broken],
            events=events,
        )
    )
    assert state.templates[0]["spec"] == {"spec": {}}
    assert SECRET not in repr(state)
    kept = state.pods[0]["spec"]
    assert kept["containers"] == [{"name": "main", "resources": container["resources"], "ports": [{"hostPort": 80}]}]
    assert kept["nodeSelector"] == {"zone": "1"}
    assert len(kept["volumes"]) == 1
    assert [event["message"] for event in state.events] == ["0/1"]


@pytest.mark.parametrize("name", ["state.yaml", "state.json"])
def test_a_state_comes_back_from_its_file(tmp_path: Path, name: str) -> None:
    state = ClusterState(
        pods=[
            {
                "metadata": {"name": "p", "namespace": "n", "creationTimestamp": "2026-01-02T03:04:05Z"},
                "spec": {},
                "status": {},
            }
        ],
        slices=[{"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}}}],
        gaps=["nodes: no"],
        server_version="v1.36.2",
    )
    dump(state, tmp_path / name)
    found = load(tmp_path / name)
    assert list(found.pods) == state.pods
    assert list(found.slices) == state.slices
    assert (found.gaps, found.server_version) == (("nodes: no",), "v1.36.2")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_output_of_kubectl_is_a_state_too(tmp_path: Path) -> None:
    """Several documents, lists inside lists' own kind or a v1 List, kinds that do not matter in between."""
    file = tmp_path / "all.yaml"
    file.write_text(
        "kind: NodeList\nitems:\n- metadata: {name: a}\n---\nkind: Service\nmetadata: {name: s}\n---\n"
        "kind: List\nitems:\n- kind: Pod\n  metadata: {name: p, labels: {since: '2026-01-01'}}\n  spec: {}\n"
    )
    state = load(file)
    assert [node["metadata"]["name"] for node in state.nodes] == ["a"]
    assert [pod["metadata"]["namespace"] for pod in state.pods] == ["default"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kind: Node\nmetadata: [x]\n", "Node without a name: metadata: expected an object, got a list"),
        ("kind: Node\nmetadata: {}\n", "metadata.name: missing"),
        ("kind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: d}\n", "spec.pool: missing, expected an object"),
        (
            "kind: ResourceSlice\nmetadata: {name: s}\nspec: {driver: d, pool: {name: p}, devices: [{name: 1}]}\n",
            "spec.devices[0].name: expected text, got a number: '1'",
        ),
        ("kind: Pod\nmetadata: {name: p}\nspec: {hostNetwork: x, nodeName: true}\n", "spec.nodeName: expected text"),
        ("- a\n", "a document is list"),
        ("metadata: {name: x}\n", "an object has no kind"),
        ("kind: List\nitems: [1]\n", "items of a List are not objects"),
        ("a: [\n", "neither YAML nor JSON"),
        ('{"kind": ', "neither YAML nor JSON"),
        ("kind: List\ndraState: {schemaVersion: 7}\nitems: []\n", "schemaVersion 7"),
        (
            "a: &a [1,1,1,1,1,1,1,1]\n"
            + "".join(f"{n}: &{n} [{', '.join([f'*{m}'] * 8)}]\n" for n, m in zip("bcdefgh", "abcdefg", strict=True))
            + "kind: X\n",
            "aliases",
        ),
        ("a: &a [*a]\nkind: X\n", "aliases"),
    ],
)
def test_a_malformed_file_is_refused_with_the_place(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        load(file)
    assert said in str(refused.value)


def test_files_that_cannot_be_read_or_written_say_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        load(tmp_path / "nothing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        load(tmp_path / "binary")
    with pytest.raises(StorageError, match="No such file"):
        dump(ClusterState(), tmp_path / "no-folder" / "state.json")


def test_objects_replace_their_namesakes() -> None:
    state = ClusterState(
        nodes=[{"metadata": {"name": "a"}, "spec": {"unschedulable": True}}, {"metadata": {"name": "b"}}]
    )
    changed = with_objects(
        state, [{"kind": "Node", "metadata": {"name": "a"}}, {"kind": "Service", "metadata": {"name": "s"}}]
    )
    assert sorted(node["metadata"]["name"] for node in changed.nodes) == ["a", "b"]
    assert not any(node.get("spec", {}).get("unschedulable") for node in changed.nodes)


def test_null_is_as_good_as_missing() -> None:
    """As in Go: `devices: null` is how an empty list is often written."""
    item = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}, "devices": None}}
    assert misfit("ResourceSlice", item) == ""


def test_json_and_yaml_are_told_apart_by_their_start() -> None:
    """Flow mappings of YAML start with a brace as well."""
    for text in (json.dumps({"kind": "Node", "metadata": {"name": "a"}}), "{kind: Node, metadata: {name: a}}"):
        (document,) = read_documents(Path("x"), text)
        assert objects_of([document], "x")[0]["metadata"]["name"] == "a"


def test_an_object_that_does_not_fit_leaves_the_others_of_its_list() -> None:
    """Reports read lists of structs, and one bad object ends none of them."""
    good: dict[str, object] = {"metadata": {"name": "a"}}
    lost: list[str] = []
    found = read_all(Node, [{"metadata": 5}, None, {**good, "status": {"conditions": [{}]}}, good], lost.append)
    assert [node.metadata.name for node in found] == ["a"]
    assert lost == [
        "without a name cannot be read: metadata: expected an object, got a number: '5'",
        "without a name cannot be read: expected an object, got nothing: 'None'",
        "a cannot be read: status.conditions[0].type: missing, expected text",
    ]
