"""Reset one GPU with ``nvidia-smi --gpu-reset``, because NVML lacks such a call (exit codes: nvidia-smi(1)).

The program refuses while any client has the GPU open, and a success is not proof: the caller reads the GPU again.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from dra_driver.core import errors
from dra_driver.core.model.ids import GpuUuid
from dra_driver.hardware.driver_root import process
from dra_driver.hardware.driver_root.smi import Smi

RESET_S: Final = 120.0
"""Limit of one reset. A reset takes seconds; one that hangs in the kernel cannot be killed."""
TIMEOUT: Final = "Timeout"
"""The ``reason`` of the CommandError of a reset that did not end: no second one may be started."""
PERSISTENCE_S: Final = 30.0
UNSUPPORTED: Final = "ResetUnsupported"
_NOT_AVAILABLE: Final = 3
_IN_USE: Final = ("in use by another client", "currently in use", "in use by another process")
_REFUSED: Final[dict[int, tuple[type[errors.HardwareError], str]]] = {
    _NOT_AVAILABLE: (errors.ResetRequiredError, "this machine cannot reset the GPU: a reboot of the node is needed"),
    4: (errors.NotPermittedError, "run the node process as root with all capabilities (a privileged container)"),
    6: (errors.DeviceLostError, "the NVIDIA driver does not list the GPU: a reboot of the node is needed"),
    9: (errors.ResetRequiredError, "the NVIDIA driver is not loaded: load it, or reboot the node"),
    15: (errors.DeviceLostError, "the GPU fell off the bus: a reboot of the node is needed"),
}


class Reset(Protocol):
    def __call__(self, gpu: GpuUuid, within_s: float) -> None:
        """Reset the GPU. GpuBusyError when a client has it open, ResetRequiredError when only a reboot helps,
        NotPermittedError, DeviceLostError, and CommandError with reason `TIMEOUT` for a reset that hangs."""
        ...


class SmiReset:
    def __init__(self, smi: Smi) -> None:
        self._smi = smi

    def __call__(self, gpu: GpuUuid, within_s: float) -> None:
        ended = self._smi.call(["--gpu-reset", "-i", gpu], within_s=within_s)
        printed = process.shown(ended.output)
        if ended.status is None:
            raise errors.CommandError(
                f"the reset of {gpu} did not end within {within_s:.0f} s (printed: {printed}); it may hang in the "
                "kernel: reboot the node",
                reason=TIMEOUT,
            )
        if ended.status == 0:
            return
        problem = f"nvidia-smi --gpu-reset -i {gpu} ended with status {ended.status} (printed: {printed})"
        if any(text in ended.output.lower() for text in _IN_USE):
            raise errors.GpuBusyError(f"{problem}: a client has the GPU open")
        if "not supported" in ended.output.lower():
            raise errors.ResetRequiredError(f"{problem}: {_REFUSED[_NOT_AVAILABLE][1]}", reason=UNSUPPORTED)
        kind, advice = _REFUSED.get(
            ended.status, (errors.CommandError, "see NVRM and Xid lines in the node's kernel log")
        )
        raise kind(f"{problem}: {advice}")


class Persistence(Protocol):
    """Persistence mode keeps the kernel driver's state of a GPU without clients, and a reset is refused because of it:
    nvidia-smi releases it only if it reaches the socket of nvidia-persistenced, which it does not in a container."""

    def is_on(self, gpu: GpuUuid) -> bool | None:
        """Return None if unknown, such as for a GPU that answers only to a reset. Raises CommandError with `TIMEOUT`
        for a program that hangs."""

    def switch(self, gpu: GpuUuid, on: bool) -> None:
        """Raises CommandError."""


class SmiPersistence:
    def __init__(self, smi: Smi) -> None:
        self._smi = smi

    def is_on(self, gpu: GpuUuid) -> bool | None:
        try:
            asked = ["--query-gpu=persistence_mode", "--format=csv,noheader", "-i", gpu]
            answer = self._smi.run(asked, within_s=PERSISTENCE_S)
        except errors.CommandError as error:
            if error.reason == TIMEOUT:
                raise
            return None
        return {"enabled": True, "disabled": False}.get(answer.strip().lower())

    def switch(self, gpu: GpuUuid, on: bool) -> None:
        self._smi.run(["-pm", "1" if on else "0", "-i", gpu], within_s=PERSISTENCE_S)


def has_reset(sysfs_root: str) -> Callable[[str], bool]:
    """Return whether the kernel can reset the PCI function of an address, such as ``0000:65:00.0``."""
    return lambda address: (Path(sysfs_root) / "bus/pci/devices" / address / "reset").exists()
