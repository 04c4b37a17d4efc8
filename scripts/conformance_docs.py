"""Write the tables of docs/conformance.md from the checks of the conformance suite. Text outside them is manual."""

from collections.abc import Iterator
from pathlib import Path

from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import CAPABILITIES, Check

PAGE = Path("docs/conformance.md")
BEGIN, END = "<!-- generated: checks -->", "<!-- end of generated text -->"


def generate(source: Path, target: Path) -> None:
    """Write the page of ``source`` with new tables below ``target``."""
    text = (source / PAGE).read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    (target / PAGE).parent.mkdir(parents=True, exist_ok=True)
    (target / PAGE).write_text("\n".join([f"{head}{BEGIN}\n", *tables(), f"\n{END}{tail}"]))


def outputs(root: Path) -> list[Path]:
    """Return the page, if it exists below ``root``."""
    return [path for path in (root / PAGE,) if path.exists()]


def tables() -> Iterator[str]:
    yield "| capability | detection |\n|---|---|"
    yield from (f"| `{name}` | {text} |" for name, text in CAPABILITIES.items())
    groups = dict.fromkeys(check.id.partition("-")[0] for check in CHECKS)
    for group in groups:
        yield f"\n### {group.capitalize()}\n\n| check | expectation | scope |\n|---|---|---|"
        yield from (row(check) for check in CHECKS if check.id.partition("-")[0] == group)


def row(check: Check) -> str:
    unusual = [each for each in (check.profile, check.level) if each not in {"basic", "must"}]
    scope = ", ".join([*unusual, *(f"needs {need}" for need in check.needs)])
    return f"| `{check.id}` | {check.title} | {scope} |"
