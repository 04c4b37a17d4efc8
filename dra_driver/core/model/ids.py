"""Names that must not be mixed up, as types."""

from typing import NewType

ClaimUid = NewType("ClaimUid", str)  # ``metadata.uid`` of a ResourceClaim: 36 characters, lower-case hex and dashes
DeviceName = NewType("DeviceName", str)  # a device's name in its pool: a DNS label, e.g. ``gpu-0``.
PoolName = NewType("PoolName", str)  # ``<node>/<driver>``
GpuUuid = NewType("GpuUuid", str)  # NVML's UUID of a full GPU: ``GPU-`` and 36 characters
MigUuid = NewType("MigUuid", str)  # NVML's UUID of a MIG device: ``MIG-`` and 36 characters
