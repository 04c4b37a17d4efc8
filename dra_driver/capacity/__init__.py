"""What is free and would fit: ``survey(state)``. Who holds what: ``devices_of(state)``, ``claims_of(state, now)``."""

from dra_driver.capacity.fit_count import Options
from dra_driver.capacity.holdings import claims_of, devices_of
from dra_driver.capacity.report import CapacityReport, to_wire
from dra_driver.capacity.survey import survey

__all__ = ["CapacityReport", "Options", "claims_of", "devices_of", "survey", "to_wire"]
