"""What the exporter reads: processes, links of logs, assignments, GPUs, and what the kubelet answers."""

import os
from pathlib import Path

import pytest

from dra_driver.config.usage_findings import RENEW_S
from dra_driver.core._pb.podresources_v1 import api_pb2 as pb
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.usage import GpuUsage
from dra_driver.core.model.usage_findings import IdleClaim, UsageFindings
from dra_driver.node.exporter.node_process import AssignmentsReader, FindingsWriter, UsageGpus
from dra_driver.node.exporter.sources import FRESH_S, LogLinks, PodResourcesReader, ProcReader, claims_of
from dra_driver.node.process.usage_exporter import ExporterLock
from dra_driver.node.usage.sources import CgroupPlace, LogIndex, ProcessFacts, Unread
from dra_driver.node.usage.values import AssignedGpu, Assignments
from tests.fakes.stand_in import present
from tests.unit.node.exporter.fakes import FakeGpus, FakeProc
from tests.unit.node.usage.claims import NOW, claim, named

UID = "fd698699-eabf-4c23-92ef-cf0bbdb78261"
ID = "ab" * 32
IN_POD = f"0::/kubepods/pod{UID}/{ID}\n"
TICK = os.sysconf("SC_CLK_TCK")
ASSIGNED = Assignments(node="n", driver="gpu.nvidia.com", process_started=NOW)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def reader(tmp_path: Path) -> tuple[FakeProc, ProcReader, Clock]:
    proc, clock = FakeProc(tmp_path / "proc"), Clock()
    return proc, ProcReader(str(proc.root), clock), clock


def read(proc: ProcReader, *pids: int, listed_s: float = 1e6) -> dict[int, ProcessFacts]:
    found = proc.read(pids, listed_s)
    assert not isinstance(found, Unread)
    return dict(found)


def test_a_process_has_a_program_and_a_place(tmp_path: Path) -> None:
    proc, reads, _ = reader(tmp_path)
    proc.add(7, IN_POD, command="a) S 1 (b")
    proc.add(8)
    found = read(reads, 7, 8, 9)
    assert found == {
        7: ProcessFacts(command="a) S 1 (b", place=CgroupPlace(pod_uid=UID, container_id=ID)),
        8: ProcessFacts(command="python3", place=None),
    }
    (proc.root / "8/stat").write_text("nonsense")
    assert read(reads, 7, 8).keys() == {7}
    assert "no /proc" in str(ProcReader(str(tmp_path / "none")).read([7], 1.0))


def test_a_pid_that_was_used_again(tmp_path: Path) -> None:
    proc, reads, clock = reader(tmp_path)
    proc.add(7, IN_POD, start=50 * TICK)
    assert read(reads, 7, listed_s=49.0) == {}
    assert read(reads, 7, listed_s=51.0)[7].place is not None
    proc.end(7)
    proc.add(7, "0::/\n", start=60 * TICK)
    first = read(reads, 7, listed_s=61.0)[7]
    assert first.place is None
    (proc.root / "7/cgroup").write_text(IN_POD)
    assert read(reads, 7)[7] is first, "facts are kept for a while"
    clock.now += FRESH_S
    assert read(reads, 7)[7].place is not None


def test_links_are_listed_again_when_one_comes(tmp_path: Path) -> None:
    folder = tmp_path / "containers"
    links = LogLinks(str(folder))
    assert "cannot be listed" in str(links.read())
    folder.mkdir()
    (folder / f"llm_team_main-{ID}.log").symlink_to(f"/var/log/pods/team_llm_{UID}/main/0.log")
    (folder / "other.log").write_text("")
    found = links.read()
    assert isinstance(found, LogIndex)
    assert links.read() is found
    container = present(found.container(CgroupPlace(container_id=ID)))
    assert (container.pod.name, container.pod.uid, container.container) == ("llm", UID, "main")
    (folder / f"llm_team_main-{ID}.log").unlink()
    os.utime(folder, ns=(1, 1))
    again = links.read()
    assert isinstance(again, LogIndex)
    assert again.by_uid == {}


def test_assignments_of_a_damaged_file_are_the_last_good_ones(tmp_path: Path) -> None:
    file = tmp_path / "assignments.json"
    reads = AssignmentsReader(tmp_path)
    assert "exporter.enabled" in str(reads.read())
    file.write_text('{"version": 1, "node": "n", "driver": "d", "processStarted": "2026-07-01T11:00:00Z"}')
    good = reads.read()
    assert isinstance(good, Assignments)
    assert reads.read() is good
    assert reads.problem is None
    file.write_text("{")
    assert reads.read() is good
    assert "not JSON" in str(reads.problem)
    file.unlink()
    file.mkdir()
    assert reads.read() is good


def test_no_link_and_no_pipe_is_read(tmp_path: Path) -> None:
    """The folder is root's, and the exporter would read what root may."""
    file, secret = tmp_path / "assignments.json", tmp_path / "secret"
    secret.write_text('{"version": 1, "node": "n", "driver": "d", "processStarted": "2026-07-01T11:00:00Z"}')
    file.symlink_to(secret)
    assert isinstance(AssignmentsReader(tmp_path).read(), Unread)
    file.unlink()
    os.mkfifo(file)
    assert isinstance(AssignmentsReader(tmp_path).read(), Unread)


@pytest.mark.parametrize(("line", "expected"), [("NSpid:\t41\t1", True), ("NSpid:\t41", False), ("Name:\tx", False)])
def test_a_pid_namespace_below_that_of_proc(tmp_path: Path, line: str, expected: bool) -> None:
    proc = FakeProc(tmp_path / "proc")
    (proc.root / "self").mkdir()
    (proc.root / "self/status").write_text(f"Name:\tpython3\n{line}\nVmPeak:\t1 kB\n")
    assert ProcReader(str(proc.root)).is_nested() is expected
    assert not ProcReader("/proc").is_nested()


