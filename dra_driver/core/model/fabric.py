"""The state of a GPU in the NVLink fabric of a board with NVSwitches. Until Fabric Manager registers the GPU, CUDA
fails with CUDA_ERROR_SYSTEM_NOT_READY (802), except on MIG instances (open kernel modules, nv_gpu_ops.c,
_gpuGetFabricStatus: NV_ERR_NVLINK_FABRIC_NOT_READY)."""

from enum import StrEnum

from msgspec import Struct


class FabricState(StrEnum):
    """NVML_GPU_FABRIC_STATE_* of nvml.h, without NOT_SUPPORTED, which is None in `model.gpu.Gpu`."""

    NOT_STARTED = "not started"
    IN_PROGRESS = "in progress"
    COMPLETED = "completed"


class Fabric(Struct, frozen=True, kw_only=True):
    """State and result of the fabric probe. ``status`` is an nvmlReturn_t, valid once the probe is completed; 0 is
    success. With another status the GPU runs CUDA without NVLink."""

    state: FabricState
    status: int = 0

    @property
    def is_probed(self) -> bool:
        """Return whether CUDA can start."""
        return self.state is FabricState.COMPLETED

    @property
    def has_failed(self) -> bool:
        return self.is_probed and self.status != 0

    @property
    def is_ready(self) -> bool:
        return self.is_probed and self.status == 0

    def __str__(self) -> str:
        """The state in words, such as "in progress" or "completed with NVML status 3"."""
        return f"{self.state} with NVML status {self.status}" if self.has_failed else str(self.state)
