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
from dra_driver.kube.state import ClusterState, read_cluster, shareable
from dra_driver.kube.state_file import dump, load, objects_of, read_documents, text_of

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
    lists = {"resourceclaims": [claim], "resourceclaimtemplates": [template], "deviceclasses": [broken]}
    state = read_cluster(Server(pods=[pod], nodes=[node], events=events, **lists))
    assert state.templates[0]["spec"] == {"spec": {}}
    assert SECRET not in repr(state)
    kept = state.pods[0]["spec"]
    assert kept["containers"] == [{"name": "main", "resources": container["resources"], "ports": [{"hostPort": 80}]}]
    assert kept["nodeSelector"] == {"zone": "1"}
    assert len(kept["volumes"]) == 1
    assert [event["message"] for event in state.events] == ["0/1"]


@pytest.mark.parametrize("name", ["state.yaml", "state.json"])
def test_a_state_comes_back_from_its_file(tmp_path: Path, name: str) -> None:
    metadata = {"name": "p", "namespace": "n", "creationTimestamp": "2026-01-02T03:04:05Z"}
    state = ClusterState(
        pods=[{"metadata": metadata, "spec": {}, "status": {}}],
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
        ("a: &a [*a]\nkind: X\n", "line 1: the alias *a contains itself"),
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


def test_null_is_a_missing_value_and_a_brace_starts_json_or_yaml() -> None:
    """As in Go: `devices: null` is how an empty list is often written."""
    item = {"metadata": {"name": "s"}, "spec": {"driver": "d", "pool": {"name": "p"}, "devices": None}}
    assert misfit("ResourceSlice", item) == ""
    for text in (json.dumps({"kind": "Node", "metadata": {"name": "a"}}), "{kind: Node, metadata: {name: a}}"):
        (document,) = read_documents(Path("x"), text)
        assert objects_of([document], "x")[0]["metadata"]["name"] == "a"


def test_an_object_that_does_not_fit_leaves_the_others_of_its_list() -> None:
    good: dict[str, object] = {"metadata": {"name": "a"}}
    lost: list[str] = []
    found = read_all(Node, [{"metadata": 5}, None, {**good, "status": {"conditions": [{}]}}, good], lost.append)
    assert [node.metadata.name for node in found] == ["a"]
    assert lost == [
        "without a name cannot be read: metadata: expected an object, got a number: '5'",
        "without a name cannot be read: expected an object, got nothing: 'None'",
        "a cannot be read: status.conditions[0].type: missing, expected text",
    ]


CONFIG = [
    {"opaque": {"driver": "net.example.com", "parameters": {"any": [{"psk": SECRET}]}}},
    {"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "GpuConfig"}}},
]
NOTE = "kubectl.kubernetes.io/last-applied-configuration"


def claim(note: str) -> dict[str, object]:
    devices = {"config": CONFIG}
    seen = [{"driver": "net.example.com", "device": "eth0", "data": {"psk": SECRET}}]
    return {
        "metadata": {"name": "card", "annotations": {NOTE: note}},
        "spec": {"devices": devices},
        "status": {"allocation": {"devices": devices}, "devices": seen},
    }


def test_parameters_of_other_drivers_are_left_out() -> None:
    state = ClusterState(
        claims=[claim(json.dumps({"spec": {"devices": {"config": CONFIG}}}))],
        templates=[{"metadata": {"name": "t"}, "spec": {"spec": {"devices": {"config": CONFIG}}}}],
        classes=[{"metadata": {"name": "c"}, "spec": {"config": CONFIG}}],
    )
    text = text_of(shareable(state, ("gpu.nvidia.com",)), as_yaml=False)
    assert SECRET not in text
    assert text.count("GpuConfig") == 5
    assert text.count("net.example.com") == 6
    assert "GpuConfig" not in text_of(shareable(state, ("other.example.com",)), as_yaml=False)
    state = ClusterState(claims=[claim("{" + SECRET)])  # an annotation that cannot be read
    assert SECRET not in text_of(shareable(state, ("gpu.nvidia.com",)), as_yaml=False)


UUIDS = ["GPU-00000000-1111-2222-3333-444444444444", "GPU-55555555-1111-2222-3333-444444444444"]


def _slice(name: str, uuid: str, device: str = "gpu-0") -> dict[str, Any]:
    attributes = {"uuid": {"string": uuid}, "type": {"string": "gpu"}}
    spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": {"name": f"{name}/gpu", "resourceSliceCount": 1}}
    return {"metadata": {"name": name}, "spec": {**spec, "devices": [{"name": device, "attributes": attributes}]}}


def _file(folder: Path, *slices: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    file = folder / "state.json"
    dump(ClusterState(slices=slices), file)
    return file, json.loads(file.read_text())


def test_what_is_read_equals_what_was_written(tmp_path: Path) -> None:
    """Each slice has the UUIDs of its own GPUs after its devices were stored once."""
    slices = [_slice("a", UUIDS[0]), _slice("b", UUIDS[1]), _slice("c", UUIDS[0], "gpu-7")]
    file, document = _file(tmp_path, *slices)
    assert len(document["draState"]["templates"]) == 1
    read = load(file)
    assert [{**item, "spec": {**item["spec"], "devices": list(item["spec"]["devices"])}} for item in read.slices] == [
        {"metadata": item["metadata"], "spec": item["spec"]} for item in slices
    ]
    assert text_of(read, as_yaml=False) == file.read_text()


def test_devices_that_differ_or_contain_a_placeholder_are_stored_in_full(tmp_path: Path) -> None:
    """Without templates the file has schemaVersion 1, which earlier programs read."""
    _, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1], "gpu-7"))
    assert document["draState"]["schemaVersion"] == 1
    assert "templates" not in document["draState"]
    file, document = _file(tmp_path, _slice("a", "${0}"), _slice("b", "${0}"))
    assert "templates" not in document["draState"]
    assert load(file).slices[1]["spec"]["devices"][0]["attributes"]["uuid"] == {"string": "${0}"}