def test_use_is_sampled_while_the_driver_is_open(tmp_path: Path) -> None:
    backend, clock = FakeGpus(), Clock()
    gpus = UsageGpus(backend, tmp_path / "driver.lock", clock)
    gpus.poll(ASSIGNED)
    gpus.read(ASSIGNED)
    samples = []
    for _ in range(8):
        clock.now += 1.0
        gpus.poll(ASSIGNED)
        samples.append(backend.samples)
    assert samples == [0, 0, 1, 1, 1, 2, 2, 2]
    clock.now += 5.0
    gpus.poll(Assignments(node="n", driver="d", process_started=NOW, detached="an upgrade"))
    assert (backend.samples, backend.closed) == (2, 1)


def test_the_driver_is_left_alone(tmp_path: Path) -> None:
    backend = FakeGpus(GpuUsage(gpu_uuid=GpuUuid("GPU-a")))
    gpus = UsageGpus(backend, tmp_path / "findings/driver.lock")
    assert gpus.read(ASSIGNED) == backend.readings
    assert gpus.is_open
    away = Assignments(node="n", driver="d", process_started=NOW, detached="an upgrade")
    assert "an upgrade" in str(gpus.sync(away))
    assert (backend.closed, gpus.is_open) == (1, False)
    assert "an upgrade" in str(gpus.read(away))
    cut = (AssignedGpu(device="gpu-3", gpu_uuid=GpuUuid("GPU-b"), changing=True),)
    assert "gpu-3" in str(gpus.read(Assignments(node="n", driver="d", process_started=NOW, gpus=cut)))
    assert (backend.looks, gpus.is_open) == (1, False)
    assert gpus.read(ASSIGNED) == backend.readings
    backend.fails = "the driver is not loaded"
    assert "not loaded" in str(gpus.read(ASSIGNED))
    assert "not loaded" in str(gpus.read(Unread(reason="no file")))


def test_the_node_process_knows_whether_the_driver_is_open(tmp_path: Path) -> None:
    """By a lock, which it takes itself while it changes a GPU: a look with older assignments opens nothing then."""
    lock = tmp_path / "findings/driver.lock"
    backend = FakeGpus(GpuUsage(gpu_uuid=GpuUuid("GPU-a")))
    gpus = UsageGpus(backend, lock)
    turn = ExporterLock(lock, sleep=lambda _: gpus.close())
    assert gpus.read(ASSIGNED) == backend.readings
    with turn.acquired() as has_let_go:
        assert has_let_go
        assert "changes a GPU" in str(gpus.read(ASSIGNED))
        assert (backend.looks, gpus.is_open) == (1, False)
    assert gpus.read(ASSIGNED) == backend.readings
    gpus.close()
    with turn.acquired() as has_let_go:
        assert not has_let_go
    (tmp_path / "file").touch()
    assert UsageGpus(backend, tmp_path / "file/driver.lock").read(ASSIGNED) == backend.readings, "it repeats changes"


def test_what_the_kubelet_answers() -> None:
    answer = pb.ListPodResourcesResponse()
    pod = answer.pod_resources.add(name="llm", namespace="team")
    found = pod.containers.add(name="main").dynamic_resources.add(claim_name="c", claim_namespace="team")
    found.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n/p", device_name="gpu-0", share_id="s")
    found.claim_resources.add(driver_name="nic.example.com", pool_name="n", device_name="eth0")
    found.claim_resources.add(driver_name="gpu.nvidia.com", pool_name="n/p", device_name="gpu-1")
    pod.containers.add(name="side")
    answer.pod_resources.add(name="web", namespace="team").containers.add(name="main")
    claims = claims_of(answer, "gpu.nvidia.com")
    assert claims.keys() == {("team", "llm")}
    assert [(each.device, each.share_id) for each in claims["team", "llm"]["main"]] == [("gpu-0", "s"), ("gpu-1", None)]
    assert claims["team", "llm"]["side"] == ()


def test_a_kubelet_without_the_socket(tmp_path: Path) -> None:
    reads = PodResourcesReader(str(tmp_path / "kubelet.sock"), "gpu.nvidia.com")
    assert "socket does not exist" in str(reads.read())
    (tmp_path / "kubelet.sock").write_text("no socket")
    quick = PodResourcesReader(str(tmp_path / "kubelet.sock"), "gpu.nvidia.com", call_s=0.01)
    assert "List" in str(quick.read())
    quick.close()


@pytest.fixture
def findings(tmp_path: Path) -> tuple[FindingsWriter, Clock, Path]:
    clock = Clock()
    return FindingsWriter(tmp_path, clock), clock, tmp_path / "findings/findings.json"


def test_findings_are_written_when_they_change(findings: tuple[FindingsWriter, Clock, Path]) -> None:
    file, clock, path = findings
    path.parent.write_text("in the way")
    file.write(UsageFindings(written=NOW))  # the looks go on, and it is tried again
    path.parent.unlink()
    nothing, idle = (
        UsageFindings(written=NOW),
        UsageFindings(written=NOW, idle=(IdleClaim(**named(claim()), since=NOW),)),
    )
    file.write(nothing)
    first = path.stat().st_ino
    clock.now += RENEW_S
    file.write(nothing)
    assert path.stat().st_ino == first
    file.write(idle)
    second = path.stat().st_ino
    assert second != first
    file.write(idle)
    assert path.stat().st_ino == second
    clock.now += RENEW_S
    file.write(idle)
    assert path.stat().st_ino != second
