"""Figures of processes and of the machine: printed beside their budgets, and kept for docs/internals/performance.md."""

import json
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_driver import __version__
from dra_driver.kube.rest import RestClient

_COMMITS = {"goDriver": "GO_DRIVER_COMMIT", "mockNvml": "MOCK_NVML_COMMIT", "cdiHook": "CDI_HOOK_COMMIT"}
IDLE_AFTER_S = 12.0  # what the start left over is not idle: claims are checked once within 10 s


class Report:
    def __init__(self) -> None:
        self.breached = False
        self._load = round(os.getloadavg()[0], 1)
        self._rows: list[dict[str, Any]] = []

    def line(self, what: str, value: float, unit: str, budget: float | None = None, extra: str = "") -> None:
        verdict = ""
        if budget is not None:
            over = value > budget
            self.breached |= over
            verdict = f"budget {budget:g} {unit}: {'OVER' if over else 'ok'}"
        self._rows.append({"what": what, "value": round(value, 3), "unit": unit, "budget": budget, "extra": extra})
        print(f"{what:<52} {value:8.2f} {unit:<4} {verdict:<24} {extra}".rstrip(), flush=True)

    def times(self, what: str, figures_ms: Sequence[float], budget_ms: float | None = None) -> None:
        ordered = sorted(figures_ms)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        self.line(f"{what}, p50", ordered[len(ordered) // 2], "ms", budget_ms, f"p99 {p99:.2f} ms, n={len(ordered)}")

    def save(self, path: Path | None, bench: str) -> None:
        """Put the figures into a file beside those of other benches; ``None`` keeps none."""
        if path is None:
            return
        found = json.loads(path.read_text()) if path.exists() else {}
        found[bench] = {"load": self._load, "nice": os.nice(0), "rows": self._rows}
        path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def rss_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process, of threads that have ended too, in the clock ticks of /proc/PID/stat (10 ms)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def idle_percent(pids: Sequence[int], seconds: float) -> list[float]:
    """CPU of each process while nothing happens, in per cent of a core."""
    time.sleep(IDLE_AFTER_S)
    before, began = [cpu_s(pid) for pid in pids], time.monotonic()
    time.sleep(seconds)
    passed = time.monotonic() - began
    return [(cpu_s(pid) - was) / passed * 100 for pid, was in zip(pids, before, strict=True)]


def described(rest: RestClient) -> dict[str, Any]:
    """The machine's kind, versions, today's date, and this process' niceness; no host names, no paths."""
    cpu = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name"))
    memory = Path("/proc/meminfo").read_text().split("MemTotal:")[1].split()[0]
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "nice": os.nice(0),
        "cores": os.cpu_count(),
        "cpu": cpu.partition(":")[2].strip(),
        "memoryGiB": round(int(memory) / 2**20),
        "kernel": platform.release().partition("-")[0],
        "python": platform.python_version(),
        "kubernetes": rest.get("/version")["gitVersion"],
        "driver": __version__,
        **{name: os.environ.get(variable, "unknown") for name, variable in _COMMITS.items()},
    }
