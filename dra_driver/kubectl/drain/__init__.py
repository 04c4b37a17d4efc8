"""Free GPUs of a node for maintenance, and undrain them."""

from dra_driver.kubectl.drain.report import DrainReport, state_left, to_wire
from dra_driver.kubectl.drain.run import DrainOptions, drain, undrain
from dra_driver.kubectl.drain.view import wait_at_most

__all__ = ["DrainOptions", "DrainReport", "drain", "state_left", "to_wire", "undrain", "wait_at_most"]
