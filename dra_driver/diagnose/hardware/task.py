"""What a check's process gets from the command, and how it is started."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field, to_builtins

from dra_driver.core.errors import ConfigurationError
from dra_driver.hardware.driver_root.root import DriverRoot


class ChosenGpu(Struct, frozen=True, kw_only=True):
    """The GPU that a check uses, by NVML index. ``has_mig``: it can be partitioned."""

    index: int
    uuid: str
    minor: int
    has_mig: bool = False


class Task(Struct, frozen=True, kw_only=True):
    """What a reader gets. ``root`` and the other paths are as this process sees them; ``folder`` is an empty one for
    the check alone. ``plugin_dir`` is the node process' own folder. ``stop_s`` is how long the
    process may take to end after SIGTERM. ``facts`` are those of an earlier reading, for
    readers that restore."""

    reader: str
    folder: str
    root: str = "/"
    host_root: str = ""
    dev_root: str = "/"
    host_dev_root: str = ""
    host: str = "/"
    library: str | None = None
    proc_devices: str = "/proc/devices"
    proc_driver: str = "/proc/driver"
    plugin_dir: str = ""
    stop_s: float = 2.0
    gpu: ChosenGpu | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def driver_root(self) -> DriverRoot:
        """The driver's root, with its device nodes."""
        return DriverRoot(
            root=self.root, host_root=self.host_root, dev_root=self.dev_root, host_dev_root=self.host_dev_root
        )

    @property
    def chosen(self) -> ChosenGpu:
        """The GPU, for checks that need one."""
        if self.gpu is None:
            raise ConfigurationError(f"{self.reader} needs a GPU, and none was chosen")
        return self.gpu

    def to_json(self) -> str:
        """For the child's stdin."""
        return json.dumps(to_builtins(self))

    @classmethod
    def from_json(cls, text: str) -> "Task":
        """The reverse of `to_json`."""
        wire = json.loads(text)
        gpu = wire.pop("gpu")
        return cls(**wire, gpu=ChosenGpu(**gpu) if gpu else None)


def own_module(name: str) -> list[str]:
    """The command line that runs a module of this package as a program.

    With ``-P``: otherwise modules come from the current folder first, which may belong to another user, as /tmp does.
    """
    return [sys.executable, "-P", "-m", f"dra_driver.diagnose.hardware.{name}"]
