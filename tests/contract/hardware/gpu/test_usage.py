"""Usage of GPUs: one suite for NVML over the C library and for the simulation; then answers that only NVML has."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from dataclasses import replace as replace_job
from pathlib import Path

import pytest
from msgspec.structs import replace

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage
from dra_driver.hardware.gpu.backend import UsageSource
from dra_driver.hardware.gpu.nvml.usage import NvmlUsage
from dra_driver.hardware.gpu.simulated.spec import NodeSpec, parse_groups
from dra_driver.hardware.gpu.simulated.usage import SimulatedUsage, SimulatedUse, UseStep, change_uses
from dra_driver.node.usage.join import join
from tests.contract.node.process.test_nvidia_mock import ROOTS
from tests.fakes.nvml import state as codes
from tests.fakes.nvml.state import State
from tests.fakes.simulated_gpus import SimulatedBackend
from tests.unit.node.usage.test_join import LOOK

SPEC = "1xh100-sxm5-80gb,1xh100-sxm5-80gb+mig,1xa100-sxm4-40gb+mig"
CARD, CUT, OLD = range(3)
GI = 2**30
NOT_KNOWN = 2**64 - 1
LISTS = [f"nvmlDeviceGet{kind}RunningProcesses_v3" for kind in ("Compute", "Graphics", "MPSCompute")]
START = 1_000_000.0
SAMPLE_US = 1_000_000
"""Microseconds by the GPU's clock, which is far behind the CPU's."""
ONE_GPU_INSTANCE = 19
"""The profile id of 1g."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A process on the GPU at that index. ``percent`` is of the GPU, in MIG mode of its instance, ``decoders`` of its
    decoders."""

    index: int
    pid: int
    memory: int
    percent: int = 0
    decoders: int = 0
    gi_id: int | None = None


class Busy:
    """One node of a kind of GPUs, read by ``source``. Indices are those of ``node.gpus``."""

    source: UsageSource

    def __init__(self, node: NodeSpec) -> None:
        self.node = node
        self.jobs: tuple[Job, ...] = ()

    def uuid(self, index: int) -> GpuUuid:
        return self.node.gpus[index].gpu.uuid

    def look(self, index: int) -> GpuUsage:
        return next(each for each in self.source.usage() if each.gpu_uuid == self.uuid(index))

    def run(self, *jobs: Job) -> None:
        self.jobs = jobs
        self.go_on()

    def go_on(self) -> None:
        raise NotImplementedError


class NvmlNode(Busy):
    """Our C library in the place of NVML, which reads what is in use from a file."""

    def __init__(self, node: NodeSpec, state: State, library: Path, folder: Path) -> None:
        super().__init__(node)
        self.state, self.file = state, folder / "state.use"
        self.source = self.nvml = NvmlUsage(str(library), str(folder / "sys"))
        self.at_us, self.energy = SAMPLE_US, 0

    def go_on(self) -> None:
        self.at_us, self.energy = self.at_us + 1_000_000, self.energy + 100_000
        lines = []
        for index in range(len(self.node.gpus)):
            percent = min(100, sum(job.percent for job in self.jobs if job.index == index))
            decoders = sum(job.decoders for job in self.jobs if job.index == index)
            lines.append(f"gpu {index} {percent} {percent // 2} 60000 {self.energy} 40 1980 2619 0 {decoders} 0 0")
        for job in self.jobs:
            gi = -1 if job.gi_id is None else job.gi_id
            at_us = self.at_us if job.percent or job.decoders else 0
            use = f"{job.percent} {job.percent // 2} {at_us} 0 {job.decoders} 0 0"
            lines.append(f"process {job.index} c {job.pid} {gi} {job.memory} {use}")
            if job.gi_id is not None:
                lines.append(f"instance {job.index} {job.gi_id} {job.percent} {job.decoders}")
        self.file.write_text("".join(f"{line}\n" for line in lines))

    def burst(self, job: Job) -> None:
        """It uses the GPU, and later no more: the driver's ring has lost it at the next look."""
        self.run(job)
        self.source.sample()
        self.run(replace_job(job, percent=0))
        more = "".join(f"sample {job.index} 99 {self.at_us + number} 0 0\n" for number in range(72))
        self.file.write_text(self.file.read_text() + more)

    def cut(self, index: int) -> int:
        return self.state.foreign_create(index, ONE_GPU_INSTANCE, 0)

    def lose(self, index: int) -> None:
        self.state.lose(index)

    def unload(self) -> None:
        self.nvml.close()
        self.state.inject("nvmlInitWithFlags", codes.DRIVER_NOT_LOADED)


