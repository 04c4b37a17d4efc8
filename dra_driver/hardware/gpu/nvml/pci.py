"""PCI addresses as NVML prints them, in the form that sysfs has."""

import pynvml


def sysfs_address(info: pynvml.nvmlPciInfo_t) -> str:
    """``0000:65:00.0``: NVML prints a domain of eight digits in upper case, sysfs at least four in lower case.

    Raises ValueError for a text that is no address.
    """
    bus_id = info.busId
    domain, _, rest = (bus_id.decode("ascii") if isinstance(bus_id, bytes) else bus_id).lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"
