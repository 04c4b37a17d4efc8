"""Reading YAML: positions in all styles, aliases, limits, and files without manifests."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.lint import lint
from dra_driver.kubectl.lint.manifest import MAX_FILE_BYTES, ManifestSource, collect
from dra_driver.kubectl.lint.reading import (
    MAX_DEPTH,
    MAX_NODES,
    YamlProblem,
    line_and_column,
    offset_in_text,
    plain,
    read,
)
from dra_driver.kubectl.lint.scope import known_from_catalog
from tests.unit.kubectl.lint.helpers import one, rules


def trees(text: str) -> tuple[list[object], list[YamlProblem]]:
    problems: list[YamlProblem] = []
    return [plain(root) for root in read(text, problems.append)], problems


STYLES = [
    "e: device.driver == 'a' && BAD\n",
    "e: 'device.driver == ''a'' && BAD'\n",
    'e: "device.driver == \\"a\\"\\x20\\u0026& BAD"\n',
    "e: >-\n  device.driver == 'a'\n\n  && BAD\n",
    "e: |  # why\n\n    device.driver == 'a'\n      && BAD\n",
    "e: &anchor device.driver == 'a'\n  && BAD\n",
    "e: \"device.driver == 'a' \\\n    && BAD\"\n",
    "e: !!str device.driver == 'a' && BAD\n",
    '{"e":\t"device.driver == \'a\' && BAD"}\n',
]


@pytest.mark.parametrize("text", STYLES)
def test_position_in_a_value_is_found_in_the_file(text: str) -> None:
    root = next(read(text, lambda problem: None))
    node = root.get("e")
    assert node is not None
    place = offset_in_text(text, node, str(node.value).index("BAD"))
    assert place == text.index("BAD")
    line, column = line_and_column(text, node, place)
    assert text.split("\n")[line - 1][column - 1 :].startswith("BAD")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True), ("Off", False), ("~", None), ("0x1F", 31), ("010", 8), ("0o10", 8), ("1.5", 1.5),
        ("1e3", 1000.0), ("2001-01-01", "2001-01-01"), ("9" * 50, float("9" * 50)), ("'1'", "1"), ("1Gi", "1Gi"),
        ("-", [None]), ("0b11", 3),
    ],
)  # fmt: skip
def test_scalars_are_resolved_like_in_kubernetes(text: str, value: object) -> None:
    documents, problems = trees(f"a: {text}" if text != "-" else "a:\n-\n")
    assert (documents, problems) == ([{"a": value}], [])


def test_merge_keys_and_aliases_are_followed() -> None:
    documents, _ = trees("x: &x {a: 1, b: 2}\ny: {<<: *x, b: 3}\nz: [*x, *x]\n")
    assert documents == [{"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "z": [{"a": 1, "b": 2}] * 2}]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: &a [*a]", "contains itself"),
        ("a: *b", "no anchor &b"),
        ("[" * (MAX_DEPTH + 1), f"more than {MAX_DEPTH} levels"),
        ("- " * (MAX_DEPTH + 1) + "x", f"more than {MAX_DEPTH} levels"),
        ("a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]\n" for i in range(8)),
         "aliases expand to more than"),
        ("? [a]\n: b", "a key must be text"),
        ("a: [1", "not valid YAML"),
        ("a: \x01", "invalid character"),
        ("%YAML 9.9\n---\na: 1", "not valid YAML"),
    ],
)  # fmt: skip
def test_invalid_yaml_has_one_message(text: str, words: str) -> None:
    _, problems = trees(text)
    assert len(problems) == 1
    assert words in problems[0].message
    assert len(problems[0].message) < 300


def test_documents_after_invalid_one_are_read() -> None:
    documents, problems = trees("a: 1\n---\nb: [\n---\nc: 3\n---\nd: }\n---\ne: 5\n")
    assert documents == [{"a": 1}, {"c": 3}, {"e": 5}]
    assert [problem.line for problem in problems] == [4, 7]


@pytest.mark.slow
def test_too_many_values_stop_the_reading_of_a_file() -> None:
    documents, problems = trees("a: 1\n---\n[" + "x," * MAX_NODES + "]\n---\nb: 2\n")
    assert documents == [{"a": 1}]
    assert [problem.message for problem in problems] == [f"more than {MAX_NODES} values in one file"]


def test_duplicate_keys_are_found_with_their_position() -> None:
    found = one("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {x: 1, x: 2}\n", "DRA002")
    assert (found.line, found.column) == (4, 14)


def test_a_helm_template_is_recognised() -> None:
    assert "Helm" in one("a: {{ .Values.x }}\n", "DRA001").hint


def test_files_that_are_no_manifests(tmp_path: Path) -> None:
    (tmp_path / "junk.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "large.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "values.yaml").write_text("a: 1\n")
    (tmp_path / "wide.yaml").write_bytes("a: 1\n".encode("utf-16"))
    (tmp_path / "notes.txt").write_text("[[[")
    (tmp_path / "loop").symlink_to(tmp_path)
    report = lint(collect([str(tmp_path)], bytes), known_from_catalog())
    assert [(Path(f.file).name, f.rule) for f in report.findings] == [("junk.yaml", "DRA001"), ("large.yaml", "DRA001")]
    assert report.files == 4


def test_standard_input_and_missing_files() -> None:
    assert [s.name for s in collect(["-"], lambda most: b"a: 1"[:most])] == ["<stdin>"]
    with pytest.raises(ConfigurationError, match="nonexistent"):
        list(collect(["/nonexistent/x.yaml"], bytes))


@pytest.mark.parametrize("text", ["", "\n", "---\n---\n", "# nothing\n", "null\n", "[]\n", "just text\n", "1\n"])
def test_texts_without_objects_are_valid(text: str) -> None:
    assert set(rules(text)) <= {"DRA001"}
    assert not lint([ManifestSource(name="x", text=text)], known_from_catalog()).failed
