"""Checks the sizes of files and functions, and that every module has a docstring.

Limits: a file of Python over 420 lines and a function over 60 lines fail; a function over 50 must say why in a comment
on or above its first line (`# long: reason`). Generated code is exempt. Exit status 1 lists every breach.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 60
QUESTION_FUNCTION_LINES = 50
GENERATED = "dra_driver/core/_pb/"


def main() -> int:
    breaches = [breach for path in python_files() for breach in inspect(path)]
    for breach in breaches:
        print(breach)
    if not breaches:
        print("Tree: file and function sizes hold, every module has a docstring.")
    return 1 if breaches else 0


def python_files() -> list[str]:
    """Tracked and not yet tracked Python files, ignored ones and generated code left out."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "*.py"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if not name.startswith(GENERATED) and (ROOT / name).is_file()]


def inspect(name: str) -> Iterator[str]:
    text = (ROOT / name).read_text()
    lines = text.splitlines()
    if len(lines) > MAX_FILE_LINES:
        yield f"{name}: {len(lines)} lines, at most {MAX_FILE_LINES}: split it by idea"
    tree = ast.parse(text, name)
    if lines and not name.endswith("__init__.py") and ast.get_docstring(tree) is None:
        yield f"{name}: no module docstring: say what the module does and which rule it implements"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from inspect_function(name, node, lines)


def inspect_function(name: str, node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> Iterator[str]:
    length = (node.end_lineno or node.lineno) - node.lineno + 1
    above = lines[max(0, node.lineno - 2) : node.lineno]
    if length > MAX_FUNCTION_LINES:
        yield f"{name}:{node.lineno} {node.name}: {length} lines, at most {MAX_FUNCTION_LINES}"
    elif length > QUESTION_FUNCTION_LINES and not any("# long:" in line for line in above):
        yield f"{name}:{node.lineno} {node.name}: {length} lines: shorten it or say why in a `# long:` comment"


if __name__ == "__main__":
    sys.exit(main())
