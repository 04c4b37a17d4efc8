"""A GPU's time slice and compute mode change only on request, and are restored after any failure."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from dra_driver.core.errors import CommandError, DeviceLostError, StorageError
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Interval
from dra_driver.hardware.driver_root.smi import Smi
from dra_driver.hardware.gpu.backend import COMPUTE_MODE, TIME_SLICE, ComputeMode
from dra_driver.hardware.sharing.timeslice import TimeSlicer, restore_compute_mode, set_compute_mode
from tests.fakes.driver_root import FakeDriverRoot
from tests.fakes.fuse import Killed
from tests.fakes.sharing import FakeControl, FakeGpuNotes, Mortality, MortalNotes
from tests.harness.raising import fails

GPU = GpuUuid("GPU-00000000-0000-0000-0000-000000000001")


class FakeSmi(Smi):
    """Remembers the slice; ``problems`` are raised by the next calls, None lets one through."""

    def __init__(self, mortality: Mortality) -> None:
        self.slice = 0
        self.calls: list[tuple[str, ...]] = []
        self.problems: list[CommandError | None] = []
        self.missing = False
        self.mortality = mortality

    def find(self) -> str:
        if self.missing:
            raise CommandError("nvidia-smi is not below /")
        return "/usr/bin/nvidia-smi"

    def run(self, arguments: Sequence[str], *, within_s: float) -> str:
        def effect() -> None:
            self.calls.append(tuple(arguments))
            problem = self.problems.pop(0) if self.problems else None
            if problem:
                raise problem
            self.slice = int(arguments[-1])

        self.find()
        self.mortality.around(effect)
        return ""


class World:
    def __init__(self) -> None:
        self.mortality = Mortality()
        self.smi = FakeSmi(self.mortality)
        self.control, self.notes = FakeControl(self.mortality), MortalNotes(self.mortality)
        self.slicer = TimeSlicer(self.smi, self.control, self.notes)

    @property
    def state(self) -> tuple[int, ComputeMode, dict[str, str]]:
        return self.smi.slice, self.control.compute_mode(GPU), {key: v for (_, key), v in self.notes.values.items()}


@pytest.fixture
def world() -> World:
    return World()


CLEAN: tuple[int, ComputeMode, dict[str, str]] = (0, ComputeMode.DEFAULT, {})


def test_the_interval_becomes_the_commands_number(world: World) -> None:
    for interval, number in ((Interval.SHORT, 1), (Interval.MEDIUM, 2), (Interval.LONG, 3)):
        world.slicer.set(GPU, interval, within_s=5.0)
        assert world.smi.calls[-1] == ("compute-policy", "-i", GPU, "--set-timeslice", str(number))
        assert world.state == (number, ComputeMode.DEFAULT, {TIME_SLICE: interval.value})


def test_the_default_interval_on_an_untouched_gpu_is_nothing_at_all(world: World) -> None:
    """Old GPUs have no such setting, and every plain claim would fail on them."""
    world.smi.missing = True
    world.slicer.set(GPU, Interval.DEFAULT, within_s=5.0)
    world.slicer.reset(GPU, within_s=5.0)
    assert (world.smi.calls, world.control.calls, world.notes.log) == ([], [], [])


def test_an_exclusive_gpu_is_opened_and_given_back(world: World) -> None:
    world.control.modes[GPU] = ComputeMode.EXCLUSIVE_PROCESS
    world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.state == (3, ComputeMode.DEFAULT, {TIME_SLICE: "Long", COMPUTE_MODE: "EXCLUSIVE_PROCESS"})
    world.slicer.set(GPU, Interval.DEFAULT, within_s=5.0)
    assert world.state == (0, ComputeMode.EXCLUSIVE_PROCESS, {})


def test_the_note_is_there_before_anything_changes(world: World) -> None:
    world.smi.missing = True
    with pytest.raises(CommandError):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.state == CLEAN
    world.smi.missing = False
    world.notes.full = True
    with pytest.raises(StorageError):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.smi.calls == []
    assert world.control.calls == []


def test_a_failed_command_is_taken_back(world: World) -> None:
    world.smi.problems = [CommandError("did not end")]
    world.control.modes[GPU] = ComputeMode.EXCLUSIVE_PROCESS
    with pytest.raises(CommandError, match="did not end"):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.smi.calls[-1][-1] == "0"
    assert world.state == (0, ComputeMode.EXCLUSIVE_PROCESS, {})


def test_a_failed_change_puts_the_former_interval_back(world: World) -> None:
    world.slicer.set(GPU, Interval.SHORT, within_s=5.0)
    world.smi.problems = [CommandError("did not end")]
    with pytest.raises(CommandError):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.state == (1, ComputeMode.DEFAULT, {TIME_SLICE: "Short"})


def test_what_cannot_be_taken_back_stays_noted_for_a_later_reset(world: World) -> None:
    world.smi.problems = [CommandError("did not end"), CommandError("did not end either")]
    with pytest.raises(CommandError, match=r"did not end$"):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert TIME_SLICE in world.state[2]
    world.slicer.reset(GPU, within_s=5.0)
    assert world.state == CLEAN


def test_a_gpu_without_the_setting_is_a_sentence_and_leaves_nothing(world: World) -> None:
    world.smi.problems = [CommandError("ended with status 3: Timeslice is not supported for GPU 0")]
    with fails(CommandError, "NoTimeSlices"):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert len(world.smi.calls) == 1
    assert world.state == CLEAN


def test_a_note_on_a_gpu_without_the_setting_can_be_cleared(world: World) -> None:
    world.notes.set_gpu_note(GPU, TIME_SLICE, "Long")
    world.smi.problems = [CommandError("Not Supported")]
    world.slicer.reset(GPU, within_s=5.0)
    assert world.state == CLEAN


def test_a_lost_gpu_is_reported_and_no_command_is_run_on_it(world: World) -> None:
    world.control.modes[GPU] = ComputeMode.PROHIBITED
    world.control.problem = DeviceLostError("gone")
    with pytest.raises(DeviceLostError):
        world.slicer.set(GPU, Interval.LONG, within_s=5.0)
    assert world.smi.calls == []


@pytest.mark.parametrize("before", [ComputeMode.DEFAULT, ComputeMode.EXCLUSIVE_PROCESS])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("call", ["set", "reset"])
def test_a_death_at_any_step_is_put_right_by_reset(call: str, after: bool, before: ComputeMode) -> None:
    steps = 0
    while True:
        world = World()
        world.control.modes[GPU] = before
        if call == "reset":
            world.slicer.set(GPU, Interval.LONG, within_s=5.0)
        world.mortality.count, world.mortality.at, world.mortality.after = 0, steps + 1, after
        try:
            if call == "set":
                world.slicer.set(GPU, Interval.LONG, within_s=5.0)
            else:
                world.slicer.reset(GPU, within_s=5.0)
        except Killed:
            steps += 1
            world.mortality.at = None
            world.slicer.reset(GPU, within_s=5.0)
            assert world.state == (0, before, {}), f"died at step {steps}"
            continue
        break
    assert steps >= 2


def script(path: Path, text: str) -> Path:
    return FakeDriverRoot(path.parent).put(path.name, f"#!/bin/sh\n{text}\n".encode(), 0o755)


def test_a_missing_program_says_what_to_install_and_where_it_was_looked_for(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", "true").chmod(0o644)  # not executable
    (tmp_path / "bin/nvidia-smi").mkdir(parents=True)
    with pytest.raises(CommandError, match=f"not below {tmp_path} .*/opt/bin, /usr/bin.* install .*--driver-root"):
        Smi(str(tmp_path)).run(["-L"], within_s=1.0)


def test_output_comes_back_and_arguments_go_in(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", 'echo "$#:$*:$LC_ALL:$EXTRA"')
    assert Smi(str(tmp_path), environment={"EXTRA": "x y"}).run(["a", "b c"], within_s=5.0) == "2:a b c:C:x y\n"


def test_failure_tells_status_and_output(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", 'echo "No permission"; exit 4')
    with pytest.raises(CommandError, match=r"`nvidia-smi -L` ended with status 4, expected status 0.*No permission"):
        Smi(str(tmp_path)).run(["-L"], within_s=5.0)
    script(tmp_path / "usr/bin/nvidia-smi", "kill -SEGV $$")
    with pytest.raises(CommandError, match="ended with signal 11"):
        Smi(str(tmp_path)).run(["-L"], within_s=5.0)


def test_a_hanging_program_is_killed_and_the_message_says_where_to_look(tmp_path: Path) -> None:
    script(tmp_path / "usr/bin/nvidia-smi", "echo waiting; sleep 60")
    with fails(CommandError, "Timeout", match=r"0\.1 s .* waiting.*Xid"):
        Smi(str(tmp_path)).run(["-L"], within_s=0.05)


def test_a_program_of_another_machine_is_a_sentence(tmp_path: Path) -> None:
    path = script(tmp_path / "usr/bin/nvidia-smi", "")
    path.write_bytes(b"\x7fELFnothing")
    with pytest.raises(CommandError, match="cannot be started: Exec format error"):
        Smi(str(tmp_path)).run(["-L"], within_s=1.0)


def test_the_roots_library_is_preloaded_unless_the_root_is_our_own(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib64/libnvidia-ml.so.580.65.06"
    library.parent.mkdir(parents=True)
    library.write_bytes(b"")
    library.with_name("libnvidia-ml.so.1").symlink_to(library.name)
    assert Smi(str(tmp_path))._variables()["LD_PRELOAD"] == str(library)
    assert "LD_PRELOAD" not in Smi("/")._variables()
    spaced = tmp_path / "with space"
    library.parent.parent.rename(spaced)
    assert "LD_PRELOAD" not in Smi(str(spaced))._variables()


EXCLUSIVE, DEFAULT, PROHIBITED = ComputeMode.EXCLUSIVE_PROCESS, ComputeMode.DEFAULT, ComputeMode.PROHIBITED


@pytest.mark.parametrize("before", [DEFAULT, PROHIBITED])
def test_the_mode_of_before_comes_back(before: ComputeMode) -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    control.modes[GPU] = before
    set_compute_mode(control, notes, GPU, EXCLUSIVE)
    set_compute_mode(control, notes, GPU, EXCLUSIVE)
    assert control.modes[GPU] is EXCLUSIVE
    restore_compute_mode(control, notes, GPU, EXCLUSIVE)
    restore_compute_mode(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], notes.values) == (before, {})


def test_a_mode_that_fits_already_is_not_ours_to_give_back() -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    control.modes[GPU] = EXCLUSIVE
    set_compute_mode(control, notes, GPU, EXCLUSIVE)
    restore_compute_mode(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], control.calls, notes.log) == (EXCLUSIVE, [], [])


@pytest.mark.parametrize(("noted", "restored"), [("PROHIBITED", PROHIBITED), ("SOMETHING_NEW", DEFAULT)])
def test_an_older_note_is_never_overwritten(noted: str, restored: ComputeMode) -> None:
    """After a death between note and change, or after a reboot, what was noted first is what an administrator set."""
    control, notes = FakeControl(), FakeGpuNotes()
    notes.set_gpu_note(GPU, COMPUTE_MODE, noted)
    set_compute_mode(control, notes, GPU, EXCLUSIVE)
    restore_compute_mode(control, notes, GPU, EXCLUSIVE)
    assert control.modes[GPU] is restored


def test_a_mode_set_by_an_administrator_stays() -> None:
    control, notes = FakeControl(), FakeGpuNotes()
    set_compute_mode(control, notes, GPU, EXCLUSIVE)
    control.modes[GPU] = PROHIBITED
    restore_compute_mode(control, notes, GPU, EXCLUSIVE)
    assert (control.modes[GPU], notes.values) == (PROHIBITED, {})
