"""Files that an older version left in the package's folder are not loaded in place of the current ones.

`pip install` over an unpacked tree, a copied folder or an interrupted checkout leaves modules that have become packages
since (``claims/journal.py`` beside ``node/claims/journal/``), and compiled files of modules that are gone.
"""

import py_compile
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BECAME_PACKAGES = ("node/claims/journal", "hardware/gpu/nvml", "hardware/gpu/simulated", "sim/demo", "sim/node")
GONE = ("claims/make", "scheduler/cel/fast", "node/process/follower")
IMPORT_ALL = """
import importlib, pkgutil, dra_driver
for found in pkgutil.walk_packages(dra_driver.__path__, "dra_driver."):
    if not found.name.startswith(("dra_driver.core._pb.", "dra_driver.config.schemas")) and found.name not in {gone}:
        importlib.import_module(found.name)
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package among leftovers, each of which would end the process if it were loaded."""
    package = tmp_path / "dra_driver"
    shutil.copytree(ROOT / "dra_driver", package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (*BECAME_PACKAGES, *GONE):
        old = package / f"{name}.py"
        assert not old.exists(), f"{name} is no example any more"
        old.parent.mkdir(parents=True, exist_ok=True)  # of packages that moved, only leftovers remain
        old.write_text("raise SystemExit('a module of an older version was loaded')\n")
        py_compile.compile(str(old))  # in __pycache__
        py_compile.compile(str(old), cfile=str(old.with_suffix(".pyc")))  # beside it, as builds without sources have it
    return tmp_path


def run(copy: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *arguments]
    environment = {"PYTHONPATH": str(copy), "PATH": "/usr/bin:/bin"}
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_every_module_loads_beside_leftovers_of_an_older_version(copy: Path) -> None:
    gone = {f"dra_driver.{name.replace('/', '.')}" for name in GONE}
    done = run(copy, "-c", IMPORT_ALL.format(gone=gone))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_commands_start_beside_leftovers_of_an_older_version(copy: Path) -> None:
    done = run(copy, "-m", "dra_driver.core.command_line.main", "version")
    assert done.returncode == 0, done.stderr
    assert str(copy) in run(copy, "-c", "import dra_driver; print(dra_driver.__file__)").stdout
