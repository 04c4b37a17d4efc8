"""Opaque parameters of claims and device classes: ``GpuConfig`` and ``MigDeviceConfig`` of resource.nvidia.com/v1beta1.

Owns strict decoding: JSON of any shape in, plain values (``device_config.py``) or one sentence out. Refuses to know the
fields (the models in ``config/schemas/device_config.py``, from which the schema used here is generated), which device a
config applies to (``claims.planning.configs``) and how anything of it is applied.

Group, kinds and fields are those of NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1``), so that claims written
for it decode here. Differences: what NVIDIA's driver finds only while preparing (an MPS section under TimeSlicing, a
memory limit below 1 MiB) is found while decoding, so that admission can refuse it; and JSON null means absent
everywhere, as Kubernetes reads it, so ``timeSlicingConfig: {}`` and ``interval: null`` are the default interval.

Parameters are written by whoever may create a claim, so their size is bounded before anything looks at them, and an
error shows at most a few short pieces of them, with whatever is not printable escaped: it ends in events and logs.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from dra_driver.config.device_config import (
    DeviceConfig,
    GpuConfig,
    GpuSharing,
    MigDeviceConfig,
    MigSharing,
    MpsLimits,
)
from dra_driver.config.schema import problems, schemas, sentence, shown, size_problem
from dra_driver.errors import InvalidParametersError
from dra_driver.model.terms import Interval, Strategy
from dra_driver.quantity import Quantity

__all__ = [
    "API_VERSION",
    "DeviceConfig",
    "GpuConfig",
    "GpuSharing",
    "MigDeviceConfig",
    "MigSharing",
    "MpsLimits",
    "decode",
]

API_VERSION: Final = "resource.nvidia.com/v1beta1"
MAX_BYTES: Final = 10 * 1024
"""What the API server allows for opaque parameters (resource/v1 ``OpaqueParametersMaxLength``), in characters here."""
MAX_DEPTH: Final = 16
_KINDS: Final = ("GpuConfig", "MigDeviceConfig")

Fields = Mapping[str, Any]


def decode(parameters: object) -> DeviceConfig:
    """The config that ``parameters`` (decoded JSON of any shape) hold.

    Pure. Raises `InvalidParametersError` with the path of every wrong field (the first five of them) and nothing else.
    """
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
    return MigDeviceConfig(sharing=_mig_sharing(sharing) if sharing is not None else None)


def _kind(parameters: Mapping[Any, Any]) -> str:
    version, kind = parameters.get("apiVersion"), parameters.get("kind")
    if version != API_VERSION:
        raise InvalidParametersError(f"apiVersion: expected {API_VERSION!r}, got {shown(version)}")
    if isinstance(kind, str) and kind in _KINDS:
        return kind
    expected = " or ".join(_KINDS)
    if kind == "VfioDeviceConfig":
        raise InvalidParametersError(f"kind: VfioDeviceConfig is not supported by this version; expected {expected}")
    raise InvalidParametersError(f"kind: expected {expected}, got {shown(kind)}")


def _gpu_sharing(sharing: Fields) -> GpuSharing:
    interval = (sharing.get("timeSlicingConfig") or {}).get("interval") or Interval.DEFAULT
    return GpuSharing(strategy=Strategy(sharing["strategy"]), interval=Interval(interval), mps=_limits(sharing))


def _mig_sharing(sharing: Fields) -> MigSharing:
    return MigSharing(strategy=Strategy(sharing["strategy"]), mps=_limits(sharing))


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
