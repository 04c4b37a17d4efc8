"""State files that store equal contents of ResourceSlices once."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.state import ClusterState
from dra_driver.kube.state_file import dump, load, text_of

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


def test_a_state_without_repetition_is_written_for_every_version(tmp_path: Path) -> None:
    """Without templates the file has schemaVersion 1, which earlier programs read."""
    _, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1], "gpu-7"))
    assert document["draState"]["schemaVersion"] == 1
    assert "templates" not in document["draState"]


def test_text_that_looks_like_a_value_is_left_alone(tmp_path: Path) -> None:
    """Devices that contain ``${0}`` are stored in full."""
    slices = [_slice("a", "${0}"), _slice("b", "${0}")]
    file, document = _file(tmp_path, *slices)
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
    """What is wrong is named, and never a traceback."""
    file, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1]))
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError) as caught:
        load(file)
    assert says in str(caught.value)


def test_templates_cannot_stand_for_any_number_of_devices(tmp_path: Path) -> None:
    """A small file that claims more devices than any cluster has is refused before they are filled in."""
    file, document = _file(tmp_path, _slice("a", UUIDS[0]), _slice("b", UUIDS[1]))
    device = document["draState"]["templates"][0]["items"][0]
    document["draState"]["templates"][0]["items"] = [device] * 25_000
    document["items"] = [document["items"][0]] * 900
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigurationError, match="more than 20,000,000 devices"):
        load(file)
