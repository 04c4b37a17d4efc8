"""The state of a GPU in the NVLink fabric of a board with NVSwitches.

Until Fabric Manager has registered the GPU, CUDA fails on it with CUDA_ERROR_SYSTEM_NOT_READY (802): registration of
the GPU with the UVM driver ends with NV_ERR_NVLINK_FABRIC_NOT_READY (open kernel modules, nv_gpu_ops.c,
_gpuGetFabricStatus). With MIG it does not, because instances do not use the fabric.
"""

from enum import StrEnum

from msgspec import Struct


class FabricState(StrEnum):
    """NVML_GPU_FABRIC_STATE_* of nvml.h, without NOT_SUPPORTED, which is None in `model.gpu.Gpu`."""

    NOT_STARTED = "not started"
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"


class Fabric(Struct, frozen=True, kw_only=True):
    """How far the probe of the fabric is, and how it ended.

    ``status`` is an nvmlReturn_t, which counts once the probe is completed; 0 is success. A GPU whose probe completed
    with another status runs CUDA by itself and takes no part in NVLink.
    """

    state: FabricState
    status: int = 0

    @property
    def is_probed(self) -> bool:
        """Whether CUDA can start."""
        return self.state is FabricState.COMPLETED

    @property
    def has_failed(self) -> bool:
        """Whether the probe ended with an error."""
        return self.is_probed and self.status != 0

    @property
    def is_ready(self) -> bool:
        """Whether the GPU takes part in the fabric."""
        return self.is_probed and self.status == 0

    def __str__(self) -> str:
        """The state in words, such as "in progress" or "completed with NVML status 3"."""
        return f"{self.state} with NVML status {self.status}" if self.has_failed else str(self.state)
