"""Prints figures, one line each, beside their budgets, and keeps them for docs/performance.md."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class Report:
    """Prints figures beside their budgets and records which were exceeded."""

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
        """The median beside its budget, and the slowest of a hundred."""
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
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def cpu_s(pid: int) -> float:
    """Seconds of CPU of a process, of threads that have ended too, in the clock ticks of /proc/PID/stat (10 ms)."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
