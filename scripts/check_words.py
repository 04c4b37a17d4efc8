"""Check the language of the repository: banned words, sentences that `plain.py` finds, and public classes that share a
name.

The lists and their exceptions are in ``scripts/words.toml`` and ``scripts/plain.toml``. An exception that matches
nothing is a breach too, so that the lists stay short. Exit status 1 lists every breach.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import plain

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "scripts/words.toml"
WIRE = ("dra_driver/kube/objects/",)  # Kubernetes' own names of its objects
GENERATED = "dra_driver/core/_pb/"


def main() -> int:
    rules = tomllib.loads(LIST.read_text())
    files = tracked()
    breaches = [*words(rules, files), *twins(rules["twins"], files), *plain.breaches(files)]
    for breach in breaches:
        print(breach)
    if long := sum(plain.long_sentences(text) for name, text in files.items() if name.endswith(".md")):
        print(f"Warning: {long} sentences of Markdown have over {plain.LONGEST} words.")
    if not breaches:
        print(f"Words: none of {', '.join(rules['banned'])}; no two public classes of one name without a reason.")
    return 1 if breaches else 0


def tracked() -> dict[str, str]:
    """Text of every tracked or not yet ignored text file by its name."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = {}
    for name in names:
        path = ROOT / name
        if path.is_file() and not name.startswith(GENERATED):
            try:
                found[name] = path.read_text()
            except UnicodeDecodeError:
                continue
    return found


def words(rules: Mapping[str, Any], files: Mapping[str, str]) -> Iterator[str]:
    """Lines with a banned word, also within an identifier; a phrase may be broken over two lines."""
    phrases = [word.replace(" ", r"[\s#*_]+") for word in rules["banned"]]
    pattern = re.compile(rf"(?<![a-z])(?:{'|'.join(phrases)})(?![a-z])", re.IGNORECASE)
    used: set[int] = set()
    for name, text in files.items():
        if any(fnmatch(name, exempt) for exempt in rules["exempt"]):
            continue
        lines = text.splitlines()
        for match in pattern.finditer(text):
            number = text.count("\n", 0, match.start())
            at = [
                index
                for index, one in enumerate(rules["allowed"])
                if one["file"] == name and one["line"] in lines[number]
            ]
            used.update(at)
            if not at:
                yield f"{name}:{number + 1}: '{match.group().lower()}': name the component, the user or the object"
    for index, one in enumerate(rules["allowed"]):
        if index not in used:
            yield f"scripts/words.toml: nothing in {one['file']} needs the exception '{one['line']}' any more"


def twins(reasons: Mapping[str, str], files: Mapping[str, str]) -> Iterator[str]:
    """Public classes of the package that share their name with another one."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for name, text in files.items():
        if name.startswith("dra_driver/") and name.endswith(".py") and not name.startswith(WIRE):
            for class_name, line in public_classes(text):
                places[class_name].append(f"{name}:{line}")
    for class_name, where in sorted(places.items()):
        if len(where) > 1 and class_name not in reasons:
            yield f"class {class_name} is defined in {listed(where)}: rename one, or give the reason in words.toml"
    for class_name in reasons:
        if len(places[class_name]) < 2:
            yield f"scripts/words.toml: {class_name} is no twin any more"


def public_classes(text: str) -> Iterator[tuple[str, int]]:
    """Classes at the top of a module."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node.lineno


def listed(where: Sequence[str]) -> str:
    return ", ".join(where)


if __name__ == "__main__":
    sys.exit(main())
