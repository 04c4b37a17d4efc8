"""Write the tables of docs/conformance.md from the checks of the conformance suite. Text outside them is manual."""

from collections.abc import Iterator
from pathlib import Path

from dra_driver.conformance.checks import CHECKS
from dra_driver.conformance.values import CAPABILITIES

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
    yield "\n| group | checks |\n|---|---|"
    for group in dict.fromkeys(check.id.partition("-")[0] for check in CHECKS):
        names = (check.id.partition("-")[2] for check in CHECKS if check.id.partition("-")[0] == group)
        yield f"| `{group}-` | {', '.join(f'`{name}`' for name in names)} |"