class SimulatedNode(Busy):
    """The simulation, and the file of its uses."""

    def __init__(self, node: NodeSpec, folder: Path) -> None:
        super().__init__(node)
        self.gpus, self.file, self.now = SimulatedBackend(node), folder / "uses.json", START
        self.source = SimulatedUsage(self, self.file, now=lambda: self.now, clock=lambda: self.now)

    def snapshot(self) -> Snapshot:
        return self.gpus.snapshot()

    def go_on(self) -> None:
        self.now += 1.0
        uses = tuple(
            SimulatedUse(
                key=f"{job.pid}",
                gpu_uuid=self.uuid(job.index),
                since=START,
                steps=(UseStep(memory_bytes=job.memory, percent=job.percent, engines_percent=job.decoders),),
                gi_id=job.gi_id,
                pids=(job.pid,),
            )
            for job in self.jobs
        )
        change_uses(self.file, lambda _: uses)

    def burst(self, job: Job) -> None:
        steps = UseStep(memory_bytes=job.memory, percent=job.percent), UseStep(after_s=1.5, memory_bytes=job.memory)
        use = SimulatedUse(key="9", gpu_uuid=self.uuid(job.index), since=self.now, steps=steps, pids=(job.pid,))
        change_uses(self.file, lambda _: [use])
        self.now += 2.0

    def cut(self, index: int) -> int:
        return self.gpus.foreign_create(self.uuid(index), ONE_GPU_INSTANCE, 0).gi_id

    def lose(self, index: int) -> None:
        self.gpus.inject(self.uuid(index), "lost")

    def unload(self) -> None:
        self.gpus = SimulatedBackend(replace(self.node, unavailable="it is not loaded"))


BusyNode = NvmlNode | SimulatedNode


@pytest.fixture
def node() -> NodeSpec:
    return parse_groups(SPEC, "node-a")


@pytest.fixture(params=["nvml", "simulated"])
def busy(request: pytest.FixtureRequest, node: NodeSpec, tmp_path: Path) -> Iterator[BusyNode]:
    if request.param == "simulated":
        yield SimulatedNode(node, tmp_path)
        return
    nvml = NvmlNode(
        node, request.getfixturevalue("state"), request.getfixturevalue("nvml_library"), tmp_path
    )  # fmt: skip
    yield nvml
    nvml.nvml.close()


def test_every_gpu_is_told_once_in_order_of_uuid(busy: BusyNode, node: NodeSpec) -> None:
    busy.run()
    found = busy.source.usage()
    assert [each.gpu_uuid for each in found] == sorted(each.gpu.uuid for each in node.gpus)
    for index, each in enumerate(node.gpus):
        one = busy.look(index)
        assert (one.memory_total, one.memory_reserved) == (each.gpu.memory_bytes, each.gpu.reserved_bytes)
        assert (one.mig_enabled, one.instances, one.problem) == (index != CARD, (), None)


