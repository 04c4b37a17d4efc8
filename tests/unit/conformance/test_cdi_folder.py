"""CDI folders as a container runtime reads them."""

import json
from pathlib import Path
from typing import Any

import pytest

from dra_driver.conformance import cdi_folder

EDITS = {"env": ["A=b"]}


def document(**fields: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.5.0", "kind": "v.com/gpu", "devices": [{"name": "one", "containerEdits": EDITS}]} | fields


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    made = [tmp_path / "etc", tmp_path / "run"]
    for folder in made:
        folder.mkdir()
    return made


def test_a_device_of_any_folder_resolves(folders: list[Path]) -> None:
    (folders[0] / "a.json").write_text(json.dumps(document()))
    (folders[1] / "b.yaml").write_text(
        "cdiVersion: 0.6.0\nkind: w.com/nic\ndevices:\n- name: x\n  containerEdits:\n    env: [A=b]\n"
    )
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one", "w.com/nic=x"]) == []


def test_two_files_of_one_folder_conflict(folders: list[Path]) -> None:
    for name in ("a.json", "b.json"):
        (folders[0] / name).write_text(json.dumps(document()))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == ["v.com/gpu=one: 2 files of one folder define it"]


def test_a_later_folder_wins_over_a_conflict(folders: list[Path]) -> None:
    for folder, name in ((folders[0], "a.json"), (folders[0], "b.json"), (folders[1], "c.json")):
        (folder / name).write_text(json.dumps(document()))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"cdiVersion": "9.0.0"}, "cdiVersion '9.0.0' is unknown"),
        ({"kind": "gpu"}, "gpu=one is not vendor/class=name"),
        ({"devices": []}, "no devices"),
        ({"devices": [{"name": "one", "containerEdits": {}}]}, "device one has no containerEdits"),
        ({"devices": [{"name": "one", "containerEdits": EDITS}] * 2}, "a device is defined twice"),
        ({"devices": ["one"]}, "v.com/gpu=None is not vendor/class=name"),
    ],
)
def test_a_file_that_runtimes_refuse_is_explained(folders: list[Path], fields: dict[str, Any], problem: str) -> None:
    path = folders[0] / "a.json"
    path.write_text(json.dumps(document(**fields)))
    assert cdi_folder.unresolved(folders, ["v.com/gpu=one"]) == [
        f"v.com/gpu=one: no file defines it ({path}: {problem})"
    ]


def test_a_huge_file_is_not_read(folders: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdi_folder, "MAX_BYTES", 10)
    (folders[0] / "a.json").write_text(json.dumps(document()))
    assert cdi_folder.read(folders[0] / "a.json").problem.startswith("larger than")


def test_hidden_and_other_files_do_not_count(folders: list[Path]) -> None:
    for name in (".a.json", "a.txt"):
        (folders[0] / name).write_text(json.dumps(document()))
    assert cdi_folder.files(folders) == {}


def test_qualified_names() -> None:
    assert all(map(cdi_folder.is_qualified, ("v.com/gpu=one", "nvidia.com/gpu=GPU-1:0", "a/b=c")))
    wrong = ("one", "gpu=one", "v.com/gpu=", "v.com/=one", "1v/gpu=one", "v.com/gpu=one\n", "v/g=-")
    assert not any(map(cdi_folder.is_qualified, wrong))
