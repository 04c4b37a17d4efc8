"""Policy texts: what is read, and on which line it stands."""

import pytest

from dra_driver.node.policy.folder import UnreadableError, read_documents


def read(text: str | bytes, *, is_json: bool = False) -> list[object]:
    data = text.encode() if isinstance(text, str) else text
    return [document.value for document in read_documents(data, is_json=is_json)]


def refusal(text: str | bytes, *, is_json: bool = False) -> tuple[int, str]:
    with pytest.raises(UnreadableError) as caught:
        read(text, is_json=is_json)
    return caught.value.line, str(caught.value)


def test_documents_of_one_file_and_their_values() -> None:
    """Empty documents, as a trailing separator leaves them, are none."""
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
    """And a field that is missing has the line of what it is missing in."""
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
    """The administrator finds the place without counting."""
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
    """A tab that YAML would stumble over is fine; what Python would choke on is an error like others."""
    assert read('{\t"a": "\\u00e4"}', is_json=True) == [{"a": "ä"}]
    assert refusal(text, is_json=True)[1].startswith(said)