def test_processes_have_what_they_use_and_the_gpu_their_sum(busy: BusyNode) -> None:
    """Bytes and percent, by PID; a process without work has 0."""
    busy.run(
        Job(index=CARD, pid=9, memory=2 * GI, percent=40),
        Job(index=CARD, pid=7, memory=GI, percent=20),
        Job(index=CARD, pid=8, memory=4096),
    )
    busy.source.usage()
    busy.go_on()
    found = busy.look(CARD)
    assert (found.memory_used, found.gpu_percent) == (3 * GI + 4096, 60)
    assert sorted(found.processes or (), key=lambda each: each.pid) == [
        ProcessUsage(pid=7, memory_bytes=GI, sm_percent=20, memory_percent=10, busy_percent=20),
        ProcessUsage(pid=8, memory_bytes=4096, sm_percent=0, memory_percent=0, busy_percent=0),
        ProcessUsage(pid=9, memory_bytes=2 * GI, sm_percent=40, memory_percent=20, busy_percent=40),
    ]
    assert busy.look(CUT).processes == ()


def test_a_process_that_only_decodes_is_busy(busy: BusyNode) -> None:
    busy.run(Job(index=CARD, pid=7, memory=GI, decoders=60))
    busy.source.usage()
    busy.go_on()
    found = busy.look(CARD)
    assert (found.gpu_percent, found.busy_percent) == (0, 60)
    assert [(each.sm_percent, each.busy_percent) for each in found.processes or ()] == [(0, 60)]


def test_use_between_two_looks_is_seen(busy: BusyNode) -> None:
    busy.run()
    busy.source.usage()
    busy.burst(Job(index=CARD, pid=7, memory=GI, percent=1))
    (process,) = busy.look(CARD).processes or ()
    assert process.busy_percent == 1


