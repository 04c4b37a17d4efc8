"""Simulated processes: what the annotation and the file say is what a look finds."""

import json
from pathlib import Path

import pytest

from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.gpu.simulated.usage import (
    BUSY_MW,
    CLAIM_VARIABLE,
    IDLE_MW,
    NAME,
    SimulatedUsage,
    SimulatedUse,
    UseStep,
    change_uses,
    parse_steps,
    read_uses,
    step_at,
)
from tests.fakes.simulated_gpus import SimulatedBackend

GI = 2**30
START = 1_000_000.0


class Bed:
    """One or more simulated GPUs, a file of uses, and clocks that the test moves."""

    def __init__(self, folder: Path, spec: str = "1xh100-sxm5-80gb", proc: Path | None = None) -> None:
        self.gpus = SimulatedBackend.from_spec(spec, "node")
        self.uuid = GpuUuid(self.gpus.snapshot().gpus[0].uuid)
        self.file, self.now = folder / NAME, START
        self.source = SimulatedUsage(self.gpus, self.file, proc=proc, now=lambda: self.now, clock=lambda: self.now)

    def use(self, text: str, *pids: int, gi_id: int | None = None, claim: str | None = None) -> None:
        one = SimulatedUse(
            key=f"{pids}{gi_id}{claim}",
            gpu_uuid=self.uuid,
            since=START,
            steps=parse_steps(text),
            gi_id=gi_id,
            pids=pids,
            claim_uid=claim,
        )
        change_uses(self.file, lambda uses: (*uses, one))


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


def test_steps_follow_each_other_and_end() -> None:
    steps = parse_steps('[{"after": "10s", "memory": "2Gi", "for": "1m"}, {"memory": "1Gi", "utilization": 60}]')
    assert steps[0] == UseStep(memory_bytes=GI, percent=60)
    assert [step_at(steps, at) for at in (0, 9.9)] == [steps[0]] * 2
    assert step_at(steps, 69.9) == steps[1]
    assert step_at(steps, 70) is None
    assert step_at(parse_steps('[{"after": "1s"}]'), 0.5) is None


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("nonsense", "JSON expected"),
        ("[" * 3999, "JSON expected"),
        ("[]", "a list of 1 to 32 steps"),
        ('[{"memory": "1Gi", "cores": 1}]', "a step with"),
        ('[{"memory": "-1Gi"}]', "memory"),
        ('[{"memory": 5}]', "memory"),
        ('[{"memory": "2Ei"}]', "memory"),
        ('[{"utilization": 101}]', "utilization"),
        ('[{"utilization": true}]', "utilization"),
        ('[{"processes": 65}]', "processes"),
        ('[{"after": "5"}]', "after: a time"),
        ('[{"for": "9999999h"}]', "for: a time"),
        ("x" * 4001, "4000 characters"),
    ],
)
def test_a_wrong_annotation_is_refused_in_words(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        parse_steps(text)


def test_two_processes_share_what_their_step_says(bed: Bed) -> None:
    bed.use('[{"memory": "12Gi", "utilization": 60, "processes": 2}]', 7, 8, 9)
    (first,) = bed.source.usage()
    assert [process.sm_percent for process in first.processes or ()] == [None, None]
    (gpu,) = bed.source.usage()
    assert [(each.pid, each.memory_bytes, each.sm_percent) for each in gpu.processes or ()] == [
        (7, 6 * GI, 30),
        (8, 6 * GI, 30),
    ]
    assert (gpu.memory_used, gpu.gpu_percent) == (12 * GI, 60)
    assert gpu.memory_total is not None
    assert gpu.memory_reserved is not None


def test_energy_follows_the_utilisation(bed: Bed) -> None:
    bed.use('[{"after": "10s", "utilization": 100}]', 7)
    bed.source.usage()
    bed.now += 5
    (idle,) = bed.source.usage()
    bed.now += 10
    (busy,) = bed.source.usage()
    assert (idle.power_mw, idle.energy_mj) == (IDLE_MW, IDLE_MW * 5)
    assert (busy.power_mw, busy.energy_mj) == (BUSY_MW, IDLE_MW * 5 + BUSY_MW * 10)
    bed.now -= 100
    assert bed.source.usage()[0].energy_mj == busy.energy_mj


def test_processes_of_a_claim_are_found_by_their_environment(tmp_path: Path) -> None:
    """On a real node they are the pods' own; what cannot be read is of no claim."""
    proc = tmp_path / "proc"
    for pid, environ in (
        (5, b"A=1\0" + CLAIM_VARIABLE + b"_u0=u0\0" + CLAIM_VARIABLE + b"_u1=u1\0"),
        (6, b"PATH=/bin\0"),
        (12, CLAIM_VARIABLE + b"_u1=u1"),
    ):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "environ").write_bytes(environ)
    (proc / "8").mkdir()
    (proc / "self").mkdir()
    bed = Bed(tmp_path, proc=proc)
    bed.use('[{"memory": "4Gi", "processes": 3}]', claim="u1")
    bed.use('[{"memory": "1Gi"}]', claim="gone")
    (gpu,) = bed.source.usage()
    assert [(each.pid, each.memory_bytes) for each in gpu.processes or ()] == [(5, 2 * GI), (12, 2 * GI)]


def test_wrong_uses_are_left_out_and_a_wrong_file_lists_no_processes(bed: Bed) -> None:
    right = {"key": "a", "gpu": bed.uuid, "since": START, "pids": [7], "steps": [{"memory": "1Gi"}]}
    wrong = [5, right | {"pids": [-1]}, right | {"gi": "x"}, right | {"steps": []}, right | {"since": "now"}]
    bed.file.write_text(json.dumps({"version": 1, "uses": [*wrong, right]}))
    assert len(read_uses(bed.file)[1]) == len(wrong)
    assert [each.pid for each in bed.source.usage()[0].processes or ()] == [7]
    bed.file.write_text("{")
    (gpu,) = bed.source.usage()
    assert gpu.processes is None
    assert "is no JSON" in str(gpu.problem)


def test_a_use_that_was_written_is_read_again(bed: Bed) -> None:
    bed.use('[{"after": "1500ms", "for": "24h", "memory": "3", "utilization": 7, "processes": 0}]', 1, gi_id=2)
    (use,), problems = read_uses(bed.file)
    assert (use.gi_id, use.pids, problems) == (2, (1,), ())
    assert use.steps == (UseStep(after_s=1.5, for_s=86400.0, memory_bytes=3, percent=7, processes=0),)
    assert bed.file.stat().st_mode & 0o777 == 0o600
