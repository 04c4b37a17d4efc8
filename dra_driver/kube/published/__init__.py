"""Published devices: names of attributes and capacities, their values, and the API's limits. Namespaces (`names`,
`attributes`, `devices`, `limits`) are exported as modules."""

from dra_driver.kube.published import attributes, devices, limits, names
from dra_driver.kube.published.islands import DIRECT, NO_ISLANDS, SWITCH, Island, Islands, in_order, islands_of
from dra_driver.kube.published.names import ALL_PERCENT, COMPUTE_PERCENT, MEMORY, SHARES, STANDARD_DOMAIN
from dra_driver.kube.published.shares import (
    DIMENSIONS,
    MIB,
    Dimension,
    amount_text,
    default_memory,
    default_percent,
    memory_view,
    shareable_memory,
    total_memory,
)

__all__ = [
    "ALL_PERCENT",
    "COMPUTE_PERCENT",
    "DIMENSIONS",
    "DIRECT",
    "MEMORY",
    "MIB",
    "NO_ISLANDS",
    "SHARES",
    "STANDARD_DOMAIN",
    "SWITCH",
    "Dimension",
    "Island",
    "Islands",
    "amount_text",
    "attributes",
    "default_memory",
    "default_percent",
    "devices",
    "in_order",
    "islands_of",
    "limits",
    "memory_view",
    "names",
    "shareable_memory",
    "total_memory",
]
