"""Fault injection: the marker ``fault`` names the row of each test in docs/internals/faults.md. Run by `make chaos`."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.stage import FaultRecord, Stage
from tests.fakes.syscalls import Supervisor

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.chaos)


@pytest.fixture
def fault(request: pytest.FixtureRequest) -> FaultRecord:
    found = request.node.get_closest_marker("fault")
    assert found is not None, "a test of a fault names its row: @pytest.mark.fault(...)"
    return FaultRecord(fault=found.args[0], test=request.node.nodeid)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with Supervisor(tmp_path) as found:
        yield found


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as running:
        yield running
