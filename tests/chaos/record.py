"""What a test of a fault measured, one file per test, for docs/faults.md.

Written only when $FAULT_RECORDS names a folder (`make chaos`, and the lab's run), and only at the end of a test, so a
record is a test that passed.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path

FOLDER = "FAULT_RECORDS"
MOST_SEEN = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRecord:
    """The record of one test; ``fault`` is the row of docs/faults/faults.toml."""

    fault: str
    test: str

    def write(self, *, seconds: float, seen: str, kept: int) -> None:
        """``seconds`` until normal, the sentence that was ``seen``, how many prepared claims were ``kept``."""
        assert seen, f"{self.fault}: nothing was seen"
        folder = os.environ.get(FOLDER)
        if not folder:
            return
        seen = " ".join(seen.split())
        found = {
            "fault": self.fault,
            "test": self.test,
            "seconds": round(seconds, 2),
            "seen": seen if len(seen) <= MOST_SEEN else f"{seen[: MOST_SEEN - 1]}…",
            "kept": kept,
        }
        name = "".join(letter if letter.isalnum() else "-" for letter in self.test)[-150:]
        (Path(folder) / f"{name}.json").write_text(json.dumps(found, indent=1))
