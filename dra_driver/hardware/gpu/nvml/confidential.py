"""Read whether the GPUs of a node compute confidentially: nvmlSystemGetConfComputeState (nvml.h; drivers from R535 on).

The mode is of the whole node and changes only with a reset of its GPUs.
"""

from typing import Final

import pynvml

from dra_driver.core.model.gpu import ConfidentialCompute
from dra_driver.hardware.gpu.nvml.last_values import LastValues

FUNCTION: Final = "nvmlSystemGetConfComputeState"


def mode_of(driver: LastValues) -> ConfidentialCompute | None:
    """The mode; None where the driver does not know it. ``driver`` has the driver's last answers."""
    return driver.constant(FUNCTION, _read)


def _read() -> ConfidentialCompute:
    state = pynvml.nvmlSystemGetConfComputeState()
    if state.ccFeature != pynvml.NVML_CC_SYSTEM_FEATURE_ENABLED:
        return ConfidentialCompute.OFF
    tools = state.devToolsMode == pynvml.NVML_CC_SYSTEM_DEVTOOLS_MODE_ON
    return ConfidentialCompute.DEVTOOLS if tools else ConfidentialCompute.ON
