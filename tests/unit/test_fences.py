"""Every import contract of pyproject.toml fails when it is broken, in every package: lint-imports runs on a copy.

That the contracts hold for the package as it stands is part of `make check`.
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
VIOLATION = "zz_violation"
"""Name of the module that is added to each package of the copy."""
CONTRACTS: list[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
FENCES = {
    module: {pattern.split(" -> ")[0] for pattern in contract["ignore_imports"]}
    for contract in CONTRACTS
    if contract["type"] == "forbidden" and "ignore_imports" in contract
    for module in contract["forbidden_modules"]
}
"""Third-party package -> patterns of the modules that may import it."""
FACES = [
    contract["allowed_importers"][0]
    for contract in CONTRACTS
    if contract["type"] == "protected" and contract["allowed_importers"]
]
"""Packages that other packages may enter by their ``__init__`` alone."""
LAYERS = [contract for contract in CONTRACTS if contract["type"] == "layers"]


def packages(copy: Path) -> Iterator[str]:
    for init in sorted(copy.glob("dra_driver/**/__init__.py")):
        name = ".".join(init.parent.relative_to(copy).parts)
        if name.startswith("dra_driver.") and not name.startswith("dra_driver.core._pb"):
            yield name


def add(copy: Path, module: str, statement: str) -> None:
    path = copy / module.replace(".", "/")
    path = path / f"{VIOLATION}.py" if path.is_dir() else path.with_suffix(".py")
    text = path.read_text() if path.exists() else '"""Breaks fences."""\n'
    path.write_text(f"{text}{statement}\n")


def is_exempt(package: str, module: str) -> bool:
    wholes = {pattern.rpartition(".")[0] for pattern in FENCES[module] if pattern.endswith(".*")}
    trees = {pattern.removesuffix(".**") for pattern in FENCES[module] if pattern.endswith(".**")}
    return package in wholes or any(package == tree or package.startswith(f"{tree}.") for tree in trees)


def neighbours(copy: Path) -> Iterator[tuple[str, str]]:
    """A module or package of each layer of each contract, and one of the layer above it."""
    for contract in LAYERS:
        container = contract["containers"][0]
        for upper, lower in zip(contract["layers"], contract["layers"][1:], strict=False):
            low, high = (existing(copy / container.replace(".", "/"), layer) for layer in (lower, upper))
            yield f"{container}.{low}", f"{container}.{high}"


def existing(folder: Path, layer: str) -> str:
    names: list[str] = re.findall(r"\w+", layer)
    return next(name for name in names if (folder / name).is_dir() or (folder / f"{name}.py").is_file())


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package and its contracts, all of them broken."""
    copy = tmp_path_factory.mktemp("broken")
    shutil.copytree(ROOT / "dra_driver", copy / "dra_driver", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    names, pairs = list(packages(copy)), list(neighbours(copy))
    faces = {face: min(path.stem for path in (copy / face.replace(".", "/")).glob("[a-z]*.py")) for face in FACES}
    for name in names:
        add(copy, name, "\n".join(f"import {module}" for module in FENCES))
    for low, high in pairs:
        container, _, above = high.rpartition(".")
        add(copy, low, f"from {container} import {above}")
    for contract in LAYERS:
        add(copy, contract["containers"][0], "")
    for face, inside in faces.items():
        outside = next(name for name in names if not f"{name}.".startswith(f"{face}."))
        add(copy, outside, f"import {face}.{inside}")
    for contract in CONTRACTS:
        for source in contract.get("source_modules", ()) if "ignore_imports" not in contract else ():
            add(copy, source, f"import {contract['forbidden_modules'][0]}")
    add(copy, names[0], "from dra_driver.config.schemas import gpu_policy")
    return copy


@pytest.fixture(scope="module")
def output(copy: Path) -> str:
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    found = subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=copy, capture_output=True, text=True, check=False, timeout=100
    )
    assert found.returncode != 0
    return f"{' '.join((found.stdout + found.stderr).split())} "


def test_every_contract_can_be_broken(output: str) -> None:
    lines = output.replace(" ", "")
    assert [each["name"] for each in CONTRACTS if f"{each['name']} BROKEN".replace(" ", "") not in lines] == []


def test_no_package_imports_any_third_party_package(copy: Path, output: str) -> None:
    seen = set(re.findall(rf"(dra_driver[\w.]*)\.{VIOLATION} -> ([\w.]+)", output))
    expected = {(name, module) for name in packages(copy) for module in FENCES if not is_exempt(name, module)}
    assert {(name, module) for name, module in seen if module in FENCES} == expected


def test_a_layer_does_not_import_the_one_above(copy: Path, output: str) -> None:
    reported = re.findall(r"(dra_driver[\w.]*) -> (dra_driver[\w.]*)", output)
    missing = [
        (low, high)
        for low, high in neighbours(copy)
        if not any(f"{at}.".startswith(f"{low}.") and f"{to}.".startswith(f"{high}.") for at, to in reported)
    ]
    assert missing == []


def test_a_new_module_needs_a_layer(output: str) -> None:
    containers = [contract["containers"][0] for contract in LAYERS]
    assert [each for each in containers if f"- {each}.{VIOLATION} " not in output] == []


def test_a_package_with_a_face_is_not_entered_past_it(output: str) -> None:
    assert {face for face in FACES if not re.search(rf"{VIOLATION} -> {re.escape(face)}\.", output)} == set()
