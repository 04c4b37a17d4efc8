"""What cannot be read is named with file, line and document, and everything else is translated."""

import pytest
import yaml

from dra_driver.kubectl.lint import ManifestSource, plain_documents
from dra_driver.kubectl.lint.manifest import MAX_DOCUMENTS
from dra_driver.kubectl.migrate import as_text
from tests.unit.kubectl.migrate.helpers import migrated

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
    """With its file, line and document; the documents after it are read."""
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
    """Its objects would have braces in their names."""
    assert "a Helm template; render it first" in migrated(text).problems[0]


def test_a_count_that_is_a_template_stays_and_is_named() -> None:
    """Workflow engines have such manifests; the rest of the pod is translated."""
    found = migrated(POD.replace("nvidia.com/gpu: 1", "nvidia.com/gpu: '{{ .Values.gpus }}'"))
    assert found.workloads == []
    assert any("must be rendered first" in note.text for note in found.notes)


def test_tags_make_no_objects() -> None:
    text = "a: !!python/object/apply:os.system ['true']\nb: !custom {c: 1}\n"
    (document,), problems = plain_documents(ManifestSource(name="in.yaml", text=text))
    assert (document.value, problems) == ({"a": ["true"], "b": {"c": 1}}, [])


def test_documents_are_numbered_as_they_stand() -> None:
    """With comments and a separator above the first one, and one that begins beside its separator."""
    text = "# c\n---\na: 1\n---\n# empty\n---\nb: 2\n--- {c: 3}\n"
    documents, _ = plain_documents(ManifestSource(name="in.yaml", text=text))
    assert [(each.number, each.line) for each in documents] == [(1, 3), (3, 7), (4, 8)]


def test_documents_are_bounded() -> None:
    """A file of separators must not fill the memory."""
    assert MAX_DOCUMENTS <= 5_000
    source = ManifestSource(name="in.yaml", text="---\na: 1\n" * 4)
    documents, problems = plain_documents(source, most=3)
    assert len(documents) == 3
    assert problems == ["in.yaml:8: more than 3 documents; the rest is not read"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("version: v2\nflags: {}\n", "version 'v2' of the device plugin's config is not known; expected v1"),
        ("version: v2\nmig-configs: {}\n", "expected version v1 of mig-parted's config, got v2"),
        ("apiVersion: nvidia.com/v2\nkind: ClusterPolicy\n", "ClusterPolicy of nvidia.com/v2 is not known"),
        ("a: 1\nb: 2\n", "a format that is not known (it begins with a, b)"),
        ("- 1\n", "expected an object or a configuration, got a list"),
        ("just text\n", "got the text 'just text'"),
        ("version: v1\nflags: {migStrategy: some}\n", "flags.migStrategy: expected none, single or mixed, got 'some'"),
        ("version: v1\nsharing: {timeSlicing: {resources: []}}\n", "expected at least one resource"),
        ("version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 1}]}}\n", "replicas, 2 or more"),
        (PARTED + "[{devices: all}]}\n", "the required field mig-enabled is missing"),
        (PARTED + "[{devices: some, mig-enabled: false}]}\n", "expected all or a list of GPU indexes"),
        (PARTED + "[{devices: all, mig-enabled: false, x: 1}]}\n", "mig-parted knows no field 'x' here"),
        (PARTED + "[{devices: all, mig-enabled: true, mig-devices: {1g5gb: 1}}]}\n", "is no MIG profile"),
        (PARTED + "[{devices: all, mig-enabled: true, device-filter: 3, mig-devices: {}}]}\n",
         "expected PCI ids as texts"),
    ],
)  # fmt: skip
def test_other_formats_and_versions_are_refused_by_name(text: str, problem: str) -> None:
    """And the pod in the same file is translated."""
    found = migrated(f"{text}---\n{POD}")
    (told,) = found.problems
    assert problem in told
    assert told.startswith("input.yaml:")
    assert "document 1" in told
    assert len(found.workloads) == 1


def test_a_broken_config_inside_a_configmap_is_named_with_its_key() -> None:
    """The file alone would not say which of many."""
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
def test_a_pod_with_odd_parts_does_not_end_the_run(spec: str) -> None:
    found = migrated(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: odd}}\nspec: {spec}\n---\n{POD}")
    assert [value["metadata"]["name"] for _, value in found.workloads][-1] == "p"
    assert found.problems == [] or "Pod odd: a field has another type" in found.problems[0]


def test_names_cannot_write_lines_or_commands_to_the_terminal() -> None:
    """The report shows them on one line, without control characters."""
    hostile = POD.replace("name: p", r'name: "p\e[31m\nCARRIED OVER (9)"').replace("gpu: 1", r'gpu: "\e[2J1"')
    text = as_text(migrated(hostile))
    assert "\x1b" not in text
    assert "Pod p?[31m CARRIED OVER (9)" in text
    assert not any(line.startswith("CARRIED OVER (9)") for line in text.splitlines())
