"""The generated parse tables, and modules that the evaluation must not import."""

import subprocess
import sys

from dra_driver.scheduler.cel import grammar


def test_parse_tables_are_those_of_the_grammar() -> None:
    """After a change of cel-python's grammar or of the replaced rules the checked-in tables differ."""
    assert grammar.TABLES.read_text(encoding="ascii") == grammar.rendered()


def test_evaluation_imports_neither_lark_nor_cel_python() -> None:
    """Importing them and building a parser would take longer than a command may take to start."""
    code = (
        "import sys; from dra_driver.scheduler.cel import *;"
        "compile_selector('device.driver == \"x\"').evaluate(DeviceView('x', {}));"
        "print(sorted({m.split('.')[0] for m in sys.modules} & {'lark', 'celpy'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
