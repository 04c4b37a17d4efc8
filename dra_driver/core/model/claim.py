"""A ResourceClaim on its node: identity, allocated devices, and the devices in the answer to the kubelet."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from dra_driver.core.model.ids import ClaimUid, DeviceName, PoolName


class ClaimRef(Struct, frozen=True, kw_only=True):
    """The claim's identity as the kubelet sends it."""

    namespace: str
    name: str
    uid: ClaimUid

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name} (uid {self.uid})"


class AllocatedDevice(Struct, frozen=True, kw_only=True):
    """One entry of ``status.allocation.devices.results``. ``request`` is ``main`` or ``main/sub`` (firstAvailable);
    ``share_id`` is set for a share of a device; ``consumed_capacity`` maps capacity names to quantities as strings."""

    request: str
    driver: str
    pool: PoolName
    device: DeviceName
    admin_access: bool = False
    share_id: str | None = None
    consumed_capacity: Mapping[str, str] = field(default_factory=dict)

    @property
    def base_request(self) -> str:
        """The request without its subrequest. Containers refer to this name, and the kubelet matches it."""
        return self.request.partition("/")[0]


class OpaqueConfig(Struct, frozen=True, kw_only=True):
    """One entry of ``status.allocation.devices.config`` for this driver, parameters undecoded. Applies to a result when
    ``requests`` is empty or holds its request or base request; the last entry that applies wins (KEP-4381; class
    entries come before claim entries)."""

    source: Literal["FromClass", "FromClaim"]
    requests: tuple[str, ...]
    parameters: Mapping[str, object]


class AllocatedClaim(Struct, frozen=True, kw_only=True):
    """A claim with its allocation, reduced to this driver's results and configs, in the order of the API object.
    ``pod_claim`` is the claim's name in its pod, if it was generated from a template."""

    ref: ClaimRef
    results: tuple[AllocatedDevice, ...]
    configs: tuple[OpaqueConfig, ...] = ()
    pod_claim: str | None = None


class PreparedDevice(Struct, frozen=True, kw_only=True):
    """One ``Device`` of NodePrepareResourcesResponse. ``request_names`` are base requests and never empty: an empty
    list would match every request of the claim."""

    request_names: tuple[str, ...]
    pool: PoolName
    device: DeviceName
    cdi_device_ids: tuple[str, ...]
    share_id: str | None = None