@pytest.mark.skipif(
    ROOTS not in os.environ, reason=f"${ROOTS} is not set; it names driver roots with the mock NVML of NVIDIA"
)
def test_gpus_of_nvidias_mock_are_at_rest(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    root = Path(os.environ.get(ROOTS, ""), "h100/usr")
    monkeypatch.setenv("MOCK_NVML_CONFIG", str(root / "config/config.yaml"))
    source = NvmlUsage(str(root / "lib/x86_64-linux-gnu/libnvidia-ml.so.1"), str(tmp_path))
    source.usage()
    source.sample()
    found = source.usage()
    source.close()
    assert {(each.unreadable, each.problem, each.busy_percent, each.processes) for each in found} == {
        (None, None, 0, ())
    }


def test_a_process_that_ends_leaves(busy: BusyNode) -> None:
    busy.run(Job(index=CARD, pid=7, memory=GI, percent=20))
    busy.source.usage()
    busy.run()
    found = busy.look(CARD)
    assert (found.processes, found.memory_used, found.gpu_percent) == ((), 0, 0)


@pytest.mark.parametrize(("index", "percent"), [(CUT, 60), (OLD, None)])
def test_in_mig_mode_instances_tell_and_gpus_do_not(busy: BusyNode, index: int, percent: int | None) -> None:
    """GPM has the utilisation of an instance from Hopper on; none has that of a process."""
    gi_id = busy.cut(index)
    busy.run()
    assert [(each.gi_id, each.memory_used) for each in busy.look(index).instances] == [(gi_id, 0)]
    busy.run(Job(index=index, pid=7, memory=GI, percent=60, gi_id=gi_id))
    first = busy.look(index)
    assert (first.gpu_percent, first.memory_percent, first.memory_used) == (None, None, GI)
    assert first.processes == (ProcessUsage(pid=7, gi_id=gi_id, memory_bytes=GI),)
    instance = second_sample(busy, index)
    used = instance.sm_percent, instance.busy_percent
    assert (instance.gi_id, instance.memory_used, used) == (gi_id, GI, (percent, percent))
    assert instance.uuid is not None
    assert instance.memory_total is not None


def test_a_lost_gpu_is_unreadable_and_tells_nothing_else(busy: BusyNode, node: NodeSpec) -> None:
    busy.run(Job(index=CARD, pid=7, memory=GI))
    busy.source.usage()
    busy.lose(CUT)
    found = busy.look(CUT)
    assert found.unreadable
    assert found == GpuUsage(gpu_uuid=busy.uuid(CUT), unreadable=found.unreadable)
    assert busy.look(CARD).memory_used == GI
    assert len(busy.source.usage()) == len(node.gpus)


def test_without_a_driver_it_says_so(busy: BusyNode) -> None:
    busy.run()
    busy.source.usage()
    busy.unload()
    with pytest.raises(DriverUnavailableError):
        busy.source.usage()


def second_sample(busy: BusyNode, index: int) -> InstanceUsage:
    """The instance after a look that compares: GPM's samples lie at least 100 ms apart."""
    for _ in range(2000):
        (found,) = busy.look(index).instances
        if found.sm_percent is not None or index == OLD:
            break
    return found


@pytest.fixture
def source(nvml_library: Path, state: State, tmp_path: Path) -> Iterator[NvmlUsage]:
    found = NvmlUsage(str(nvml_library), str(tmp_path / "sys"), look_s=5.0)
    yield found
    found.close()


@pytest.fixture
def look(source: NvmlUsage, node: NodeSpec) -> Callable[[int], GpuUsage]:

    def found(index: int) -> GpuUsage:
        uuid = node.gpus[index].gpu.uuid
        return next(each for each in source.usage() if each.gpu_uuid == uuid)

    return found


@pytest.fixture
def write(tmp_path: Path, state: State) -> Callable[..., None]:
    def lines(*found: str) -> None:
        (tmp_path / "state.use").write_text("".join(f"{line}\n" for line in found))

    return lines


Look = Callable[[int], GpuUsage]
Write = Callable[..., None]


def test_a_gpu_tells_all(look: Look, write: Write) -> None:
    write("gpu 0 70 35 312000 987654321 55 1980 2619", f"process 0 c 7 -1 {5 * GI} 40 20 1")
    found = look(CARD)
    assert (found.gpu_percent, found.memory_percent) == (70, 35)
    assert (found.power_mw, found.energy_mj, found.temperature_c) == (312000, 987654321, 55)
    assert (found.sm_clock_mhz, found.memory_clock_mhz) == (1980, 2619)
    assert found.memory_used == 5 * GI
    assert found.memory_total is not None
    assert found.memory_reserved
    assert not found.mig_enabled
    assert found.problem is None


def test_what_the_driver_does_not_report_is_none(look: Look, state: State) -> None:
    for function in LISTS:
        state.inject(function, codes.NOT_SUPPORTED)
    found = look(CARD)
    numbers = (found.gpu_percent, found.power_mw, found.energy_mj, found.temperature_c, found.sm_clock_mhz)
    assert (numbers, found.processes) == ((None,) * 5, None)
    assert "does not list processes" in str(found.problem)


def test_processes_of_all_kinds_are_listed_once(look: Look, write: Write) -> None:
    """A client of MPS is in two lists with the same memory; memory that is not told stays unknown."""
    write(
        "gpu 0 70 35 1 1 1 1 1",
        f"process 0 c 9 -1 {GI} 0 0 1",
        f"process 0 m 9 -1 {2 * GI} 0 0 1",
        f"process 0 g 5 -1 {NOT_KNOWN} 0 0 1",
    )
    found = look(CARD).processes
    assert found == (ProcessUsage(pid=5, memory_bytes=None), ProcessUsage(pid=9, memory_bytes=2 * GI, mps=True))


@pytest.mark.parametrize("is_old", [False, True])
def test_utilisation_of_processes_is_that_since_the_last_look(
    look: Look, write: Write, state: State, is_old: bool
) -> None:
    if is_old:
        state.inject("nvmlDeviceGetProcessesUtilizationInfo", codes.FUNCTION_NOT_FOUND)
    board = "gpu 0 70 35 1 1 1 1 1"
    write(board, f"process 0 c 7 -1 {GI} 90 90 {SAMPLE_US}", f"process 0 c 8 -1 {GI} 0 0 0")
    assert [each.sm_percent for each in look(CARD).processes or ()] == [None, None]
    later = SAMPLE_US + 5_000_000
    write(board, f"process 0 c 7 -1 {GI} 40 20 {later}", f"process 0 c 8 -1 {GI} 0 0 0")
    assert [(each.sm_percent, each.memory_percent) for each in look(CARD).processes or ()] == [(40, 20), (0, 0)]
    assert [each.busy_percent for each in look(CARD).processes or ()] == [None, None], "the GPU is busy by no sample"
    write("gpu 0 0 0 1 1 1 1 1", f"process 0 c 7 -1 {GI} 40 20 {later}", f"process 0 c 8 -1 {GI} 0 0 0")
    assert [each.busy_percent for each in look(CARD).processes or ()] == [0, 0]


AT_REST = "gpu 0 0 0 1 1 1 1 1"
ONE, OTHER = f"process 0 c 7 -1 {GI} 0 0 0", f"process 0 c 8 -1 {GI} 0 0 0"


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("engine", range(4))
def test_each_engine_alone_is_use(look: Look, write: Write, state: State, engine: int, is_old: bool) -> None:
    """Before driver 550 samples lack JPEG and optical flow: what the GPU used of them is some process's."""
    if is_old:
        state.inject("nvmlDeviceGetProcessesUtilizationInfo", codes.FUNCTION_NOT_FOUND)
    percents = " ".join("7" if engine == each else "0" for each in range(4))
    write(AT_REST, ONE, OTHER)
    look(CARD)
    write(f"{AT_REST} {percents}", ONE, OTHER, f"sample 0 7 5 0 0 {percents}")
    found = look(CARD)
    assert (found.gpu_percent, found.busy_percent) == (0, 7)
    expected = [None, None] if is_old and engine > 1 else [7, 0]
    assert [each.busy_percent for each in found.processes or ()] == expected


def test_stamps_that_go_back_are_read_again_after_one_unknown_look(look: Look, write: Write) -> None:
    """A reset of the GPU, or its clock was set."""
    write(AT_REST, ONE, OTHER, "sample 0 7 9000000 9 9")
    look(CARD)
    for stamp, expected in ((1000, [None, None]), (2000, [9, 0])):
        write("gpu 0 9 9 1 1 1 1 1", ONE, OTHER, f"sample 0 7 {stamp} 9 9")
        assert [each.busy_percent for each in look(CARD).processes or ()] == expected


def test_what_one_round_does_not_know_is_unknown_unless_another_has_seen_use(
    look: Look, write: Write, source: NvmlUsage
) -> None:
    write(AT_REST, ONE, OTHER)
    look(CARD)
    write("gpu 0 1 0 1 1 1 1 1", ONE, OTHER, "sample 0 7 5 1 0")
    source.sample()
    write("gpu 0 1 0 1 1 1 1 1", ONE, OTHER)
    source.sample()
    write(AT_REST, ONE, OTHER)
    assert [each.busy_percent for each in look(CARD).processes or ()] == [1, None]
    assert look(CARD).gpu_percent == 0


CALLS = {
    "nvmlDeviceGetUtilizationRates": {"gpu_percent", "memory_percent", "busy_percent", "processes"},
    "nvmlDeviceGetDecoderUtilization": {"busy_percent", "processes"},
    "nvmlDeviceGetProcessesUtilizationInfo": set[str](),
    "nvmlDeviceGetMemoryInfo_v2": {"memory_reserved"},
    "nvmlDeviceGetPowerUsage": {"power_mw"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_mj"},
    "nvmlDeviceGetTemperatureV": set(),
    "nvmlDeviceGetClockInfo": {"sm_clock_mhz", "memory_clock_mhz"},
    "nvmlDeviceGetMigMode": set(),
    **{function: {"processes", "problem"} for function in LISTS},
}
"""Values that are unknown while a call fails, of processes their utilisation; the others have an older call."""


@pytest.mark.parametrize("code", [codes.UNKNOWN, codes.INVALID_ARGUMENT])
def test_a_call_that_fails_makes_its_own_value_unknown(look: Look, write: Write, state: State, code: int) -> None:
    write(AT_REST, ONE)
    look(CARD)
    known = look(CARD)
    for function, values in CALLS.items():
        state.inject(function, code)
        found = look(CARD)
        state.clear_faults()
        changed = {name for name in GpuUsage.__struct_fields__ if getattr(found, name) != getattr(known, name)}
        assert changed == values, function
    state.inject("nvmlDeviceGetPowerUsage", codes.RESET_REQUIRED)
    assert "kubectl dra gpu reset" in str(look(CARD).unreadable)


@pytest.mark.parametrize(
    ("told", "expected"),
    [(("0 0", "1 0"), (1, 1)), (("0 0", "0 1"), (0, 1)), (("0 0", "0 0"), (0, 0)), (("0 -1", "0 -1"), (0, None))],
)
def test_a_partition_rounds_up_and_has_decoders(
    look: Look, write: Write, state: State, told: tuple[str, str], expected: tuple[int, int | None]
) -> None:
    gi_id = state.foreign_create(CUT, ONE_GPU_INSTANCE, 0)
    write(f"instance {CUT} {gi_id} {told[0]}")
    look(CUT)
    write(f"instance {CUT} {gi_id} {told[1]}")
    for _ in range(2000):
        (found,) = look(CUT).instances
        if found.sm_percent is not None:
            break
    assert (found.sm_percent, found.busy_percent) == expected
    state.inject("nvmlDeviceGetMigMode", codes.UNKNOWN)
    assert [each.gi_id for each in look(CUT).instances] == [gi_id], "the mode is as it was"


@pytest.mark.parametrize(
    ("lines", "what", "said"),
    [
        ((f"process 0 c 7 -1 {GI} 95 0 9", "hidden 0"), "processes", "1024 MiB are in use and it is 95 % busy"),
        ((ONE, OTHER, f"shared 0 {GI}"), "memory", "together have 2048 MiB, more than the 1024 MiB in use"),
        ((ONE, f"process 0 c 9 -1 {GI} 95 0 9", f"process 0 m 7 -1 {GI} 0 0 0"), "utilisation", "an MPS server"),
    ],
    ids=["pid-namespace", "ipc", "mps"],
)
def test_readings_that_contradict_themselves_are_unknown_with_a_reason(
    look: Look, write: Write, lines: Sequence[str], what: str, said: str
) -> None:
    write("gpu 0 95 0 1 1 1 1 1")
    look(CARD)
    write("gpu 0 95 0 1 1 1 1 1", *lines)
    knows = join(replace(LOOK, readings=(look(CARD),))).knows
    assert said in (getattr(knows, what) or "")


def test_a_driver_without_samples_of_processes_leaves_them_unknown(look: Look, write: Write, state: State) -> None:
    for function in ("nvmlDeviceGetProcessesUtilizationInfo", "nvmlDeviceGetProcessUtilization"):
        state.inject(function, codes.NOT_SUPPORTED)
    write("gpu 0 70 35 1 1 1 1 1", f"process 0 c 7 -1 {GI} 40 20 {SAMPLE_US}")
    look(CARD)
    assert [each.sm_percent for each in look(CARD).processes or ()] == [None]


def test_a_gpu_that_hangs_holds_up_no_other(
    nvml_library: Path, state: State, tmp_path: Path, node: NodeSpec, write: Write
) -> None:
    source = NvmlUsage(str(nvml_library), str(tmp_path / "sys"), look_s=0.2)
    write("gpu 0 70 35 1 1 1 1 1")
    source.usage()
    with_hang = GpuUuid(node.gpus[CUT].gpu.uuid)
    state.hang("nvmlDeviceGetMigMode", device=CUT)
    try:
        found = {each.gpu_uuid: each for each in source.usage()}
        assert found[with_hang].unreadable == "a call of the NVIDIA driver has not returned"
        assert found[node.gpus[CARD].gpu.uuid].gpu_percent == 70
    finally:
        state.release()
        source.close()
