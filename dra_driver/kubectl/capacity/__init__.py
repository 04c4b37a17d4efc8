"""Compute free capacity (`survey`), and list devices and claims (`devices_of`, `claims_of`, `topology_of`)."""

from dra_driver.kubectl.capacity.holdings import (
    MEMORY_KEY,
    ClaimDevice,
    ClaimList,
    ClaimRow,
    DeviceList,
    DeviceRow,
    Holder,
    amounts_text,
    claims_of,
    devices_of,
    with_claim_gaps,
)
from dra_driver.kubectl.capacity.kueue import (
    configuration,
    drift,
    extended_resource,
    queue_objects,
    quotas_of,
    stocks_of,
)
from dra_driver.kubectl.capacity.report import LEGEND, AddedCapacity, CapacityReport, ModelCapacity, NodeCapacity
from dra_driver.kubectl.capacity.survey import Options, survey
from dra_driver.kubectl.capacity.topology import NOWHERE, GpuPlace, TopologyList, TopologyRow, place_of, topology_of
from dra_driver.kubectl.capacity.units import node_problem
