"""The simulated backend over time: files that change, GPUs that are lost and come back."""

from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, DriverUnavailableError
from dra_driver.hardware.gpu.simulated.spec import parse_groups
from tests.fakes.simulated_gpus import SimulatedBackend


def test_a_gpu_marked_lost_is_left_out_until_it_is_restored() -> None:
    """Tests and the embedded cluster break hardware this way."""
    backend = SimulatedBackend.from_spec("2xl4-24gb", "n")
    whole = backend.snapshot()
    backend.mark_lost(1, "XID 79")
    broken = backend.snapshot()
    assert broken.gpus == whole.gpus[:1]
    assert [(gpu.label, gpu.reason) for gpu in broken.left_out] == [(whole.gpus[1].uuid, "XID 79")]
    backend.restore(1)
    backend.restore(1)
    assert backend.snapshot() == whole


def test_the_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """GPUs are added, removed and lost while the process runs."""
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{model: l4-24gb, count: 2}]")
    backend = SimulatedBackend.from_spec(str(file), "n")
    first = backend.snapshot()
    assert len(first.gpus) == 2
    file.write_text("gpus: [{model: l4-24gb}, {model: l4-24gb, lost: gone}, {model: t4-16gb}]")
    second = backend.snapshot()
    assert [gpu.minor for gpu in second.gpus] == [0, 2]
    assert second.gpus[0] == first.gpus[0]
    assert second.left_out[0].label == first.gpus[1].uuid


@pytest.mark.parametrize(
    "broken", ["gpus: [", "gpus: [{model: nothing}]", None, "driverUnavailable: why not\ngpus: []"]
)
def test_a_file_that_breaks_while_running_is_a_driver_that_went_away(tmp_path: Path, broken: str | None) -> None:
    """The process must keep the last inventory and try again, not end."""
    file = tmp_path / "node.yaml"
    file.write_text("gpus: [{model: l4-24gb}]")
    backend = SimulatedBackend.from_spec(str(file), "n")
    good = backend.snapshot()
    if broken is None:
        file.unlink()
    else:
        file.write_text(broken)
    for look in (backend.snapshot, backend.open):
        with pytest.raises(DriverUnavailableError, match="simulated driver: "):
            look()
    file.write_text("gpus: [{model: l4-24gb}] # right again")
    assert backend.snapshot() == good


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read the simulated GPUs from"),
        (b"gpus: [{model: x}]", "gpus[0].model: unknown"),
        (b"\xff\xfe", "cannot read the simulated GPUs from"),
        (b"# " + b"x" * 1024 * 1024, "more than 1048576 characters"),
    ],
)
def test_a_wrong_file_at_start_is_a_configuration_error_with_its_name(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    """Only at start, when an administrator can correct it."""
    file = tmp_path / "node.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        SimulatedBackend.from_spec(str(file), "n")
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


def test_hardware_can_be_replaced_unless_a_file_describes_it(tmp_path: Path) -> None:
    """Two owners of one node's hardware would undo each other's changes."""
    backend = SimulatedBackend.from_spec("1xl4-24gb", "n")
    backend.replace_node(parse_groups("3xl4-24gb", "n"))
    assert len(backend.snapshot().gpus) == 3
    file = tmp_path / "node.yaml"
    file.write_text("gpus: []")
    with pytest.raises(ConfigurationError, match="change that file"):
        SimulatedBackend.from_spec(str(file), "n").replace_node(parse_groups("1xl4-24gb", "n"))
