"""The generated parse tables, and what evaluating selectors must not load."""

import subprocess
import sys

from dra_driver.cel import grammar


def test_parse_tables_are_those_of_the_grammar() -> None:
    """A change of cel-python's grammar or of ours shows up as a difference in the checked-in tables."""
    assert grammar.TABLES.read_text(encoding="ascii") == grammar.rendered()


def test_evaluation_loads_neither_lark_nor_cel_python() -> None:
    """Building a parser takes longer than a command may take to start; the tables are ready made."""
    code = (
        "import sys; from dra_driver.cel import *;"
        "compile_selector('device.driver == \"x\"').evaluate(DeviceView('x', {}));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'lark', 'celpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
