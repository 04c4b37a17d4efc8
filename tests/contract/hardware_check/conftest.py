"""A driver root with our C library as its NVML, and the whole command on it."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_driver.gpu.simulated.spec import parse_groups
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State

SPEC = "2xh100-sxm5-80gb,1xl4-24gb,1xa100-sxm4-40gb"
ROOT = Path(__file__).parents[3]
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def driver_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = library.reason_why_not()
    if reason is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("root")
    folder = root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    library.build(folder)
    return root


@pytest.fixture
def state(driver_root: Path, tmp_path: Path) -> Iterator[State]:
    state = State.create(tmp_path / "state", parse_groups(SPEC, "node-a"))
    yield state
    state.close()


@pytest.fixture
def environment(tmp_path: Path, driver_root: Path, state: State) -> dict[str, str]:
    """The settings of the node process, with folders of the test."""
    return {
        **os.environ,
        ENVIRONMENT: str(state.path),
        "DRIVER_ROOT": str(driver_root),
        "KUBELET_PLUGINS_DIR": str(tmp_path / "plugins"),
        "TMPDIR": str(tmp_path),
    }


@pytest.fixture
def command(environment: dict[str, str], tmp_path: Path) -> Command:
    """Runs ``dra-driver hardware-check`` with arguments, in the test's folder."""

    def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "dra_driver.cli.main", "hardware-check", *arguments],
            env={**environment, "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    return run
