"""Files that a node process keeps for its next start: a pipe in their place does not stop that start."""

import os
from pathlib import Path

import pytest

from dra_driver.node.process import claim_reports, missing_gpus
from dra_driver.node.process.node_follower import NAME, SecondPublisherFile
from dra_driver.node.process.operation_record import OperationsFile

pytestmark = pytest.mark.timeout(10)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    path = tmp_path / NAME
    os.mkfifo(path)
    return path


def test_claim_status_is_written_again(pipe: Path) -> None:
    assert claim_reports._read(pipe) == {}


def test_known_gpus_are_written_again(pipe: Path) -> None:
    assert missing_gpus.read(pipe) == []


def test_second_publishers_may_exist(pipe: Path) -> None:
    assert SecondPublisherFile(pipe.parent).read() == frozenset()


def test_gpu_operations_are_lost_and_said_to_be(pipe: Path) -> None:
    record = OperationsFile(pipe)
    assert record.load() == {}
    assert "cannot be read" in str(record.lost)
    assert not pipe.exists()
