"""A node described once and looked at twice: by the simulation, and through NVML on our own C library."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dra_driver.hardware.gpu.nvml.backend import NvmlBackend
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from tests.fakes.nvml import library
from tests.fakes.nvml.state import ENVIRONMENT, State
from tests.fakes.nvml.sysfs import write_sysfs

SPEC = "2xh100-sxm5-80gb,1xl4-24gb,1xv100-sxm2-16gb,1xgh200-96gb,1xh100-nvl-94gb,1xrtx-pro-6000-blackwell-se-96gb"


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = library.reason_why_not()
    if reason is not None:
        pytest.skip(reason)
    return library.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def node() -> NodeSpec:
    return parse_groups(SPEC, "node-a")


@pytest.fixture
def state(nvml_library: Path, node: NodeSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[State]:
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path / "state"))
    write_sysfs(tmp_path / "sys", node)
    state = State.create(tmp_path / "state", node)
    state.check(nvml_library)
    yield state
    state.close()


@pytest.fixture
def nvml(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[NvmlBackend]:
    backend = NvmlBackend(str(nvml_library), str(tmp_path / "sys"))
    yield backend
    backend.close()
