"""Translate the return codes of NVML (nvmlReturn_t, nvml.h) to a value, None or an error of ``errors.py`` with advice.

No exception of pynvml leaves this package: they are unhashable and cannot be compared.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeVar, TypeVarTuple

import pynvml

from dra_driver.core.errors import (
    DeviceLostError,
    DriverUnavailableError,
    GpuBusyError,
    HardwareError,
    MigUnsupportedError,
    NoRoomError,
    NotPermittedError,
    ResetRequiredError,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

# The library's names of functions that pynvml names without their version.
_EXPORTED: Final = {
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlComputeInstanceGetInfo": "nvmlComputeInstanceGetInfo_v2",
}

# The GPU lacks the property, the driver does not know it, or this process may not read it (a MIG parent's memory).
ABSENT = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
# The instance does not exist. NotSupported: MIG mode was disabled since the listing.
GONE = frozenset({pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NOT_SUPPORTED})
# The driver as a whole fails, which says nothing about single GPUs. The text is what to do next.
DRIVER_TROUBLE = {
    pynvml.NVML_ERROR_UNINITIALIZED: "the NVML session ended; it is opened again",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "load the NVIDIA kernel module on this node, or wait for the driver container",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "install the NVIDIA driver, or set --driver-root (DRIVER_ROOT) to its folder",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "library and kernel module are of different releases: finish the driver upgrade, or reboot the node"
    ),
}
RESET_ADVICE: Final = "reset it with kubectl dra gpu reset NODE/GPU"
# One GPU fails. The text is what to do next.
GPU_TROUBLE = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "it fell off the bus: see XID messages in the kernel log, then reset it or reboot",
    pynvml.NVML_ERROR_RESET_REQUIRED: RESET_ADVICE,
    pynvml.NVML_ERROR_NO_PERMISSION: "this process may not open it: run it as root with access to /dev/nvidia*",
    pynvml.NVML_ERROR_INSUFFICIENT_POWER: "check the GPU's power cables",
}
# Codes that withdraw a GPU also as the answer about a single property.
WITHDRAWS = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})
# Error class and advice for a refused change; every other code means that the GPU fails.
REFUSALS: Mapping[int, tuple[type[HardwareError], str]] = {
    pynvml.NVML_ERROR_NO_PERMISSION: (
        NotPermittedError,
        "run the node process as root with all capabilities (a privileged container)",
    ),
    pynvml.NVML_ERROR_IN_USE: (
        GpuBusyError,
        "a process has it open: end it (nvidia-smi and fuser -v /dev/nvidia* show which; monitors such as dcgm count)",
    ),
    pynvml.NVML_ERROR_RESET_REQUIRED: (
        ResetRequiredError,
        f"it needs a GPU reset, which ends everything that runs there: {RESET_ADVICE}",
    ),
    pynvml.NVML_ERROR_INSUFFICIENT_RESOURCES: (
        NoRoomError,
        "the placement, or engines or slices that it needs, are taken: nvidia-smi mig -lgi shows what exists",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (
        MigUnsupportedError,
        "the GPU does not support it in its present MIG mode, or not at all: nvidia-smi -q shows the mode, "
        "nvidia-smi mig -lgip the MIG profiles",
    ),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (
        MigUnsupportedError,
        "the GPU has no such profile or placement: nvidia-smi mig -lgipp lists them",
    ),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (MigUnsupportedError, "the driver is too old for it: upgrade the driver"),
}


def exported_name(call: Callable[..., object]) -> str:
    """The library's name of the function that ``call``, a function of pynvml, calls."""
    name = getattr(call, "__name__", "")
    return _EXPORTED.get(name, name)


def required(call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """The result of a call that every usable GPU answers. Raises DeviceLostError or DriverUnavailableError."""
    answer = optional(call, *arguments, absent=frozenset())
    if answer is None:
        raise DeviceLostError(
            f"{exported_name(call)} failed: the driver's library is too old for it, or its answer cannot be read; "
            "upgrade the driver, and see XID messages in the node's kernel log"
        )
    return answer


def optional(
    call: Callable[[*Arguments], T], *arguments: *Arguments, absent: frozenset[int] = ABSENT, name: str | None = None
) -> T | None:
    """As ``required``, but None for a property that is missing: an NVML code in ``absent``, or no readable text.
    ``name`` is that of the library's function where ``call`` is not pynvml's."""
    function = name or exported_name(call)
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        if error.value in absent:
            return None
        raise_translated(function, error)
    except pynvml.NVMLLibraryMismatchError:  # not an NVMLError: a wrapper found only an older form of the symbol
        return None
    except ValueError as error:
        # A damaged board may report a name that is not UTF-8 or an invalid bus id; other GPUs are still read.
        log.debug("unreadable NVML answer", extra={"function": function, "reason": str(error)})
        return None


def attempt(
    call: Callable[[*Arguments], T], *arguments: *Arguments, absent: frozenset[int] = ABSENT, name: str | None = None
) -> tuple[T | None, bool]:
    """The answer as of ``optional``, and whether the call failed: that makes only this value unknown. Raises
    DeviceLostError for a lost GPU and one that needs a reset, and DriverUnavailableError."""
    try:
        return optional(call, *arguments, absent=absent, name=name), False
    except DeviceLostError as error:
        if withdraws(error):
            raise
        log.debug("an optional NVML call failed", extra={"reason": str(error)})
        return None, True


def driver_call(call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """The result of a call about the driver as a whole. Raises DriverUnavailableError."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        raise unavailable(exported_name(call), error) from error


def change(doing: str, call: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
    """The result of a call that changes a GPU; ``doing`` starts the message. Raises the error that ``REFUSALS`` has for
    the code, DriverUnavailableError when the driver fails, else DeviceLostError."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as error:
        function = exported_name(call)
        if error.value in DRIVER_TROUBLE:
            raise unavailable(function, error) from error
        raise refusal(doing, function, error.value, describe(error)) from error


def refusal(doing: str, function: str, code: int, seen: str) -> HardwareError:
    """The error for a change that was refused with ``code``; ``seen`` is that code in words."""
    kind, advice = REFUSALS.get(code, (DeviceLostError, GPU_TROUBLE.get(code, "see XID messages in the kernel log")))
    return kind(f"{doing} failed: {function} says {seen}; {advice}")


def unavailable(function: str, error: pynvml.NVMLError) -> DriverUnavailableError:
    advice = DRIVER_TROUBLE.get(error.value, "see the node's kernel log")
    return DriverUnavailableError(f"the NVIDIA driver cannot be used: {function} failed: {describe(error)}; {advice}")


def describe(error: pynvml.NVMLError) -> str:
    return f"{error} (NVML code {error.value})"


def withdraws(error: DeviceLostError) -> bool:
    return getattr(error.__cause__, "value", None) in WITHDRAWS


def is_passing(error: DeviceLostError) -> bool:
    """Return whether the failed read may succeed next time: an NVML code such as UNKNOWN or TIMEOUT."""
    code = getattr(error.__cause__, "value", None)
    return code is not None and code not in GPU_TROUBLE


def raise_translated(function: str, error: pynvml.NVMLError) -> NoReturn:
    """Translate a failed read of one GPU: DriverUnavailableError or DeviceLostError."""
    if error.value in DRIVER_TROUBLE:
        raise unavailable(function, error) from error
    advice = GPU_TROUBLE.get(error.value, "see XID messages in the node's kernel log")
    raise DeviceLostError(f"{function} failed: {describe(error)}; {advice}") from error
