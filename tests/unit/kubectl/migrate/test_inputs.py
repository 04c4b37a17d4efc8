"""Each input field has a note, the output is valid, and unreadable input is named by file and line."""

from collections.abc import Iterator

import pytest
import yaml

from dra_driver.kubectl.lint import ManifestSource, plain_documents
from dra_driver.kubectl.lint.manifest import MAX_DOCUMENTS
from dra_driver.kubectl.migrate import InputDocument, Translation, as_text
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


def noted(found: Translation, document: InputDocument) -> dict[str, str]:
    of = (document.source, document.label, document.number)
    return {note.field: note.message for note in found.notes if (note.file, note.object, note.document) == of}


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), TOGETHER])
def test_every_leaf_of_every_format_is_named(names: tuple[str, ...]) -> None:
    """Each scalar of each input is at or below a field that the report names, and a translator knows it."""
    found = of_inputs(*names)
    assert not found.problems
    for document in objects_of(names):
        notes = noted(found, document)
        for path, value in leaves(document.value):
            above = [text for length in range(len(path) + 1) if (text := path_text(path[:length])) in notes]
            assert above, f"{document.label}: {path_text(path)} = {value!r} is not in the report"
            assert notes[above[-1]] != UNKNOWN, f"{document.label}: {path_text(path)}: {UNKNOWN}"


def test_unchanged_fields_stay() -> None:
    """A field that the report calls unchanged has the same value in the object that comes out."""
    found, checked = of_inputs("workloads"), 0
    made = {(value["kind"], value["metadata"]["name"]): value for _, value in found.workloads}
    for document in objects_of(("workloads",)):
        value = made.get((document.kind, document.name))
        if value is None:
            continue
        notes = noted(found, document)
        for path, before in leaves(document.value):
            above = [text for length in range(len(path) + 1) if (text := path_text(path[:length])) in notes]
            if notes[above[-1]] == UNCHANGED:
                assert _same_place(value, path, before), f"{document.label}: {path_text(path)}"
                checked += 1
    assert checked > 60


def _same_place(value: object, path: Path, before: object) -> bool:
    """Return whether ``before`` is at ``path``, or at another index of lists with removed elements."""
    if at(value, *path) == before:
        return True
    for position, step in enumerate(path):
        if isinstance(step, int):
            return any(_same_place(each, path[position + 1 :], before) for each in list_at(value, *path[:position]))
    return False


@pytest.mark.parametrize("names", [*((name,) for name in NAMES), TOGETHER])
def test_objects_that_come_out_pass_lint(names: tuple[str, ...]) -> None:
    found = of_inputs(*names)
    kinds = {value["kind"] for value in found.objects}
    assert names != TOGETHER or kinds >= {"GpuPolicy", "DeviceClass", "ResourceClaimTemplate", "Job"}
    assert [finding for finding in linted(found).findings if finding.severity == "error"] == []


def test_a_field_that_no_translator_knows_is_named() -> None:
    found = migrated("version: v1\nflags: {migStrategy: none, brandNew: {a: 1, b: 2}}\n")
    assert [(note.field, note.message) for note in found.notes if note.message == UNKNOWN] == [
        ("flags.brandNew", UNKNOWN)
    ]


def test_a_list_is_its_items() -> None:
    """`kubectl get -o yaml` prints a List; line numbers are of the file."""
    text = "apiVersion: v1\nkind: PodList\nitems:\n- metadata: {name: a}\n  spec:\n    containers:\n    - name: c\n"
    text += "      resources: {limits: {nvidia.com/gpu: 1}}\n"
    found = migrated(text)
    assert [value["kind"] for _, value in found.workloads] == ["Pod"]
    assert next(note.line for note in found.notes if "nvidia.com/gpu" in note.field) == 8
    assert documents(text)[0].kind == "PodList"


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers:
  - {name: c, image: i, resources: {limits: {nvidia.com/gpu: 1}}}
