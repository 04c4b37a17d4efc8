"""``nvidia-smi`` for the one thing that NVML has no call for: the time slice of a GPU.

Owns finding and running it and the sentences about its failures. Refuses to know what it is asked.

Below a driver root that is not ``/`` the program is run with this process' own C library and with the root's
``libnvidia-ml.so.1`` preloaded, as NVIDIA's own drivers do: it is linked against nothing else of the root.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dra_driver.errors import CommandError
from dra_driver.gpu.library import find_library
from dra_driver.sharing import process, programs

NAME: Final = "nvidia-smi"


class Smi:
    """The ``nvidia-smi`` below ``driver_root``, as this process sees it. Stateless and thread-safe.

    ``environment`` is added to the little that the program gets: where to look for programs, and a language.
    """

    def __init__(self, driver_root: str = "/", *, environment: Mapping[str, str] = MappingProxyType({})) -> None:
        self._root = driver_root or "/"
        self._environment = dict(environment)

    def find(self) -> str:
        """Its path, looked up at every call, because drivers come and go. Raises CommandError when there is none."""
        found = programs.find_program(self._root, NAME)
        if found is None:
            raise CommandError(
                f"{NAME} is not below {self._root} (looked in {', '.join(programs.PROGRAM_FOLDERS)}): install the"
                " driver's utilities on the node, or set --driver-root (DRIVER_ROOT) to where this process sees the"
                " driver's root"
            )
        return found

    def run(self, arguments: Sequence[str], *, within_s: float) -> str:
        """What it printed. Takes at most ``within_s`` and a second; then it has been killed, with what it started.

        Raises CommandError when it is missing, cannot be started, does not end in time or ends with another status
        than 0. What a killed run has changed by then is not known.
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

    def _surroundings(self) -> dict[str, str]:
        surroundings = {"PATH": programs.search_path(self._root), "LC_ALL": "C"}
        library = None if programs.is_own(self._root) else find_library(self._root)
        if library is not None and not set(" :").intersection(library):  # those separate the names in the variable
            surroundings["LD_PRELOAD"] = library
        return surroundings | self._environment
