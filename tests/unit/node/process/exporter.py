"""An exporter with the NVIDIA driver open, as far as its lock file tells; time passes while it is waited for."""

import os
from pathlib import Path

from dra_driver.core.files import lock_file


class Exporter:
    """It lets go a moment after it is ``told``, unless it ``is_stuck``."""

    def __init__(self, path: Path) -> None:
        self.path, self.told, self.is_stuck, self.waited_s = path, False, False, 0.0
        self.now = 100.0
        self._held: int | None = None

    @property
    def is_open(self) -> bool:
        return self._held is not None

    def open(self) -> None:
        """Raises BlockingIOError while the node process has the lock."""
        self._held = lock_file(self.path, shared=True)

    def close(self) -> None:
        """Also what the kernel does when it dies."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def sleep(self, seconds: float) -> None:
        self.waited_s += seconds
        self.now += seconds
        if self.told and not self.is_stuck:
            self.close()

    def clock(self) -> float:
        return self.now
