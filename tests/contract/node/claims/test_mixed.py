"""Every form that a GPU can take, mixed and in random order, over one journal and one simulated node."""

from pathlib import Path
from tempfile import TemporaryDirectory

from tests.contract.node.claims.mixed import mixed
from tests.fakes.memory import memory_folder


def test_random_rounds_of_mixed_forms_leave_nothing() -> None:
    """After 200 rounds and the restarts in between, GPUs are whole, daemons ended, notes and files gone."""
    with TemporaryDirectory(dir=memory_folder()) as folder:
        tally = mixed(Path(folder), 200, seed=4)
    assert {"whole", "whole with a setting", "partition", "share"} <= set(tally.prepared)
