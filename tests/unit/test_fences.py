"""Every import contract of pyproject.toml fails when it is broken, in every package: lint-imports runs on a copy."""

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


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package and its contracts, to be broken."""
    shutil.copytree(ROOT / "dra_driver", tmp_path / "dra_driver", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(copy: Path) -> tuple[int, str]:
    """Exit status and output of lint-imports."""
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    found = subprocess.run(
        [*command, "--no-cache", "--no-logo"], cwd=copy, capture_output=True, text=True, check=False, timeout=100
    )
    return found.returncode, " ".join((found.stdout + found.stderr).split())  # it wraps lines at 80 columns


def packages(copy: Path) -> Iterator[str]:
    """Dotted names of all packages, generated code apart."""
    for init in sorted(copy.glob("dra_driver/**/__init__.py")):
        name = ".".join(init.parent.relative_to(copy).parts)
        if name.startswith("dra_driver.") and not name.startswith("dra_driver.core._pb"):
            yield name


def add(copy: Path, package: str, text: str) -> None:
    (copy / package.replace(".", "/") / f"{VIOLATION}.py").write_text(text)


def is_exempt(package: str, module: str) -> bool:
    """Whether every module of ``package`` may import ``module``."""
    wholes = {pattern.rpartition(".")[0] for pattern in FENCES[module] if pattern.endswith(".*")}
    trees = {pattern.removesuffix(".**") for pattern in FENCES[module] if pattern.endswith(".**")}
    return package in wholes or any(package == tree or package.startswith(f"{tree}.") for tree in trees)


def test_the_package_as_it_stands_keeps_all_contracts(copy: Path) -> None:
    """Otherwise the other tests here would prove nothing."""
    status, output = lint(copy)
    assert status == 0, output


def test_every_third_party_package_is_fenced_out_of_every_package(copy: Path) -> None:
    """A forbidden import in each package is reported, once for each third-party package; exempt packages are silent."""
    names = list(packages(copy))
    for name in names:
        add(copy, name, '"""Breaks every fence."""\n' + "".join(f"import {module}\n" for module in FENCES))
    status, output = lint(copy)
    seen = set(re.findall(rf"(dra_driver[\w.]*)\.{VIOLATION}\s*->\s*([\w.]+)", output))
    expected = {(name, module) for name in names for module in FENCES if not is_exempt(name, module)}
    for name in names:
        sys.stdout.write(f"{name}: refuses {', '.join(sorted(module for at, module in seen if at == name))}\n")
    assert status != 0
    assert seen == expected


def test_a_layer_that_imports_the_one_above_is_reported(copy: Path) -> None:
    """For each two neighbouring layers of each contract, in one copy that breaks them all."""
    expected = set()
    for contract in LAYERS:
        container = contract["containers"][0]
        for upper, lower in zip(contract["layers"], contract["layers"][1:], strict=False):
            low, high = (existing(copy, container, layer) for layer in (lower, upper))
            break_layers(copy, container, low, high)
            expected.add((f"{container}.{low}", f"{container}.{high}"))
    status, output = lint(copy)
    assert status != 0
    reported = re.findall(r"(dra_driver[\w.]*) -> (dra_driver[\w.]*)", output)
    missing = {
        (low, high)
        for low, high in expected
        if not any(f"{at}.".startswith(f"{low}.") and f"{to}.".startswith(f"{high}.") for at, to in reported)
    }
    assert missing == set()


def break_layers(copy: Path, container: str, low: str, high: str) -> None:
    """Lets a module of the lower layer import the upper one."""
    statement = f"from {container} import {high}\n"
    folder = copy / container.replace(".", "/") / low
    if folder.is_dir():
        add(copy, f"{container}.{low}", f'"""Looks up."""\n{statement}')
    else:
        path = folder.with_suffix(".py")
        path.write_text(path.read_text() + statement)


def test_a_new_module_needs_a_layer(copy: Path) -> None:
    """Layers are exhaustive: a module without one is reported in each container."""
    containers = [contract["containers"][0] for contract in LAYERS]
    for container in containers:
        add(copy, container, '"""Has no layer."""\n')
    status, output = lint(copy)
    assert status != 0
    assert [each for each in containers if f"- {each}.{VIOLATION} " not in f"{output} "] == []


def test_a_package_with_a_face_is_not_entered_past_it(copy: Path) -> None:
    """An import of one of its modules from another package is reported, for each such package."""
    for face in FACES:
        folder = copy / face.replace(".", "/")
        inside = min(path.stem for path in folder.glob("[a-z]*.py"))
        violation = copy / "dra_driver/node/process" / f"{VIOLATION}_{folder.name}.py"
        violation.write_text(f'"""Enters."""\nimport {face}.{inside}\n')
    status, output = lint(copy)
    assert status != 0
    seen = {face for face in FACES if re.search(rf"{VIOLATION}_{face.rpartition('.')[2]} -> {face}\.", output)}
    assert seen == set(FACES)


def test_nothing_in_the_package_reads_the_schema_models(copy: Path) -> None:
    """Nodes would load pydantic with them."""
    add(copy, "dra_driver.node.policy", '"""Reads the models."""\nfrom dra_driver.config.schemas import gpu_policy\n')
    status, output = lint(copy)
    assert status != 0
    assert f"dra_driver.node.policy.{VIOLATION}" in output


def existing(copy: Path, container: str, layer: str) -> str:
    """A module or package of the layer that exists; layers may name packages to come."""
    names: list[str] = re.findall(r"\w+", layer)
    base = copy / container.replace(".", "/")
    return next(name for name in names if (base / name).is_dir() or (base / f"{name}.py").is_file())
