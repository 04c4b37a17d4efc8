"""An installation with the packages and rooms of the image, for processes that have to run from it."""

import importlib.metadata
import re
import runpy
import shutil
from collections.abc import Iterable
from pathlib import Path

from tests.fakes.node_process import DriverProcess

ROOT = Path(__file__).resolve().parents[2]


def locked(name: str) -> set[str]:
    lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
    return {normal(line.partition("==")[0]) for line in lines if re.match(r"[A-Za-z0-9]", line)}


def left_out(content: str = "node") -> tuple[str, ...]:
    script = runpy.run_path(str(ROOT / "scripts" / "compile_image.py"))
    found: tuple[str, ...] = script[{"node": "LEFT_OUT", "ui": "LEFT_OUT_OF_UI"}[content]]
    return found


def normal(name: str) -> str:
    """The normal form of a package's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def packages_folder(folder: Path, packages: Iterable[str], content: str = "node") -> Path:
    """A folder with links to the installed files of these packages and of this project, as a ``PYTHONPATH``."""
    folder.mkdir()
    shutil.copytree(ROOT / "dra_driver", folder / "dra_driver", ignore=shutil.ignore_patterns("__pycache__"))
    for name in left_out(content):
        shutil.rmtree(folder / "dra_driver" / name)
    for package in packages:
        installed = importlib.metadata.distribution(package)
        for top in {Path(str(file)).parts[0] for file in installed.files or () if ".." not in Path(str(file)).parts}:
            link = folder / top
            # `google` is a folder of several packages.
            if not link.exists() and top != "__pycache__":
                link.symlink_to(Path(str(installed.locate_file(top))))
    return folder


def run_with(process: DriverProcess, packages: Path) -> None:
    """Lets a process that has not started find no packages but those of a `packages_folder`."""
    process.interpreter.append("-S")  # without site-packages
    process.environ["PYTHONPATH"] = str(packages)
