"""Checks every Markdown file: lines of at most 120 columns, and links within the repository that lead somewhere.

Exempt from the limit are table rows, code blocks (fenced or indented) and lines with a URL. A link may name a file or
folder, relative to the page, and a heading (``#anchor``) of a Markdown file, spelled as GitHub spells it. Addresses of
other sites are not looked up. Exit status 1 lists every breach.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_COLUMNS = 120
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)")
_URL = re.compile(r"https?://")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


def main() -> int:
    breaches = [breach for path in pages() for breach in inspect(path)]
    for breach in breaches:
        print(breach)
    if not breaches:
        print(f"Docs: at most {MAX_COLUMNS} columns, and every link within the repository leads somewhere.")
    return 1 if breaches else 0


def pages() -> list[Path]:
    """Tracked and not yet tracked Markdown files."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


def inspect(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT)
    for number, line in prose(path):
        if len(line) > MAX_COLUMNS and not line.lstrip().startswith("|") and not _URL.search(line):
            yield f"{name}:{number}: {len(line)} columns, at most {MAX_COLUMNS}"
        for target in _LINK.findall(line):
            if problem := broken(path, target):
                yield f"{name}:{number}: link to {target}: {problem}"


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines outside of code blocks."""
    fenced = False
    before = ""
    in_block = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            indented = line.startswith("    ")
            in_block = indented and (in_block or not before.strip()) and not before.lstrip().startswith(("-", "*"))
            if not in_block:
                yield number, line
        before = line


def broken(page: Path, target: str) -> str | None:
    """What is wrong with a link, None if nothing is."""
    if _URL.match(target) or target.startswith("mailto:"):
        return None
    file, _, anchor = target.partition("#")
    found = (page.parent / file).resolve() if file else page
    if not found.exists():
        return "no such file"
    if not found.is_relative_to(ROOT):
        return "outside of the repository"
    if anchor and found.suffix == ".md" and anchor not in anchors(found):
        return f"no such heading in {found.relative_to(ROOT)}"
    return None


def anchors(page: Path) -> set[str]:
    """Anchors of the page's headings."""
    headings = [line.lstrip("#").strip() for _, line in prose(page) if re.match(r"#+ ", line)]
    return {_NOT_IN_ANCHORS.sub("", heading.replace("`", "").lower()).replace(" ", "-") for heading in headings}


if __name__ == "__main__":
    sys.exit(main())
