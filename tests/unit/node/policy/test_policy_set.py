"""What a node keeps of GpuPolicy objects, and one set made of files and objects."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from dra_driver.config.policy import MAX_BYTES
from dra_driver.core.errors import StorageError
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
from tests.unit.node.policy.hardware import NODE, written


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
    with pytest.raises(RefusedSetError, match="200 policies are for this node, at most 128 are accepted"):
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
    with pytest.raises(
        RefusedSetError, match="GpuPolicy a: a file on this node defines a policy of the same name"
    ) as e:
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
    with pytest.raises(StorageError, match=f"{path} cannot be written: No space left on device"):
        save_set(path, decode_set([]))
    assert load_set(path) == decode_set([POLICY])