"""
PARTED = "version: v1\nmig-configs: {a: "


BOMB = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
)


@pytest.mark.parametrize(
    ("text", "count", "place", "words"),
    [
        pytest.param("a: 1\n---\nb: {c: [1,\n---\n" + POD, 2, "in.yaml:4:1: document 2:", "not valid YAML", id="cut"),
        pytest.param("kind: Pod\n{{- if .Values.x }}\nmetadata: {name: a}\n{{- end }}\n", 0, "in.yaml:3:1: document 1",
                     "helm template", id="a Helm template"),
        pytest.param(BOMB, 0, "in.yaml:", "aliases expand to more than", id="aliases without bounds"),
        pytest.param("a: " + "[" * 5000, 0, "in.yaml:1:", "nested more than 100 levels", id="deep nesting"),
        pytest.param("version: v1\nflags: {a: b}\nflags: {a: c}\n", 1, "in.yaml:3:", "occurs twice", id="a key twice"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_is_named(text: str, count: int, place: str, words: str) -> None:
    documents, problems = plain_documents(ManifestSource(name="in.yaml", text=text))
    assert len(documents) == count
    (told,) = problems
    assert told.startswith(place)
    assert words in told


@pytest.mark.parametrize(
    "text",
    ["kind: '{{ .Values.kind }}'\napiVersion: v1\n", "kind: Pod\napiVersion: v1\nmetadata: {name: '{{ .x }}'}\n"],
)
def test_a_template_that_is_valid_yaml_is_refused(text: str) -> None:
    assert "a Helm template; render it first" in migrated(text).problems[0]


def test_a_count_that_is_a_template_stays_and_is_named() -> None:
    """Workflow engines have such manifests; the rest of the pod is translated."""
    found = migrated(POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: '{{ .Values.gpus }}'"))
    assert found.workloads == []
    assert any("render the template first" in note.message for note in found.notes)


def test_tags_make_no_objects() -> None:
    text = "a: !!python/object/apply:os.system ['true']\nb: !custom {c: 1}\n"
    (document,), problems = plain_documents(ManifestSource(name="in.yaml", text=text))
    assert (document.value, problems) == ({"a": ["true"], "b": {"c": 1}}, [])


def test_documents_are_numbered_as_they_stand() -> None:
    text = "# c\n---\na: 1\n---\n# empty\n---\nb: 2\n--- {c: 3}\n"
    documents, _ = plain_documents(ManifestSource(name="in.yaml", text=text))
    assert [(each.number, each.line) for each in documents] == [(1, 3), (3, 7), (4, 8)]


def test_documents_are_bounded() -> None:
    assert MAX_DOCUMENTS <= 5_000
    source = ManifestSource(name="in.yaml", text="---\na: 1\n" * 4)
    documents, problems = plain_documents(source, most=3)
    assert len(documents) == 3
    assert problems == ["in.yaml:8: more than 3 documents; the rest is not read"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: v2\nflags: {}\n", "unknown version 'v2' of the device plugin's config; expected v1"),
        ("version: v2\nmig-configs: {}\n", "expected version v1 of mig-parted's config, got v2"),
        ("apiVersion: nvidia.com/v2\nkind: ClusterPolicy\n", "unknown ClusterPolicy version nvidia.com/v2"),
        ("a: 1\nb: 2\n", "unknown format (it begins with a, b)"),
        ("- 1\n", "expected an object or a configuration, got a list"),
        ("just text\n", "got the text 'just text'"),
        ("version: v1\nflags: {migStrategy: some}\n", "flags.migStrategy: expected none, single or mixed, got 'some'"),
        ("version: v1\nsharing: {timeSlicing: {resources: []}}\n", "expected at least one resource"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}\n", "replicas, 2 or more"),
        (PARTED + "[{devices: all}]}\n", "the required field mig-enabled is missing"),
        (PARTED + "[{devices: some, mig-enabled: false}]}\n", "expected all or a list of GPU indexes"),
        (PARTED + "[{devices: all, mig-enabled: false, x: 1}]}\n", "unknown field 'x' of mig-parted"),
        (PARTED + "[{devices: all, mig-enabled: true, mig-devices: {1g5gb: 1}}]}\n", "is not a MIG profile"),
        (PARTED + "[{devices: all, mig-enabled: true, device-filter: 3, mig-devices: {}}]}\n",
         "expected PCI ids as strings"),
    ],
)  # fmt: skip
def test_other_formats_and_versions_are_refused_by_name(text: str, problem: str) -> None:
    found = migrated(f"{text}---\n{POD}")
    (told,) = found.problems
    assert problem in told
    assert told.startswith("input.yaml:")
    assert "document 1" in told
    assert len(found.workloads) == 1


def test_a_broken_config_inside_a_configmap_is_named_with_its_key() -> None:
    data = {"good": "version: v1\nflags: {migStrategy: none}\n", "bad": "version: v1\nsharing: {timeSlicing: [\n"}
    found = migrated(yaml.safe_dump({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}))
    assert "ConfigMap c, data.bad" in found.problems[0]


@pytest.mark.parametrize(
    "spec",
    [
        "{containers: [1, null, {resources: 3}, {resources: {limits: [nvidia.com/gpu]}}]}",
        "{containers: [{resources: {limits: {nvidia.com/gpu: [1]}}}]}",
        "{containers: [{resources: {limits: {nvidia.com/gpu: 1}}, env: {a: b}}], nodeSelector: [x], affinity: 3}",
        "{containers: [{resources: {limits: {nvidia.com/gpu: 1}}}], resourceClaims: x}",
        "{containers: [{resources: {limits: {nvidia.com/gpu: 1}}}], affinity: {nodeAffinity: []}}",
        "7",
    ],
)
def test_malformed_pod_does_not_end_the_run(spec: str) -> None:
    found = migrated(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: odd}}\nspec: {spec}\n---\n{POD}")
    assert [value["metadata"]["name"] for _, value in found.workloads][-1] == "p"
    assert found.problems == [] or "Pod odd: a field has an unexpected type" in found.problems[0]


def test_names_cannot_write_lines_or_commands_to_the_terminal() -> None:
    hostile = POD.replace("name: p", r'name: "p\e[31m\nCARRIED OVER (9)"').replace("gpu: 1", r'gpu: "\e[2J1"')
    text = as_text(migrated(hostile))
    assert "\x1b" not in text
    assert "Pod p?[31m CARRIED OVER (9)" in text
    assert not any(line.startswith("CARRIED OVER (9)") for line in text.splitlines())
