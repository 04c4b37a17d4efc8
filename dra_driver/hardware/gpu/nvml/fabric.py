"""Read a GPU's state in the NVLink fabric: nvmlDeviceGetGpuFabricInfoV (nvml.h), Hopper and newer.

Version 3 of the structure comes with driver 580, version 2 with 550. Boards without NVSwitch and older drivers have no
state. NVML writes the state as one byte where pynvml declares four, so the other three are not looked at.
"""

from collections.abc import Callable
from ctypes import byref
from typing import Final

import pynvml

from dra_driver.core.model.fabric import Fabric, FabricState

FUNCTION: Final = "nvmlDeviceGetGpuFabricInfoV"
_STATES: Final = {
    pynvml.NVML_GPU_FABRIC_STATE_NOT_STARTED: FabricState.NOT_STARTED,
    pynvml.NVML_GPU_FABRIC_STATE_IN_PROGRESS: FabricState.IN_PROGRESS,
    pynvml.NVML_GPU_FABRIC_STATE_COMPLETED: FabricState.COMPLETED,
}
_OLDER: Final = frozenset({pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT})
_Info = pynvml.c_nvmlGpuFabricInfo_v3_t | pynvml.c_nvmlGpuFabricInfo_v2_t
_VERSIONS: Final[tuple[Callable[[], _Info], ...]] = (
    pynvml.c_nvmlGpuFabricInfo_v3_t,
    pynvml.c_nvmlGpuFabricInfo_v2_t,
)


def read_fabric(handle: pynvml.c_nvmlDevice_t) -> Fabric | None:
    """The state; None for a GPU without NVLink fabric. Raises pynvml.NVMLError, also for a driver without the call."""
    info = read_info(handle)
    state = _STATES.get(info.state & 0xFF)
    if state is None:
        return None
    return Fabric(state=state, status=info.status if state is FabricState.COMPLETED else 0)


def read_info(handle: pynvml.c_nvmlDevice_t) -> _Info:
    """The newest structure that the driver fills; its ``state`` is one byte. Raises as `read_fabric`."""
    newest, older = _VERSIONS
    info = newest()
    try:
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    except pynvml.NVMLError as error:
        if error.value not in _OLDER:
            raise
        info = older()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, byref(info))
    return info
