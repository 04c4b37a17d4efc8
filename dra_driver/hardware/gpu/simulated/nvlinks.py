"""NVLinks of simulated GPUs: who is linked with whom, from what the description of a node says of each GPU."""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.model.gpu import Gpu
from dra_driver.core.model.nvlink import NvLinkPeer, NvLinks
from dra_driver.hardware.gpu import catalog

PAIRS: Final = "pairs"
SWITCH: Final = "switch"
NONE: Final = "none"
_BRIDGE: Final = re.compile(r"bridge-[a-z0-9]{1,16}")


def parse(value: object) -> str:
    """How a description says it. Raises ValueError with the expected form."""
    if isinstance(value, str) and (value in (PAIRS, SWITCH, NONE) or _BRIDGE.fullmatch(value)):
        return value
    raise ValueError("none, switch, pairs, or bridge-NAME on each GPU that a bridge connects")


def of_entry(model: catalog.GpuModel, wanted: str | None, gpus: int, first_minor: int) -> tuple[str, ...]:
    """The wish of each of ``gpus`` GPUs of one entry: `SWITCH`, `NONE` or ``bridge-NAME``.

    Without ``wanted``, boards have what they are sold with: NVSwitches or no bridge. Raises ConfigurationError.
    """
    table = model.nvlink
    if wanted is None:
        wanted = SWITCH if table is not None and table.to_switches else NONE
    if wanted != NONE and (table is None or (table.to_switches and wanted != SWITCH)):
        has = "NVSwitches: switch or none" if table else "no NVLinks: none"
        raise ConfigurationError(f"nvlink: {model.key} has {has}, not {wanted}")
    if wanted == SWITCH and table is not None and not table.to_switches:
        raise ConfigurationError(f"nvlink: {model.key} has no NVSwitches; pairs, bridge-NAME or none")
    if wanted != PAIRS:
        return (wanted,) * gpus
    if gpus % 2:
        raise ConfigurationError(f"nvlink: pairs needs an even number of GPUs, got {gpus}")
    return tuple(f"pair-{first_minor + index // 2 * 2}" for index in range(gpus))


def linked(gpus: Iterable[tuple[Gpu, str, catalog.GpuModel]]) -> tuple[Gpu, ...]:
    """The GPUs of a node with their links. GPUs of equal wishes share the links of their board evenly."""
    found = tuple(gpus)
    bridges: dict[str, list[Gpu]] = {}
    for gpu, wish, _ in found:
        bridges.setdefault(wish, []).append(gpu)
    return tuple(replace(gpu, nvlinks=_links(gpu, wish, model, bridges)) for gpu, wish, model in found)


def _links(gpu: Gpu, wish: str, model: catalog.GpuModel, bridges: Mapping[str, list[Gpu]]) -> NvLinks:
    if wish == NONE or model.nvlink is None:
        return NvLinks()
    if wish == SWITCH:
        return NvLinks(switch_links=model.nvlink.links)
    others = sorted(other.pci_bus_id for other in bridges[wish] if other is not gpu and other.pci_bus_id)
    if not others:
        return NvLinks()
    each = max(1, model.nvlink.links // len(others))
    return NvLinks(peers=tuple(NvLinkPeer(pci_bus_id=address, links=each) for address in others))
