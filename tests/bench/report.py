"""Prints figures, one line each, beside their budgets."""

from collections.abc import Sequence
from pathlib import Path


class Report:
    """Prints figures beside their budgets and records which were exceeded."""

    def __init__(self) -> None:
        self.breached = False

    def line(self, what: str, value: float, unit: str, budget: float | None = None, extra: str = "") -> None:
        verdict = ""
        if budget is not None:
            over = value > budget
            self.breached |= over
            verdict = f"budget {budget:g} {unit}: {'OVER' if over else 'ok'}"
        print(f"{what:<52} {value:8.2f} {unit:<4} {verdict:<24} {extra}".rstrip(), flush=True)

    def times(self, what: str, figures_ms: Sequence[float], budget_ms: float | None = None) -> None:
        """The median beside its budget, and the slowest of a hundred."""
        ordered = sorted(figures_ms)
        p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
        self.line(f"{what}, p50", ordered[len(ordered) // 2], "ms", budget_ms, f"p99 {p99:.2f} ms, n={len(ordered)}")


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Seconds of CPU used by the current threads of a process, with ns resolution."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")  # /proc/PID/stat counts in hundredths of a second
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9
