"""Policies read from folders and from objects, and the saved set of both."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.policy import MAX_BYTES
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.node.policy import folder as policy_folder
from dra_driver.node.policy.folder import UnreadableError, fingerprint, read_documents, read_folder
from dra_driver.node.policy.policy_set import (
    MAX_POLICIES,
    PolicyObject,
    PolicySet,
    RefusedSetError,
    decode_set,
    kept,
    load_set,
    merge,
    read_objects,
    save_set,
)
from tests.fakes.stand_in import present
from tests.harness.raising import fails
from tests.unit.node.policy.hardware import NODE, written


def names(folder: Path) -> list[str]:
    return [file.name for file in read_folder(folder)]


def test_only_policy_files_that_are_not_hidden_count(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.json", "c.yml", ".hidden.yaml", "README.md", "d.yaml~"):
        (tmp_path / name).write_text("")
    assert names(tmp_path) == ["a.json", "b.yaml", "c.yml"]


def test_a_config_map_is_read_through_its_one_link(tmp_path: Path) -> None:
    """As the kubelet mounts it: swapping ``..data`` swaps every file in one step."""
    for version, text in (("..1", "old"), ("..2", "new")):
        (tmp_path / version).mkdir()
        (tmp_path / version / "p.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "p.yaml").symlink_to("..data/p.yaml")
    before = fingerprint(tmp_path)
    assert [file.data for file in read_folder(tmp_path)] == [b"old"]
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert fingerprint(tmp_path) != before
    assert [file.data for file in read_folder(tmp_path)] == [b"new"]


def test_a_fingerprint_changes_with_content_names_and_the_folder_itself(tmp_path: Path) -> None:
    folder = tmp_path / "policies"
    seen = [fingerprint(folder)]
    folder.mkdir()
    seen.append(fingerprint(folder))
    (folder / "a.yaml").write_text("1")
    seen.append(fingerprint(folder))
    os.utime(folder / "a.yaml", ns=(1, 1))
    (folder / "a.yaml").write_text("2")
    seen.append(fingerprint(folder))
    (folder / "a.yaml").rename(folder / "b.yaml")
    seen.append(fingerprint(folder))
    assert len(set(seen)) == len(seen)
    (folder / "README").write_text("x")
    assert fingerprint(folder) == seen[-1]


def test_what_cannot_be_a_set_is_refused_by_name(tmp_path: Path) -> None:
    with fails(ConfigurationError, "Missing", match="nowhere"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_bytes(b"#" * (policy_folder.MAX_FILE_BYTES + 1))
    with fails(ConfigurationError, "TooLarge", match=r"a\.yaml .* 256 KiB"):
        read_folder(tmp_path)
    (tmp_path / "a.yaml").unlink()
    os.mkfifo(tmp_path / "b.yaml")
    with fails(ConfigurationError, "NotAFile", match=r"b\.yaml"):
        read_folder(tmp_path)
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "c.yaml").symlink_to("gone")
    with fails(ConfigurationError, "Missing", match=r"c\.yaml"):
        read_folder(tmp_path)
    (tmp_path / "c.yaml").unlink()
    for number in range(policy_folder.MAX_FILES + 1):
        (tmp_path / f"{number}.yaml").touch()
    with fails(ConfigurationError, "TooManyFiles", match="65 .* 64"):
        read_folder(tmp_path)


def test_a_folder_in_place_of_a_file_is_named_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with fails(ConfigurationError, "NotAFile", match=r"a\.yaml"):
            read_folder(tmp_path)
    assert sum(1 for _ in Path("/proc/self/fd").iterdir()) == before


def test_a_set_has_a_bound_in_all(tmp_path: Path) -> None:
    for number in range(policy_folder.MAX_BYTES // policy_folder.MAX_FILE_BYTES + 1):
        (tmp_path / f"{number}.yaml").write_bytes(b"#" * policy_folder.MAX_FILE_BYTES)
    with pytest.raises(ConfigurationError, match="more than 2048 KiB together"):
        read_folder(tmp_path)


def read(text: str | bytes, *, is_json: bool = False) -> list[object]:
    data = text.encode() if isinstance(text, str) else text
    return [document.value for document in read_documents(data, is_json=is_json)]


def refusal(text: str | bytes, *, is_json: bool = False) -> tuple[int, str]:
    with pytest.raises(UnreadableError) as caught:
        read(text, is_json=is_json)
    return caught.value.line, str(caught.value)


def test_documents_of_one_file_and_their_values() -> None:
    assert read("---\na: {b: [1, -2, 0.5, true, null, x]}\n---\n# nothing\n---\n- c: ''\n---\n") == [
        {"a": {"b": [1, -2, 0.5, True, None, "x"]}},
        [{"c": ""}],
    ]
    assert read("") == read("\n# just a comment\n") == []


@pytest.mark.parametrize(
    "text", ["0000:17:00.0", "no", "on", "2026-01-01", "1g.10gb", "0x1F", "1_000", "'1'", '"true"', "!!str 5"]
)
def test_what_older_yaml_takes_for_something_else_is_text(text: str) -> None:
    """A PCI address is no base-60 number, and a country code no boolean."""
    [found] = read(f"a: {text}")
    assert found == {"a": text.removeprefix("!!str ").strip("'\"")}


def test_every_value_has_its_line() -> None:
    [document] = read_documents(b"a:\n  b:\n  - c: 1\n  - d: 2\n", is_json=False)
    assert document.line_of(("a", "b", 1, "d")) == 4
    assert document.line_of(("a", "b", 1, "missing", "deeper")) == 4
    assert document.line_of(("a", "x")) == 2
    assert document.line_of(()) == 1


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: [", 3, "not YAML"),
        ("a: 1\na: 2", 2, "the key 'a' is repeated"),
        ("a: &x 1\nb: *x", 1, "anchors and aliases are not supported"),
        ("b: *x", 1, "anchors and aliases are not supported"),
        ("a: !!python/object:os.system x", 1, "the tag tag:yaml.org,2002:python/object:os.system is not supported"),
        ("? [a]\n: 1", 1, "a key must be text"),
        ("\n" + "[" * 40, 2, "nested more than 32 levels deep"),
        (b"a: \xff", 0, "not UTF-8 text: byte 3 is 0xff"),
        ("a: \x1b", 0, "not YAML"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(text: str | bytes, line: int, said: str) -> None:
    at, message = refusal(text)
    assert message.startswith(said)
    assert at in (line, max(line - 1, 0))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ('{"a": 1, "a": 2}', "not JSON: the key 'a' is repeated"),
        ("[" * 100_000, "not JSON"),
        (f'{{"a": {"9" * 5000}}}', "not JSON"),
    ],
)
def test_json_is_read_as_json(text: str, said: str) -> None:
    assert read('{\t"a": "\\u00e4"}', is_json=True) == [{"a": "ä"}]
    assert refusal(text, is_json=True)[1].startswith(said)


def stored(name: str, generation: int = 1, **spec: Any) -> dict[str, Any]:
    item = written(name, **spec)
    item["metadata"] |= {"generation": generation, "uid": "u", "managedFields": [{"manager": "kubectl"}]}
    return {**item, "status": {"observedGeneration": 1}}


def keep(item: dict[str, Any], *others: PolicyObject, most: int = MAX_POLICIES) -> PolicyObject:
    return present(kept(item, NODE, others, most))


def test_only_what_a_node_uses_is_kept() -> None:
    """A status that the controller writes is no change for 10,000 nodes."""
    first = keep(stored("a", priority=3))
    assert json.loads(first.data or b"") == written("a", priority=3)
    assert first.generation == 1
    assert keep({**stored("a", priority=3), "status": {"observedGeneration": 2}}) == first


@pytest.mark.parametrize("patterns", [["other-*"], [], ["NODE-1"]])
def test_a_policy_of_other_nodes_is_not_kept(patterns: list[str]) -> None:
    assert kept(stored("a", select={"nodeNames": patterns}), NODE, (), MAX_POLICIES) is None


@pytest.mark.parametrize("select", [{"nodeNames": ["node-*"]}, {"nodeNames": "node-1"}, {"nodeNames": [1]}, [], None])
def test_a_policy_that_may_be_for_this_node_is_kept_whatever_it_says(select: Any) -> None:
    assert kept(stored("a", select=select), NODE, (), MAX_POLICIES) is not None


def test_of_more_policies_than_a_node_accepts_only_names_are_kept() -> None:
    others: list[PolicyObject] = []
    for number in range(200):
        others.append(keep(stored(f"p{number:04}", priority=1), *others))
    assert others[MAX_POLICIES - 1].data is not None
    assert others[MAX_POLICIES].data is None
    with fails(RefusedSetError, match="200 .* 128"):
        merge(PolicySet(), read_objects(others))


def test_an_object_that_is_large_is_not_kept() -> None:
    found = keep(stored("a", note="x" * MAX_BYTES))
    assert found.data is None
    (read,) = read_objects([found])
    assert "is not kept: expected at most 65536" in str(read.problem)


def test_all_objects_together_are_bounded() -> None:
    """128 objects of 64 KiB would be 8 MiB."""
    others: list[PolicyObject] = []
    for number in range(20):
        others.append(keep(stored(f"p{number}", note="x" * 60_000), *others))
    assert sum(len(other.data or b"") for other in others) <= 1024 * 1024
    assert others[-1].data is None
    assert read_objects(others[-1:])[0].problem == "the object is not kept beside so many others"


def test_an_object_takes_the_place_of_a_file_that_says_the_same() -> None:
    files = decode_set([written("a", priority=1)])
    found = merge(files, read_objects([keep(stored("a", 2, priority=1))]))
    assert len(found.policies) == 1
    assert found.generations == {"a": 2}


def test_an_object_that_says_something_else_than_a_file_of_its_name_is_refused() -> None:
    files = decode_set([written("a", priority=1)])
    with fails(RefusedSetError, match="GpuPolicy a") as e:
        merge(files, read_objects([keep(stored("a", priority=2))]))
    assert list(e.value.reasons) == ["a"]


def test_a_wrong_object_refuses_the_set_and_is_named() -> None:
    objects = [keep(stored("good")), keep(stored("bad", sharing={"strategy": "mps"}, prioriti=1))]
    with pytest.raises(RefusedSetError) as error:
        merge(PolicySet(), read_objects(objects))
    assert str(error.value).startswith("GpuPolicy bad: spec")
    assert "; and 1 more" in str(error.value)
    assert list(error.value.reasons) == ["bad"]


def test_an_object_of_another_version_is_refused() -> None:
    (read,) = read_objects([keep({**stored("a"), "apiVersion": "gpu.dra-driver.io/v2"})])
    assert read.problem == "apiVersion: expected 'gpu.dra-driver.io/v1alpha1', got 'gpu.dra-driver.io/v2'"


def test_generations_are_read_back_and_nonsense_is_none() -> None:
    assert decode_set([written("a")], {"a": 3, "b": "x"}).generations == {"a": 3, "b": None}
    assert decode_set([written("a")], ["a"]).generations is None
    assert decode_set([written("a")]).generations is None


POLICY = {
    "apiVersion": "gpu.dra-driver.io/v1alpha1",
    "kind": "GpuPolicy",
    "metadata": {"name": "p"},
    "spec": {"forms": {"whole": False}},
}


def test_a_saved_set_is_on_disk_before_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut right after it must not bring back older policies, or none, which would hide every GPU."""
    seen: list[str] = []
    fsync, replace = os.fsync, os.replace

    def recorded_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        kind = "folder" if stat.S_ISDIR(status.st_mode) else "file"
        same = os.path.samestat(status, tmp_path.stat())
        seen.append(f"sync {kind}" if kind == "file" or same else "sync of something else")
        assert kind == "folder" or b'"name":"p"' in Path(f"/proc/self/fd/{descriptor}").read_bytes()
        fsync(descriptor)

    def recorded_replace(source: str, target: str) -> None:
        seen.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    monkeypatch.setattr(os, "replace", recorded_replace)
    save_set(tmp_path / "policies.json", decode_set([POLICY]))
    assert seen == ["sync file", "rename", "sync folder"]


def test_a_saved_set_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "policies.json"
    assert load_set(path) is None
    save_set(path, decode_set([POLICY]))
    assert load_set(path) == decode_set([POLICY])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_set_that_cannot_be_saved_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "policies.json"
    save_set(path, decode_set([POLICY]))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with fails(StorageError, "NotWritten", match="No space left"):
        save_set(path, decode_set([]))
    assert load_set(path) == decode_set([POLICY])
