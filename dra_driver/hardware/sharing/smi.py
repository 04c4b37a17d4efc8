"""Find and run ``nvidia-smi``, which sets the time slice of a GPU: NVML has no call for it.

Below a driver root other than ``/``, the program runs with this process' C library and the root's
``libnvidia-ml.so.1`` preloaded, as in NVIDIA's own drivers: it needs no other library of the root.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dra_driver.core.errors import CommandError, DriverUnavailableError
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.search import find_library
from dra_driver.hardware.sharing import programs

NAME: Final = "nvidia-smi"


class Smi:
    """The ``nvidia-smi`` below ``driver_root``, as this process sees it. Stateless and thread-safe.

    ``driver_root`` may be a function that finds it. ``environment`` is added to the program's environment, which is
    otherwise PATH, LC_ALL and LD_PRELOAD.
    """

    def __init__(
        self, driver_root: str | Callable[[], str] = "/", *, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._given = driver_root or "/"
        self._environment = dict(environment)

    def find(self) -> str:
        """Its path, searched at every call, because the driver may be replaced. Raises CommandError without one."""
        root = self._root()
        found = programs.find_program(root, NAME)
        if found is None:
            raise CommandError(
                f"{NAME} is not below {root} (looked in {', '.join(programs.PROGRAM_FOLDERS)}): install the"
                " driver's utilities on the node, or set --driver-root (DRIVER_ROOT) to where this process sees the"
                " driver's root"
            )
        return found

    def run(self, arguments: Sequence[str], *, within_s: float) -> str:
        """Run it and return its output. Takes at most ``within_s`` and a second; then it is killed with its children.

        Raises CommandError when it is missing, cannot be started, does not end in time, or ends with a status other
        than 0. A killed run may or may not have applied its change.
        """
        command = f"{NAME} {' '.join(arguments)}"
        try:
            ended = process.run([self.find(), *arguments], environment=self._surroundings(), within_s=within_s)
        except OSError as error:
            raise CommandError(f"`{command}` cannot be started: {error.strerror}") from error
        printed = process.shown(ended.output)
        if ended.status is None:
            stuck = "does not end even when killed" if ended.stuck else "was killed"
            raise CommandError(
                f"`{command}` did not end within {within_s:.1f} s and {stuck}; it printed: {printed}. The GPU or the"
                " kernel driver may be stuck: look for NVRM and Xid lines in the node's kernel log"
            )
        if ended.status != 0:
            how = f"signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            raise CommandError(f"`{command}` ended with {how}, expected status 0; it printed: {printed}")
        return ended.output

    def _root(self) -> str:
        try:
            return self._given if isinstance(self._given, str) else self._given()
        except DriverUnavailableError as error:
            raise CommandError(f"{NAME} cannot be found: {error}") from error

    def _surroundings(self) -> dict[str, str]:
        root = self._root()
        surroundings = {"PATH": programs.search_path(root), "LC_ALL": "C"}
        library = None if programs.is_own(root) else find_library(root)
        if library is not None and not set(" :").intersection(library):  # separators of LD_PRELOAD
            surroundings["LD_PRELOAD"] = library
        return surroundings | self._environment
