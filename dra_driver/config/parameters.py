"""Opaque parameters of claims and device classes: ``GpuConfig`` and ``MigDeviceConfig`` of resource.nvidia.com/v1beta1.

Decodes JSON of any shape strictly, to plain values (``device_config.py``) or one sentence. The schema is generated from
the models in ``config/schemas/device_config.py``.

Group, kinds and fields are those of NVIDIA's DRA driver (``api/nvidia.com/resource/v1beta1``), so that claims written
for it decode here. Two differences: errors that NVIDIA's driver finds only while preparing (an MPS section under
TimeSlicing, a memory limit below 1 MiB) are found while decoding, so that admission can refuse them; and JSON null
means absent everywhere, as in Kubernetes, so ``timeSlicingConfig: {}`` and ``interval: null`` are the default interval.

Any user who may create a claim writes parameters. Their size is checked first, and an error, which ends in events and
logs, quotes only a few short pieces of them, with unprintable characters escaped.
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
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.terms import Interval, Strategy
from dra_driver.core.quantity import Quantity

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
"""Limit of the API server for opaque parameters (resource/v1 ``OpaqueParametersMaxLength``), in characters here."""
MAX_DEPTH: Final = 16
KINDS: Final = ("GpuConfig", "MigDeviceConfig")

Fields = Mapping[str, Any]


def decode(parameters: object) -> DeviceConfig:
    """Decode ``parameters`` (parsed JSON of any shape) to a config. Pure.

    Raises only `InvalidParametersError`, with the paths of the first five wrong fields.
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
