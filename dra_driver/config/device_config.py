"""Opaque parameters of a claim or class as plain values, the result of `parameters.decode`.

``claims.planning.configs`` decides to which device they apply, ``hardware/sharing/`` applies them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

from msgspec import Struct, field

from dra_driver.core.model.terms import Interval, Strategy


class MpsLimits(Struct, frozen=True, kw_only=True):
    """Limits of the MPS daemon's clients; None and empty set no limit.

    ``default_percentage`` is 0 to 100 percent of the GPU's threads. Memory is canonical text of a quantity of at least
    1Mi. Keys of ``per_device`` (as written, in canonical order) are GPU UUIDs or positions in the group's sorted list
    of them.
    """

    default_percentage: int | None = None
    default_memory: str | None = None
    per_device: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class GpuSharing(Struct, frozen=True, kw_only=True):
    """How containers share a GPU. ``mps`` is set if and only if the strategy is MPS; it may have no limits."""

    strategy: Strategy
    interval: Interval = Interval.DEFAULT
    mps: MpsLimits | None = None

    @property
    def asks_for(self) -> str | None:
        """What must be set up, in words; None when the hardware shares like this by itself."""
        if self.strategy is Strategy.MPS:
            return "sharing through MPS"
        return None if self.interval is Interval.DEFAULT else f"time-slicing with interval {self.interval}"


class MigSharing(Struct, frozen=True, kw_only=True):
    """How containers share a MIG device; NVIDIA's drivers have no time-slice setting for MIG devices."""

    strategy: Strategy
    mps: MpsLimits | None = None

    @property
    def asks_for(self) -> str | None:
        """As `GpuSharing.asks_for`."""
        return "sharing through MPS" if self.strategy is Strategy.MPS else None


class GpuConfig(Struct, frozen=True, kw_only=True):
    """Parameters for whole GPUs."""

    kind: ClassVar[Literal["GpuConfig"]] = "GpuConfig"
    sharing: GpuSharing | None = None

    @property
    def asks_for(self) -> str | None:
        """What must be set up, in words; None when the hardware does it by itself."""
        return self.sharing.asks_for if self.sharing else None


class MigDeviceConfig(Struct, frozen=True, kw_only=True):
    """Parameters for MIG devices."""

    kind: ClassVar[Literal["MigDeviceConfig"]] = "MigDeviceConfig"
    sharing: MigSharing | None = None

    @property
    def asks_for(self) -> str | None:
        """As `GpuConfig.asks_for`."""
        return self.sharing.asks_for if self.sharing else None


DeviceConfig = GpuConfig | MigDeviceConfig
