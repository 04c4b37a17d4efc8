"""Which opaque config applies to which allocated device.

Pure. Owns precedence and matching: class entries stand before claim entries, later wins, and an entry applies to every
result when it names no request, else to results of a request that it names in full (``main/sub``) or by its base
(``main``). Refuses to know devices and what a config means.

Source: kubernetes/dynamic-resource-allocation ``resourceclaim/resourceclaim.go`` (ConfigForResult) and the API text of
``DeviceAllocationConfiguration``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from dra_driver.config.device_config import DeviceConfig, GpuConfig, MigDeviceConfig
from dra_driver.config.parameters import decode
from dra_driver.errors import InvalidParametersError
from dra_driver.model.claim import AllocatedDevice, ClaimRef, OpaqueConfig

_ORDER = {"FromClass": 0, "FromClaim": 1}
_WHAT = {GpuConfig: "a whole GPU", MigDeviceConfig: "a MIG partition"}

Kind = TypeVar("Kind", GpuConfig, MigDeviceConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedConfig:
    """One entry with its parameters decoded; ``place`` says in words where it stands."""

    place: str
    requests: tuple[str, ...]
    parameters: DeviceConfig

    def names(self, result: AllocatedDevice) -> bool:
        """Whether the entry names the result's request, in full or by its base."""
        return result.request in self.requests or result.base_request in self.requests


def decode_all(ref: ClaimRef, configs: Sequence[OpaqueConfig]) -> tuple[DecodedConfig, ...]:
    """Every entry decoded, lowest precedence first.

    Raises `InvalidParametersError` for the first wrong one, even where a later entry would win: a mistake that shows
    only once somebody removes another entry is worse than one that shows at once.
    """
    in_order = sorted(enumerate(configs), key=lambda item: _ORDER[item[1].source])  # stable
    return tuple(_decoded(ref, index, config) for index, config in in_order)


def config_for(
    result: AllocatedDevice, configs: Sequence[DecodedConfig], kind: type[Kind]
) -> tuple[DecodedConfig, Kind] | None:
    """The config that applies to ``result``, whose device takes configs of ``kind``, and its parameters.

    None when there is none. An entry for all requests whose kind is for other devices is passed over: it is meant for
    the claim's other results. Raises `InvalidParametersError` when one that names the request is of such a kind.
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
