"""No field of an input is lost without being named, and what comes out is valid."""

from collections.abc import Iterator

import pytest

from dra_driver.kubectl.migrate import InputDocument, Translation
from dra_driver.kubectl.migrate.ledger import UNCHANGED, UNKNOWN, Path, at, children, list_at, path_text
from dra_driver.kubectl.migrate.translation import items
from tests.unit.kubectl.migrate.helpers import NAMES, documents, inputs, linted, migrated, of_inputs

TOGETHER = ("cluster-policy", "plugin-configmap", "mig-parted", "nodes", "workloads", "quotas")


def objects_of(names: tuple[str, ...]) -> list[InputDocument]:
    return [item for document in inputs(*names) for item in items(document)]


def leaves(value: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Each scalar and each empty mapping or list, with its path."""
    below = children(value)
    for step, item in below:
        yield from leaves(item, (*path, step))
    if not below:
        yield path, value


def noted(found: Translation, document: InputDocument) -> dict[Path, str]:
    return {
        note.path: note.text
        for note in found.notes
        if note.source == document.source and note.subject == document.label and note.document == document.number
    }


@pytest.mark.parametrize("name", NAMES)
def test_every_leaf_of_every_format_is_named(name: str) -> None:
    """Each scalar of each input is at or below a field that the report names, and a translator knows it."""
    found = of_inputs(name)
    assert not found.problems
    for document in objects_of((name,)):
        notes = noted(found, document)
        for path, value in leaves(document.value):
            above = [path[:length] for length in range(len(path) + 1) if path[:length] in notes]
            assert above, f"{document.label}: {path_text(path)} = {value!r} is not in the report"
            assert notes[above[-1]] != UNKNOWN, f"{document.label}: {path_text(path)}: {UNKNOWN}"


def test_every_leaf_is_named_where_all_are_given_together() -> None:
    """Configurations change what workloads become."""
    found = of_inputs(*TOGETHER)
    for document in objects_of(TOGETHER):
        notes = noted(found, document)
        missing = [
            path_text(path)
            for path, _ in leaves(document.value)
            if not any(path[:length] in notes for length in range(len(path) + 1))
        ]
        assert missing == [], document.label


def test_what_stays_as_it_is_does() -> None:
    """A field that the report calls unchanged has the same value in the object that comes out."""
    found, checked = of_inputs("workloads"), 0
    made = {(value["kind"], value["metadata"]["name"]): value for _, value in found.workloads}
    for document in objects_of(("workloads",)):
        value = made.get((document.kind, document.name))
        if value is None:
            continue
        notes = noted(found, document)
        for path, before in leaves(document.value):
            above = [path[:length] for length in range(len(path) + 1) if path[:length] in notes]
            if notes[above[-1]] == UNCHANGED:
                assert _same_place(value, path, before), f"{document.label}: {path_text(path)}"
                checked += 1
    assert checked > 60


def _same_place(value: object, path: Path, before: object) -> bool:
    """Whether ``before`` is at ``path``, or at another index of the same lists where elements were removed."""
    if at(value, *path) == before:
        return True
    for position, step in enumerate(path):
        if isinstance(step, int):
            return any(_same_place(each, path[position + 1 :], before) for each in list_at(value, *path[:position]))
    return False


@pytest.mark.parametrize("name", NAMES)
def test_objects_that_come_out_pass_lint(name: str) -> None:
    """Our own lint has no error for any of them."""
    found = linted(of_inputs(name))
    assert [finding for finding in found.findings if finding.severity == "error"] == []


def test_objects_of_all_inputs_together_pass_lint() -> None:
    """With the classes and policies of the configurations in the same file."""
    found = of_inputs(*TOGETHER)
    assert {value["kind"] for value in found.objects} >= {"GpuPolicy", "DeviceClass", "ResourceClaimTemplate", "Job"}
    assert [finding for finding in linted(found).findings if finding.severity == "error"] == []


def test_a_field_that_no_translator_knows_is_named() -> None:
    """Formats grow; a new field must not vanish."""
    found = migrated("version: v1\nflags: {migStrategy: none, brandNew: {a: 1, b: 2}}\n")
    assert [(note.field, note.text) for note in found.notes if note.text == UNKNOWN] == [("flags.brandNew", UNKNOWN)]


def test_a_list_is_its_items() -> None:
    """`kubectl get -o yaml` prints a List; lines are those of the file."""
    text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec:\n    containers:\n    - name: c\n"
    text += "      resources: {limits: {nvidia.com/gpu: 1}}\n"
    found = migrated(text)
    assert [value["kind"] for _, value in found.workloads] == ["Pod"]
    assert next(note.line for note in found.notes if "nvidia.com/gpu" in note.field) == 8
    assert documents(text)[0].kind == "PodList"
