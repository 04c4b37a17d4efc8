"""Troubles of simulated GPUs by name."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_driver.core.errors import ConfigurationError, DeviceLostError, DriverUnavailableError, GpuBusyError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.backend import ComputeMode
from dra_driver.hardware.gpu.simulated import faults
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.hardware.gpu.simulated.faults import FailureMode
from dra_driver.hardware.gpu.simulated.hardware import is_open
from dra_driver.hardware.gpu.simulated.spec import parse_document, parse_groups

DOCUMENT = Path(__file__).parents[4] / "docs/simulated-gpus.md"


@pytest.fixture
def backend() -> SimulatedBackend:
    return SimulatedBackend(parse_groups("2xh100-sxm5-80gb+mig", "n"))


@pytest.fixture
def gpu(backend: SimulatedBackend) -> GpuUuid:
    return backend.snapshot().gpus[0].uuid


def test_an_unbound_gpu_is_not_on_the_node_until_it_is_bound_again(backend: SimulatedBackend, gpu: GpuUuid) -> None:
    """Handed to a virtual machine and back."""
    before = backend.snapshot()
    backend.set_troubles(gpu, FailureMode.UNBOUND)
    found = backend.snapshot()
    assert (found.gpus, found.left_out) == (before.gpus[1:], ())
    with pytest.raises(DeviceLostError, match="is not on this node"):
        backend.mig_mode(gpu)
    backend.set_troubles(gpu)
    assert backend.snapshot() == before


def test_a_gpu_that_hangs_is_left_out_and_its_calls_wait_a_bounded_time() -> None:
    """And the other one works."""
    slept: list[float] = []
    backend = SimulatedBackend(parse_groups("2xl4-24gb", "n"), sleep=slept.append)
    gpu = backend.snapshot().gpus[0].uuid
    backend.set_troubles(gpu, FailureMode.HANGS)
    found = backend.snapshot()
    assert [one.label for one in found.left_out] == [gpu]
    assert "has not returned" in found.left_out[0].reason
    with pytest.raises(DeviceLostError, match="has not returned"):
        backend.compute_mode(gpu)
    assert sum(slept) == pytest.approx(faults.HANG_S, abs=0.1)
    assert backend.compute_mode(found.gpus[0].uuid) is ComputeMode.DEFAULT


def test_a_call_that_hangs_returns_when_the_trouble_ends() -> None:
    """A GPU comes back by itself."""
    node = parse_groups("1xl4-24gb", "n")
    gpu = node.gpus[0].gpu.uuid

    def recover(_seconds: float) -> None:
        hanging.set_troubles(gpu)

    hanging = SimulatedBackend(node, sleep=recover)
    hanging.set_troubles(gpu, FailureMode.HANGS)
    assert hanging.compute_mode(gpu) is ComputeMode.DEFAULT


def test_calls_may_fail_while_the_gpu_is_seen(backend: SimulatedBackend, gpu: GpuUuid) -> None:
    """As with UNKNOWN or TIMEOUT under trouble of the firmware."""
    before = backend.snapshot()
    backend.set_troubles(gpu, FailureMode.CALLS_FAIL)
    assert backend.snapshot() == before
    with pytest.raises(DeviceLostError, match=r"compute_mode of GPU .* 999"):
        backend.compute_mode(gpu)


def test_an_instance_that_another_process_has_asked_for_is_not_destroyed(
    backend: SimulatedBackend, gpu: GpuUuid
) -> None:
    """During a rolling update, or beside a monitor."""
    gi_id = backend.create_gpu_instance(gpu, 19, 0)
    backend.set_troubles(gpu, FailureMode.SUBSCRIBED)
    with pytest.raises(GpuBusyError, match="another process"):
        backend.destroy_gpu_instance(gpu, gi_id)
    backend.set_troubles(gpu)
    backend.destroy_gpu_instance(gpu, gi_id)


def test_a_gpu_without_placements_has_no_profiles(backend: SimulatedBackend, gpu: GpuUuid) -> None:
    """Not Supported is a legal answer."""
    backend.set_troubles(gpu, FailureMode.NO_PLACEMENTS)
    first, second = backend.snapshot().gpus
    assert (first.mig_capable, first.mig_profiles) == (True, ())
    assert second.mig_profiles


def test_troubles_can_be_described_and_are_added_to_those_that_are_set() -> None:
    """A demo's file is read again when it changes."""
    node = parse_document("gpus: [{model: l4-24gb, troubles: [unbound]}, {model: l4-24gb}]", "n")
    backend = SimulatedBackend(node)
    assert [gpu.minor for gpu in backend.snapshot().gpus] == [1]
    assert backend.troubles(node.gpus[0].gpu.uuid) == {FailureMode.UNBOUND}


def test_an_unknown_trouble_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    """In the described node and in the state file."""
    with pytest.raises(ConfigurationError, match=r"gpus\[0\].troubles: expected troubles of unbound, hangs"):
        parse_document("gpus: [{model: l4-24gb, troubles: [smokes]}]", "n")
    file = tmp_path / "state.json"
    backend = SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file)
    backend.set_troubles(backend.snapshot().gpus[0].uuid, FailureMode.HANGS)
    file.write_text(json.dumps(json.loads(file.read_text())).replace('["hangs"]', '["smokes"]'))
    with pytest.raises(DriverUnavailableError, match="smokes"):
        backend.snapshot()


def test_troubles_are_shared_by_processes_and_outlive_them(tmp_path: Path) -> None:
    """As other state of hardware."""
    file = tmp_path / "state.json"
    first = SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file)
    first.set_troubles(first.snapshot().gpus[0].uuid, FailureMode.HANGS)
    assert SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file).snapshot().gpus == ()


@pytest.mark.parametrize("give_up", [lambda b: b.detach("upgrade"), lambda b: b.close()])
def test_the_driver_is_in_use_until_the_last_process_gives_it_up(
    tmp_path: Path, give_up: Callable[[SimulatedBackend], object]
) -> None:
    """What a driver upgrade waits for."""
    file = tmp_path / "state.json"
    backends = [SimulatedBackend(parse_groups("1xl4-24gb", "n"), state_file=file) for _ in range(2)]
    assert not is_open(file)
    for backend in backends:
        backend.snapshot()
    assert is_open(file)
    give_up(backends[0])
    assert is_open(file)
    give_up(backends[1])
    assert not is_open(file)
    backends[0].reattach()
    assert not is_open(file)
    backends[0].snapshot()
    assert is_open(file)
    backends[0].close()


def test_the_table_of_troubles_in_the_documentation_is_complete() -> None:
    """And lists no other name."""
    section = DOCUMENT.read_text().partition("| trouble |")[2].partition("\n\n")[0]
    named = re.findall(r"^\| `([a-z ]+)` \|", section, re.M)
    assert sorted(named) == sorted(FailureMode)