def test_yaml_has_every_slice_in_full(tmp_path: Path) -> None:
    """kubectl can read a YAML file, also one that is written from a file with templates."""
    file, _ = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1]))
    text = text_of(load(file), as_yaml=True)
    assert text.count("gpu-0") == 2
    assert all(uuid in text for uuid in UUIDS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d["items"][0]["spec"].update(like=7), "spec.like: expected an object"),
        (lambda d: d["items"][0]["spec"]["like"].update(devices=[9, []]), "no template 9"),
        (lambda d: d["items"][0]["spec"]["like"].update(devices=[True, []]), "the number of a template"),
        (lambda d: d["items"][0]["spec"]["like"].update(devices=[0, []]), "expected 1 texts"),
        (lambda d: d["items"][0]["spec"]["like"].update(devices=[0, ["x" * 999]]), "expected 1 texts"),
        (lambda d: d["items"][0]["spec"].update(devices=[]), "no template 0"),
        (lambda d: d["draState"].update(templates={}), "templates is not a list"),
        (lambda d: d["draState"].update(templates=[{"field": "name", "items": []}]), "expected field and items"),
        (lambda d: d["draState"]["templates"][0].update(items=[{"name": 1}]), "devices[0].name: expected text"),
        (lambda d: d["draState"]["templates"][0].update(items=[{"name": "${3}"}]), "not numbered from 0"),
        (lambda d: d["draState"]["templates"][0].update(items=[{"name": "a${0}"}]), "is not a value"),
        (lambda d: d["draState"].update(schemaVersion=3), "this program reads 1 and 2"),
    ],
)
def test_a_hostile_file_is_refused_with_a_sentence(change: Any, says: str, tmp_path: Path) -> None:
    file, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1]))
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert says in str(caught.value)


def test_templates_cannot_stand_for_any_number_of_devices(tmp_path: Path) -> None:
    file, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1]))
    device = document["draState"]["templates"][0]["items"][0]
    document["draState"]["templates"][0]["items"] = [device] * 25_000
    document["items"] = [document["items"][0]] * 900
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match="more than 20,000,000 devices"):
        load(file)
