"""Free capacity: ``survey(state)``. Devices and claims with their users: ``devices_of``, ``claims_of``."""

from dra_driver.kubectl.capacity.fit_count import Options
from dra_driver.kubectl.capacity.holdings import ClaimRow, claims_of, devices_of
from dra_driver.kubectl.capacity.report import CapacityReport, to_wire
from dra_driver.kubectl.capacity.survey import survey
from dra_driver.kubectl.capacity.topology import topology_of

__all__ = ["CapacityReport", "ClaimRow", "Options", "claims_of", "devices_of", "survey", "to_wire", "topology_of"]
