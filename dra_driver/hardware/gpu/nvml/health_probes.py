"""Reads what one GPU says of its health. nvml.h, by function; docs/health.md says what is made of it.

Each property is optional: boards and drivers lack some, and a property that fails once keeps its last value, but not
that no recovery is needed. So do remapped rows, which NVML does not report while GPU instances exist.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import pynvml
from msgspec import Struct

from dra_driver.core.model.health import RecoveryAction
from dra_driver.hardware.gpu.nvml.errors import ABSENT, DRIVER_TROUBLE, WITHDRAWS, describe, raise_translated
from dra_driver.hardware.gpu.nvml.fabric import FUNCTION, read_info

log = logging.getLogger(__name__)

Handle = pynvml.c_nvmlDevice_t
T = TypeVar("T")

RECOVERY_ACTION: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers from 565 on
ACTIONS: Final = {
    0: RecoveryAction.NONE,
    1: RecoveryAction.GPU_RESET,
    2: RecoveryAction.NODE_REBOOT,
    3: RecoveryAction.DRAIN_P2P,
    4: RecoveryAction.DRAIN_AND_RESET,
    5: RecoveryAction.IMEX_DOMAIN,
    6: RecoveryAction.BUS_RESET,
    7: RecoveryAction.NODE_REBOOT,  # NVML_GPU_RECOVERY_ACTION_SYSTEM_REBOOT
}
FIELDS: Final = "nvmlDeviceGetFieldValues"
ROWS: Final = "nvmlDeviceGetRemappedRows"
PAGES: Final = "nvmlDeviceGetRetiredPagesPendingStatus"
LINK: Final = "nvmlDeviceGetNvLinkState"
MAX_LINKS: Final = 18  # NVML_NVLINK_MAX_LINKS
FABRIC_FLAGS: Final = ((0, "degraded bandwidth"), (2, "route recovery"), (4, "route unhealthy"), (6, "access timeouts"))
"""First bit of each pair in the fabric's health mask in which 1 stands for the trouble (nvml.h)."""
FABRIC_CONFIGURATION: Final = 8, 0xF
CONFIGURED: Final = (0, 1)  # not supported, none
CONFIGURATIONS: Final = {
    2: "incorrect system GUID",
    3: "incorrect chassis serial number",
    4: "no partition",
    5: "insufficient NVLinks",
    6: "incompatible GPU firmware",
    7: "invalid location",
    8: "invalid GPU state",
}


class Vitals(Struct):
    """The last answers of one GPU; None for what it does not report. ``links``: which of its NVLinks are up."""

    recovery_action: RecoveryAction | None = None
    rows: tuple[bool, bool] | None = None
    pages_pending: bool | None = None
    links: Mapping[int, bool] | None = None
    fabric_unhealthy: str | None = None


def read_vitals(handle: Handle, vitals: Vitals) -> None:
    """Read all into ``vitals``. Raises DeviceLostError for a lost GPU, and DriverUnavailableError."""
    vitals.recovery_action = _read(FIELDS, lambda: _recovery_action(handle), _needed(vitals.recovery_action))
    vitals.rows = _read(ROWS, lambda: _rows(handle), vitals.rows, absent=vitals.rows)
    if vitals.rows is None:  # boards before Ampere retire pages
        vitals.pages_pending = _read(PAGES, lambda: _pages(handle), vitals.pages_pending)
    vitals.links = _read(LINK, lambda: _links(handle), vitals.links)
    vitals.fabric_unhealthy = _read(FUNCTION, lambda: _fabric(handle), vitals.fabric_unhealthy)


def _read(function: str, call: Callable[[], T | None], last: T | None, absent: T | None = None) -> T | None:
    """The answer; ``absent`` for what the GPU does not report, ``last`` where the call failed otherwise."""
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in ABSENT:
            return absent
        if error.value in WITHDRAWS or error.value in DRIVER_TROUBLE:
            raise_translated(function, error)
        log.debug("health of a GPU cannot be read", extra={"function": function, "reason": describe(error)})
        return last


def _needed(action: RecoveryAction | None) -> RecoveryAction | None:
    return None if action is RecoveryAction.NONE else action


def _recovery_action(handle: Handle) -> RecoveryAction | None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])
    if value.nvmlReturn != 0:
        raise pynvml.NVMLError(value.nvmlReturn)
    return ACTIONS.get(value.value.uiVal, RecoveryAction.UNKNOWN)


def _rows(handle: Handle) -> tuple[bool, bool]:
    _, _, pending, failed = pynvml.nvmlDeviceGetRemappedRows(handle)
    return bool(pending), bool(failed)


def _pages(handle: Handle) -> bool:
    return bool(pynvml.nvmlDeviceGetRetiredPagesPendingStatus(handle))


def _links(handle: Handle) -> Mapping[int, bool] | None:
    """Without the links that the board does not have."""
    found: dict[int, bool] = {}
    for link in range(MAX_LINKS):
        try:
            state = pynvml.nvmlDeviceGetNvLinkState(handle, link)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT or (not link and error.value in ABSENT):
                break
            if error.value not in ABSENT:
                raise
        else:
            found[link] = state != pynvml.NVML_NVLINK_STATE_INACTIVE
    return found or None


def _fabric(handle: Handle) -> str | None:
    info = read_info(handle)
    if info.state & 0xFF != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0:
        return None
    return fabric_trouble(info.healthMask)


def fabric_trouble(mask: int) -> str:
    """The fabric's health mask in words; "" when nothing is wrong."""
    found = [words for shift, words in FABRIC_FLAGS if mask >> shift & 3 == 1]
    shift, bits = FABRIC_CONFIGURATION
    configuration = mask >> shift & bits
    if configuration not in CONFIGURED:
        found.append(CONFIGURATIONS.get(configuration, f"incorrect configuration {configuration}"))
    return ", ".join(found)
