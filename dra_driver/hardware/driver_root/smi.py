"""Run the driver's ``nvidia-smi``, for the few changes that NVML has no call for."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from dra_driver.core.errors import CommandError
from dra_driver.hardware.driver_root import process, search

SMI: Final = "nvidia-smi"


class Smi:
    """The ``nvidia-smi`` below ``driver_root``, a path or a function that finds it. Stateless and thread-safe.
    ``environment`` is added to PATH, LC_ALL and LD_PRELOAD: below another root it runs with this process's C library
    and the root's NVML, its only dependency there."""

    def __init__(
        self, driver_root: str | Callable[[], str] = "/", *, environment: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._given = driver_root or "/"
        self._environment = dict(environment)

    def find(self) -> str:
        """Return the path. Looks at every call, because the driver can be replaced. Raises CommandError without one."""
        return search.require_program(search.root_of(self._given, SMI), SMI, "utilities")

    def call(self, arguments: Sequence[str], *, within_s: float) -> process.Ended:
        """Run it for at most ``within_s`` and a second. Raises CommandError if it cannot start."""
        try:
            return process.run([self.find(), *arguments], environment=self._variables(), within_s=within_s)
        except OSError as error:
            raise CommandError(f"`{SMI} {' '.join(arguments)}` cannot be started: {error.strerror}") from error

    def run(self, arguments: Sequence[str], *, within_s: float) -> str:
        """As `call`, and return its output. Raises CommandError unless it ends in time with status 0. A killed run may
        have applied its change."""
        command, ended = f"{SMI} {' '.join(arguments)}", self.call(arguments, within_s=within_s)
        printed = process.shown(ended.output)
        if ended.status is None:
            stuck = "does not end even when killed" if ended.stuck else "was killed"
            raise CommandError(
                f"`{command}` did not end within {within_s:.1f} s and {stuck}; it printed: {printed}. The GPU or the"
                " kernel driver may be stuck: look for NVRM and Xid lines in the node's kernel log",
                reason="Timeout",
            )
        if ended.status != 0:
            how = f"signal {-ended.status}" if ended.status < 0 else f"status {ended.status}"
            raise CommandError(f"`{command}` ended with {how}, expected status 0; it printed: {printed}")
        return ended.output

    def _variables(self) -> dict[str, str]:
        root = search.root_of(self._given, SMI)
        variables = {"PATH": search.search_path(root), "LC_ALL": "C"}
        library = None if search.is_own(root) else search.find_library(root)
        if library is not None and not set(" :").intersection(library):  # separators of LD_PRELOAD
            variables["LD_PRELOAD"] = library
        return variables | self._environment
