"""Free capacity: ``survey(state)``. Devices and claims with their users: ``devices_of``, ``claims_of``."""

from dra_driver.kubectl.capacity.fit_count import Options
from dra_driver.kubectl.capacity.holdings import ClaimDevice, ClaimRow, DeviceRow, Holder, claims_of, devices_of
from dra_driver.kubectl.capacity.report import CapacityReport, ModelCapacity, NodeCapacity
from dra_driver.kubectl.capacity.survey import survey
from dra_driver.kubectl.capacity.topology import TopologyRow, topology_of
from dra_driver.kubectl.capacity.units import node_problem, numa_of

__all__ = [
    "CapacityReport",
    "ClaimDevice",
    "ClaimRow",
    "DeviceRow",
    "Holder",
    "ModelCapacity",
    "NodeCapacity",
    "Options",
    "TopologyRow",
    "claims_of",
    "devices_of",
    "node_problem",
    "numa_of",
    "survey",
    "topology_of",
]
