"""The examples of docs/lint.md break or satisfy the rules as the document says."""

import re
from pathlib import Path

import pytest

from tests.unit.kubectl.lint.helpers import rules, selecting, template

TEXT = (Path(__file__).parents[4] / "docs/lint.md").read_text()
PLAIN = "- {name: gpu, exactly: {deviceClassName: gpu.nvidia.com}}"


def examples() -> list[tuple[str, str, str]]:
    """Returns rule, ``wrong`` or ``right``, and manifest of each example."""
    found = []
    for section in re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]:
        rule = section.split()[0]
        for language, block in re.findall(r"^```(cel|yaml)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
            for verdict, body in re.findall(r"# (wrong|right)\n(.*?)(?=# wrong|# right|\Z)", block, re.DOTALL):
                found.append((rule, verdict, selecting(body.strip()) if language == "cel" else manifest(body)))
    return found


def manifest(body: str) -> str:
    if body.startswith("apiVersion"):
        return body
    return template(body) if body.startswith("- ") else template(PLAIN, rest=body)


@pytest.mark.parametrize(("rule", "verdict", "text"), examples())
def test_examples_of_the_document(rule: str, verdict: str, text: str) -> None:
    """The wrong example breaks the rule; the right one has no findings."""
    found = rules(text)
    assert rule in found if verdict == "wrong" else found == []


def test_the_document_has_examples() -> None:
    assert len(examples()) > 40
