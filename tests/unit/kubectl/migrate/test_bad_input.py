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


def read(text: str) -> tuple[int, list[str]]:
    documents, problems = plain_documents(ManifestSource(name="in.yaml", text=text))
    return len(documents), problems


def test_a_truncated_document_is_named_and_the_next_one_is_read() -> None:
    """With its line and its number."""
    count, problems = read("a: 1\n---\nb: {c: [1,\n---\n" + POD)
    assert count == 2
    assert problems[0].startswith("in.yaml:4:1: document 2: not valid YAML")


def test_a_helm_template_is_told_to_be_rendered() -> None:
    """The braces are what the reader stumbles over."""
    _, problems = read("apiVersion: v1\nkind: Pod\n{{- if .Values.x }}\nmetadata: {name: a}\n{{- end }}\n")
    assert "in.yaml:4:1: document 1" in problems[0]
    assert "helm template" in problems[0]


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


def test_aliases_cannot_expand_without_bounds() -> None:
    """A few hundred bytes would be gigabytes."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    _, problems = read("\n".join(lines))
    assert "aliases expand to more than" in problems[0]


def test_deep_nesting_is_refused() -> None:
    """Without recursion of the reader."""
    _, problems = read("a: " + "[" * 5000)
    assert "nested more than 100 levels" in problems[0]


def test_tags_make_no_objects() -> None:
    """A tag is read as if it were not there."""
    documents, problems = plain_documents(
        ManifestSource(name="in.yaml", text="a: !!python/object/apply:os.system ['true']\nb: !custom {c: 1}\n")
    )
    assert problems == []
    assert documents[0].value == {"a": ["true"], "b": {"c": 1}}


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


def test_a_key_that_occurs_twice_is_named() -> None:
    """One of its values would be lost."""
    _, problems = read("version: v1\nflags: {migStrategy: none}\nflags: {migStrategy: mixed}\n")
    assert "occurs twice" in problems[0]


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


def test_a_pod_with_odd_parts_does_not_end_the_run() -> None:
    """Values of other types than Kubernetes has."""
    odd = [
        "spec: {containers: [1, null, {resources: 3}, {resources: {limits: [nvidia.com/gpu]}}]}",
        "spec: {containers: [{resources: {limits: {nvidia.com/gpu: [1]}}}]}",
        "spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}, env: {a: b}}], nodeSelector: [x], affinity: 3}",
        "spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}], resourceClaims: x}",
        "spec: {containers: [{resources: {limits: {nvidia.com/gpu: 1}}}], affinity: {nodeAffinity: []}}",
        "spec: 7",
    ]
    for spec in odd:
        found = migrated(f"apiVersion: v1\nkind: Pod\nmetadata: {{name: odd}}\n{spec}\n---\n{POD}")
        assert [value["metadata"]["name"] for _, value in found.workloads][-1] == "p"
        assert found.problems == [] or "Pod odd: a field has another type" in found.problems[0]


def test_names_cannot_write_lines_or_commands_to_the_terminal() -> None:
    """The report shows them on one line, without control characters."""
    hostile = POD.replace("name: p", r'name: "p\e[31m\nCARRIED OVER (9)"').replace("gpu: 1", r'gpu: "\e[2J1"')
    text = as_text(migrated(hostile))
    assert "\x1b" not in text
    assert "Pod p?[31m CARRIED OVER (9)" in text
    assert not any(line.startswith("CARRIED OVER (9)") for line in text.splitlines())
