"""A /proc, links of logs and GPUs that tests of the exporter write."""

from pathlib import Path

from dra_driver.core.errors import DriverUnavailableError
from dra_driver.core.model.usage import GpuUsage


class FakeProc:
    """A /proc with processes that began at a tick."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "1").mkdir(parents=True)

    def add(self, pid: int, cgroup: str = "0::/\n", *, start: int = 100, command: str = "python3") -> None:
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        fields = " ".join(["S", *["0"] * 18, str(start), *["0"] * 30])
        (folder / "stat").write_text(f"{pid} ({command}) {fields}\n")
        (folder / "cgroup").write_text(cgroup)

    def end(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


class FakeGpus:
    """A `UsageSource` that tests set; it counts how often it was closed."""

    def __init__(self, *readings: GpuUsage) -> None:
        self.readings = readings
        self.fails = ""
        self.closed = 0
        self.looks = self.samples = 0

    def close(self) -> None:
        self.closed += 1

    def sample(self) -> None:
        self.samples += 1

    def usage(self) -> tuple[GpuUsage, ...]:
        self.looks += 1
        if self.fails:
            raise DriverUnavailableError(self.fails)
        return self.readings
