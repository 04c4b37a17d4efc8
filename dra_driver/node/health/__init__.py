"""Health of a node's GPUs: from what the hardware reports, over rules, to conditions that end by themselves.

`NodeHealth` is the part with a lock and a file; everything that it decides is in pure functions. Other packages import
from here.
"""

from dra_driver.core.model.health_rules import DEFAULT_RULES, HealthRules
from dra_driver.node.health.conditions import DeviceHealth, HealthState, HealthStatus
from dra_driver.node.health.node_health import NodeHealth

__all__ = ["DEFAULT_RULES", "DeviceHealth", "HealthRules", "HealthState", "HealthStatus", "NodeHealth"]
