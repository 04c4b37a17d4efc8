"""Test whether pods on nodes get the devices that their claims were allocated: ``SmokeRun`` (``kubectl dra smoke``)."""

from dra_driver.diagnose.smoke.planning import Fit
from dra_driver.diagnose.smoke.report import FORMS, WORDS, SmokeOptions, SmokeReport, TryKind, TryResult, document_of
from dra_driver.diagnose.smoke.run import SmokeRun, clean_up
