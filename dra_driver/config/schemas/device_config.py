"""The models of opaque parameters: ``GpuConfig`` and ``MigDeviceConfig`` of resource.nvidia.com/v1beta1.

Group, kinds and fields match NVIDIA's DRA driver
(``api/nvidia.com/resource/v1beta1``), so that claims written for it decode here.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from dra_driver.config.schemas.base import AtMost, MemoryQuantity, Strict

StrategyName = Literal["TimeSlicing", "MPS"]


class TimeSlicingConfig(Strict):
    """Length of a process's time slice while other processes wait; ``Default`` is the hardware's interval."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


class MpsConfig(Strict):
    """Limits of the MPS daemon's clients: percent of the GPU's threads, and device memory as quantities.

    Keys of ``default_per_device_pinned_memory_limit`` are GPU UUIDs or positions in the claim's sorted list of them.
    """

    default_active_thread_percentage: Annotated[int, Field(ge=0, le=100)] | None = None
    default_pinned_device_memory_limit: MemoryQuantity | None = None
    default_per_device_pinned_memory_limit: Annotated[dict[str, MemoryQuantity], AtMost(64)] | None = None


class GpuSharing(Strict):
    """Sharing of a GPU by containers. A section of the unused strategy is an error."""

    rules: ClassVar[tuple[str, ...]] = ("time-slicing-without-mps", "mps-without-time-slicing")

    strategy: StrategyName
    time_slicing_config: TimeSlicingConfig | None = None
    mps_config: MpsConfig | None = None


class MigSharing(Strict):
    """Sharing of a MIG device by containers; NVIDIA's drivers have no time-slice setting for MIG devices."""

    rules: ClassVar[tuple[str, ...]] = ("time-slicing-without-mps",)

    strategy: StrategyName
    mps_config: MpsConfig | None = None


class GpuConfig(Strict):
    """Parameters for whole GPUs."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig"]
    sharing: GpuSharing | None = None


class MigDeviceConfig(Strict):
    """Parameters for MIG devices."""

    api_version: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["MigDeviceConfig"]
    sharing: MigSharing | None = None
