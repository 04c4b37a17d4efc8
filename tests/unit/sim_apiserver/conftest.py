"""What tests of the embedded API server share."""

import pytest

from dra_driver.sim.apiserver.store import Store


@pytest.fixture
def store() -> Store:
    return Store()
