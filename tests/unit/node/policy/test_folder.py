"""Which files count, and that a set is read whole."""

import os
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError
from dra_driver.node.policy import folder as policy_folder
from dra_driver.node.policy.folder import UnreadableError, fingerprint, read_documents, read_folder


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
    with pytest.raises(ConfigurationError, match="nowhere does not exist"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "a.yaml").write_bytes(b"#" * (policy_folder.MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigurationError, match=r"a.yaml is larger than 256 KiB"):
        read_folder(tmp_path)
    (tmp_path / "a.yaml").unlink()
    os.mkfifo(tmp_path / "b.yaml")
    with pytest.raises(ConfigurationError, match=r"b.yaml is not a regular file"):
        read_folder(tmp_path)
    (tmp_path / "b.yaml").unlink()
    (tmp_path / "c.yaml").symlink_to("gone")
    with pytest.raises(ConfigurationError, match=r"c.yaml does not exist"):
        read_folder(tmp_path)
    (tmp_path / "c.yaml").unlink()
    for number in range(policy_folder.MAX_FILES + 1):
        (tmp_path / f"{number}.yaml").touch()
    with pytest.raises(ConfigurationError, match="has 65 policy files, at most 64"):
        read_folder(tmp_path)


def test_a_folder_in_place_of_a_file_is_named_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").mkdir()
    before = sum(1 for _ in Path("/proc/self/fd").iterdir())
    for _ in range(3):
        with pytest.raises(ConfigurationError, match=r"a.yaml is not a regular file"):
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
