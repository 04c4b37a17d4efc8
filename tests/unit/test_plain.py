"""The checker of plain English finds each pattern, and its numbers only fall."""

from pathlib import Path

import pytest

from tests.fakes.scripts import script

plain = script("plain")
# One example of each pattern, in the order of `plain.PATTERNS`.
EXAMPLES = (
    ("a.py", '"""Which claims remain."""'),
    ("a.md", "## Where it is"),
    ("a.py", "# the claim is told"),
    ("a.py", "# publishes what is left"),
    ("a.py", "# prepares the others"),
    ("a.py", "# the GPU was seen"),
    ("a.py", "# gives the driver up"),
    ("a.py", "# the exporter hears it"),
    ("a.md", "The GPU is ill."),
    ("a.md", "The process starts anew."),
    ("a.py", "# the pod is gone"),
    ("a.py", "# it is no GPU"),
    ("a.py", "# not published unless healthy"),
    ("a.md", "The model is not known."),
    ("a.py", "# it has to be reset"),
    ("a.py", "# at each look"),
    ("a.py", "def test_what_happens(): ..."),
)


@pytest.mark.parametrize(
    ("number", "example"), list(enumerate(EXAMPLES, 1)), ids=[str(n) for n in range(1, len(EXAMPLES) + 1)]
)
def test_pattern_finds_its_example(number: int, example: tuple[str, str]) -> None:
    assert [(match.line, match.number) for match in plain.matches(*example)] == [(1, number)]


def test_code_and_exempt_lines_do_not_count() -> None:
    assert plain.matches("a.py", "told = 1\nx = 2  # told twice  # plain: quotes a name\n") == []


@pytest.fixture
def limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "LIMITS", tmp_path / "plain.toml")
    plain.LIMITS.write_text('[allowed]\n"a.md" = 1\n')


@pytest.mark.usefixtures("limit")
@pytest.mark.parametrize(("text", "breaches"), [("Told.\nTold.\n", 3), ("Told.\n", 0), ("Reported.\n", 1)])
def test_a_file_keeps_its_number(text: str, breaches: int) -> None:
    assert len(list(plain.breaches({"a.md": text}))) == breaches


@pytest.mark.usefixtures("limit")
def test_update_never_raises_a_number() -> None:
    plain.update({"a.md": "Told. Told.\n", "b.md": "Told.\n"}, first=False)
    assert plain.LIMITS.read_text().endswith('[allowed]\n"a.md" = 1\n')
    plain.update({"a.md": "Reported.\n"}, first=False)
    assert plain.LIMITS.read_text().endswith("[allowed]\n")


def test_long_sentences_leave_out_code_and_tables() -> None:
    words = "word " * 31
    assert plain.long_sentences(f"{words}.\n\n    {words}\n| {words} |\n```\n{words}\n```\nShort.") == 1
