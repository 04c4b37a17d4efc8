"""Published devices: names of attributes and capacities, their values, and the API's limits. Namespaces (`names`,
`attributes`, `devices`, `limits`) are exported as modules."""

from dra_driver.kube.published import attributes, devices, limits, names
from dra_driver.kube.published.islands import DIRECT, SWITCH, Island, Islands, in_order, islands_of
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
