"""Builds the C library of this folder. Needs gcc; tests skip with ``reason_why_not()`` without it."""

import shutil
import subprocess
from pathlib import Path

from tests.fakes.nvml.state import ENVIRONMENT

SOURCES = tuple(sorted(Path(__file__).parent.glob("*.c")))
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared", "-pthread")


def reason_why_not() -> str | None:
    """Why the library cannot be built here, None when it can."""
    return None if shutil.which("gcc") else "gcc is not installed, which builds the stand-in for libnvidia-ml.so.1"


def build(folder: Path, environment: str = ENVIRONMENT) -> Path:
    """``folder/libnvidia-ml.so.1``, in about 0.3 s. ``environment`` names the variable that holds the path of its state
    file: a library with another one plays another release of the driver."""
    library = folder / "libnvidia-ml.so.1"
    options = [*FLAGS, "-Wl,-soname,libnvidia-ml.so.1", f'-DSTATE_ENVIRONMENT="{environment}"', "-o", str(library)]
    command = ["gcc", *options, *map(str, SOURCES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return library
