"""Python imports this at the start of a process whose PYTHONPATH has this folder: its threads get their names in /proc.

Python 3.11 tells the kernel no names of threads; `tests.bench.idle_bench` reads them.
"""

import threading
from contextlib import suppress
from pathlib import Path

_set_native_id = threading.Thread._set_native_id  # type: ignore[attr-defined]


def _set_native_id_and_name(thread: threading.Thread) -> None:
    _set_native_id(thread)
    with suppress(OSError):
        Path(f"/proc/self/task/{thread.native_id}/comm").write_text(thread.name[:15], encoding="utf-8")


threading.Thread._set_native_id = _set_native_id_and_name  # type: ignore[attr-defined]
