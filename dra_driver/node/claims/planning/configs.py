"""Which opaque config applies to which allocated device. Pure.

Entries of the device class come before entries of the claim, and a later entry wins. An entry that names no request
applies to all results; otherwise it applies to results of a request that it names in full (``main/sub``) or by its base
(``main``).

Source: kubernetes/dynamic-resource-allocation ``resourceclaim/resourceclaim.go`` (ConfigForResult) and the API text of
``DeviceAllocationConfiguration``.
"""

from collections.abc import Sequence
from typing import TypeVar

from msgspec import Struct

from dra_driver.config.parameters import DeviceConfig, GpuConfig, MigDeviceConfig, decode
from dra_driver.core.errors import InvalidParametersError
from dra_driver.core.model.claim import AllocatedDevice, ClaimRef, OpaqueConfig

_ORDER = {"FromClass": 0, "FromClaim": 1}
_WHAT = {GpuConfig: "a whole GPU", MigDeviceConfig: "a MIG partition"}

Kind = TypeVar("Kind", GpuConfig, MigDeviceConfig)


class DecodedConfig(Struct, frozen=True, kw_only=True):
    """One entry with its parameters decoded; ``place`` says where it stands, for messages."""

    place: str
    requests: tuple[str, ...]
    parameters: DeviceConfig

    def names(self, result: AllocatedDevice) -> bool:
        """Whether the entry names the result's request, in full or by its base."""
        return result.request in self.requests or result.base_request in self.requests


def decode_all(ref: ClaimRef, configs: Sequence[OpaqueConfig]) -> tuple[DecodedConfig, ...]:
    """Every entry decoded, lowest precedence first.

    Raises `InvalidParametersError` for the first invalid entry, even where a later entry would win: otherwise the
    mistake would show only when the later entry is removed.
    """
    in_order = sorted(enumerate(configs), key=lambda item: _ORDER[item[1].source])  # stable
    return tuple(_decoded(ref, index, config) for index, config in in_order)


def config_for(
    result: AllocatedDevice, configs: Sequence[DecodedConfig], kind: type[Kind]
) -> tuple[DecodedConfig, Kind] | None:
    """The config that applies to ``result``, whose device takes configs of ``kind``, and its parameters; or None.

    An entry for all requests whose kind is for other devices is skipped: it is meant for other results of the claim.
    Raises `InvalidParametersError` when an entry that names the request is of such a kind.
    """
    for config in reversed(configs):
        named = config.names(result)
        if not named and config.requests:
            continue
        if isinstance(config.parameters, kind):
            return config, config.parameters
        if named:
            raise InvalidParametersError(
                f"{config.place} is a {config.parameters.kind} for request {result.request}, "
                f"whose device {result.device} is {_WHAT[kind]}; use kind {kind.kind}"
            )
    return None


def _decoded(ref: ClaimRef, index: int, config: OpaqueConfig) -> DecodedConfig:
    place = f"config[{index}] ({config.source}) of claim {ref}"
    try:
        parameters = decode(config.parameters)
    except InvalidParametersError as error:
        owner = "device class" if config.source == "FromClass" else "claim"
        raise InvalidParametersError(f"{place}: {error}; correct the {owner}") from error
    return DecodedConfig(place=place, requests=config.requests, parameters=parameters)
