"""Decode opaque parameters of claims and classes: ``GpuConfig`` and ``MigDeviceConfig`` of resource.nvidia.com/v1beta1.

Group, kinds and fields match NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1``). Two differences: an MPS
section under TimeSlicing and a memory limit below 1 MiB are errors here, so that admission can refuse them; and JSON
null means absent, as in Kubernetes. The schema is generated from ``config/schemas/device_config.py``.

Any user who may create a claim writes parameters, and errors end in events and logs. So their size is checked first,
and an error quotes only short, escaped pieces of them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal

from msgspec import Struct, field

from dra_driver.config.schema import problems, schemas, sentence, shown, size_problem
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.core.quantity import Quantity


class MpsLimits(Struct, frozen=True, kw_only=True):
    """Limits of the MPS daemon's clients; None and empty set no limit.

    ``default_percentage`` is 0 to 100 percent of the GPU's threads. Memory is canonical text of a quantity of at least
    1Mi. Keys of ``per_device`` are GPU UUIDs or positions in the group's sorted list of them.
    """

    default_percentage: int | None = None
    default_memory: str | None = None
    per_device: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


class GpuSharing(Struct, frozen=True, kw_only=True):
    """Sharing of a GPU by containers. ``mps`` is set if and only if the strategy is MPS; it may have no limits."""

    strategy: Strategy
    interval: Interval = Interval.DEFAULT
    mps: MpsLimits | None = None

    @property
    def asks_for(self) -> str | None:
        """The required setup, in words; None if there is none."""
        if self.strategy is Strategy.MPS:
            return "sharing through MPS"
        return None if self.interval is Interval.DEFAULT else f"time-slicing with interval {self.interval}"


class MigSharing(Struct, frozen=True, kw_only=True):
    """Sharing of a MIG device by containers; NVIDIA's drivers have no time-slice setting for MIG devices."""

    strategy: Strategy
    mps: MpsLimits | None = None

    @property
    def asks_for(self) -> str | None:
        return "sharing through MPS" if self.strategy is Strategy.MPS else None


class GpuConfig(Struct, frozen=True, kw_only=True):
    kind: ClassVar[Literal["GpuConfig"]] = "GpuConfig"
    sharing: GpuSharing | None = None

    @property
    def asks_for(self) -> str | None:
        return self.sharing.asks_for if self.sharing else None


class MigDeviceConfig(Struct, frozen=True, kw_only=True):
    kind: ClassVar[Literal["MigDeviceConfig"]] = "MigDeviceConfig"
    sharing: MigSharing | None = None


DeviceConfig = GpuConfig | MigDeviceConfig


API_VERSION: Final = "resource.nvidia.com/v1beta1"
MAX_BYTES: Final = 10 * 1024
"""Limit of the API server for opaque parameters (resource/v1 ``OpaqueParametersMaxLength``), in characters here."""
MAX_DEPTH: Final = 16
KINDS: Final = ("GpuConfig", "MigDeviceConfig")

Fields = Mapping[str, Any]


def decode(parameters: object) -> DeviceConfig:
    """Decode parsed JSON of any shape to a config. Raises only `InvalidParametersError`, with the first five
    problems."""
    if not isinstance(parameters, Mapping):
        raise InvalidParametersError(f"parameters are {shown(parameters)}, expected an object with apiVersion and kind")
    if too_large := size_problem(parameters, max_bytes=MAX_BYTES, max_depth=MAX_DEPTH):
        raise InvalidParametersError(f"parameters are {too_large}")
    kind = _kind(parameters)
    if found := problems(parameters, schemas()[kind]):
        raise InvalidParametersError(f"{kind}: {sentence(found)}")
    sharing: Fields | None = parameters.get("sharing")
    if kind == "GpuConfig":
        return GpuConfig(sharing=_gpu_sharing(sharing) if sharing is not None else None)
    if sharing is None:
        return MigDeviceConfig()
    return MigDeviceConfig(sharing=MigSharing(strategy=Strategy(sharing["strategy"]), mps=_limits(sharing)))


def _kind(parameters: Mapping[object, object]) -> str:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise InvalidParametersError(f"apiVersion: expected {API_VERSION!r}, got {shown(version)}")
    if isinstance(kind, str) and kind in KINDS:
        return kind
    expected = " or ".join(KINDS)
    if kind == "VfioDeviceConfig":
        raise InvalidParametersError(f"kind: VfioDeviceConfig is not supported by this version; expected {expected}")
    raise InvalidParametersError(f"kind: expected {expected}, got {shown(kind)}")


def _gpu_sharing(sharing: Fields) -> GpuSharing:
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval") or Interval.DEFAULT
    return GpuSharing(strategy=Strategy(sharing["strategy"]), interval=Interval(interval), mps=_limits(sharing))


def _limits(sharing: Fields) -> MpsLimits | None:
    if sharing["strategy"] != Strategy.MPS:
        return None
    mps: Fields = sharing.get("mpsConfig") or {}
    memory: object = mps.get("defaultPinnedDeviceMemoryLimit")
    per_device: Fields = mps.get("defaultPerDevicePinnedMemoryLimit") or {}
    return MpsLimits(
        default_percentage=mps.get("defaultActiveThreadPercentage"),
        default_memory=_canonical(memory) if memory is not None else None,
        per_device=MappingProxyType({key: _canonical(value) for key, value in per_device.items()}),
    )


def _canonical(memory: object) -> str:
    return str(Quantity.parse(str(memory)))
