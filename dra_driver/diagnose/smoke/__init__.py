"""Tries on nodes whether a pod gets the device that its claim was allocated: ``SmokeRun`` (``kubectl dra smoke``)."""

from dra_driver.diagnose.smoke.fit import Fit
from dra_driver.diagnose.smoke.judge import one_line
from dra_driver.diagnose.smoke.kinds import FORMS, TryKind
from dra_driver.diagnose.smoke.options import SmokeOptions
from dra_driver.diagnose.smoke.report import SmokeReport, TryResult, TryStatus, to_wire
from dra_driver.diagnose.smoke.run import SmokeRun, clean_up

__all__ = [
    "FORMS",
    "Fit",
    "SmokeOptions",
    "SmokeReport",
    "SmokeRun",
    "TryKind",
    "TryResult",
    "TryStatus",
    "clean_up",
    "one_line",
    "to_wire",
]
