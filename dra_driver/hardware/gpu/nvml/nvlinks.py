"""Read how a GPU is connected by NVLink: nvmlDeviceGetNvLinkState, RemoteDeviceType, RemotePciInfo_v2 (nvml.h).

A driver that lacks one of the calls, a link that does not answer and a board without links only make the answer
smaller. The clique is of the fabric's registration (nvmlDeviceGetGpuFabricInfoV), Hopper and newer.
"""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Final
from uuid import UUID

import pynvml

from dra_driver.core.model.nvlink import NvLinkPeer, NvLinks
from dra_driver.hardware.gpu.nvml.errors import ABSENT
from dra_driver.hardware.gpu.nvml.fabric import read_info
from dra_driver.hardware.gpu.nvml.last_values import LastValues
from dra_driver.hardware.gpu.nvml.pci import sysfs_address

FUNCTION: Final = "NVLinks"
MAX_LINKS: Final = 36  # NVML_NVLINK_MAX_LINKS of driver 580; boards up to Blackwell have 18
EVERY: Final = 64
"""Looks between two reads, after the first ones: about ten minutes at the default poll interval."""
_MISSING: Final = ABSENT | {pynvml.NVML_ERROR_INVALID_ARGUMENT}
_SWITCH: Final = "switch"


def links_of(handle: pynvml.c_nvmlDevice_t, values: LastValues) -> NvLinks | None:
    """All links that were up at any read of this process; None when they could never be read.

    Read at the looks 1, 4 and 16, and every `EVERY` ones: links can come up after the driver (Fabric Manager trains
    those of NVSwitches), and some fifty calls per GPU and look would be felt. Raises as `LastValues.read`.
    """
    return values.growing(FUNCTION, partial(read_links, handle), NvLinks.__or__, every=EVERY)


def read_links(handle: pynvml.c_nvmlDevice_t) -> NvLinks:
    """The links that are up now. Raises pynvml.NVMLError where the GPU does not answer."""
    ends = Counter(_ends(handle))
    switch_links = ends.pop(_SWITCH, 0)
    peers = (NvLinkPeer(pci_bus_id=address, links=links) for address, links in sorted(ends.items()))
    return NvLinks(peers=tuple(peers), switch_links=switch_links, clique=_clique(handle) if switch_links else None)


def _ends(handle: pynvml.c_nvmlDevice_t) -> Iterator[str]:
    """For each link that is up and leads to something known: `_SWITCH`, or the PCI address of a GPU."""
    for link in range(MAX_LINKS):
        try:
            up = pynvml.nvmlDeviceGetNvLinkState(handle, link) != pynvml.NVML_NVLINK_STATE_INACTIVE
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_INVALID_ARGUMENT or (not link and error.value in ABSENT):
                return
            if error.value not in ABSENT:
                raise
            continue
        end = _end(handle, link) if up else None
        if end is not None:
            yield end


def _end(handle: pynvml.c_nvmlDevice_t, link: int) -> str | None:
    """Without a type (drivers before R470) the end counts as a GPU; one that is not on the node has no effect."""
    try:
        kind = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
        kind = pynvml.NVML_NVLINK_DEVICE_TYPE_GPU
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    return _peer(handle, link) if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_GPU else None


def _peer(handle: pynvml.c_nvmlDevice_t, link: int) -> str | None:
    try:
        return sysfs_address(pynvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link))
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
    except ValueError:  # no address
        pass
    return None


def _clique(handle: pynvml.c_nvmlDevice_t) -> str | None:
    """Only of a registration that is completed and succeeded, in a cluster that has a UUID (nvml.h)."""
    try:
        info = read_info(handle)
    except pynvml.NVMLError as error:
        if error.value not in _MISSING:
            raise
        return None
    cluster = bytes(info.clusterUuid)
    if info.state & 0xFF != pynvml.NVML_GPU_FABRIC_STATE_COMPLETED or info.status != 0 or not any(cluster):
        return None
    return f"{UUID(bytes=cluster)}.{info.cliqueId}"
