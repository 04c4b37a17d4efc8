"""Track the health of a node's GPUs, from events and readings of the hardware to conditions that taint. Other packages
import from here."""

from dra_driver.core.model.health_rules import HealthRules
from dra_driver.node.health.conditions import DeviceHealth, HealthState, HealthStatus
from dra_driver.node.health.node_health import NodeHealth
