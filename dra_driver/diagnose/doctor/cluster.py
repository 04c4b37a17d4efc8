"""The checks of a cluster, in the order of layers, and the report that they make of facts."""

from collections.abc import Callable
from typing import Final

from dra_driver.core.finding import run_all
from dra_driver.diagnose.doctor import (
    check_api,
    check_classes,
    check_daemonset,
    check_gpu_nodes,
    check_nodes,
    check_policies,
    check_publishers,
    check_slices,
    check_usage,
    check_workloads,
)
from dra_driver.diagnose.doctor.facts import ClusterFacts
from dra_driver.diagnose.doctor.report import DoctorReport
from dra_driver.diagnose.doctor.scope import DoctorScope, narrowed

CHECKS: Final = (
    *check_api.CHECKS,
    *check_daemonset.CHECKS,
    *check_nodes.CHECKS,
    *check_gpu_nodes.CHECKS,
    *check_publishers.CHECKS,
    *check_slices.CHECKS,
    *check_classes.CHECKS,
    *check_policies.CHECKS,
    *check_usage.CHECKS,
    *check_workloads.CHECKS,
)


def diagnose(
    facts: ClusterFacts, scope: DoctorScope, *, clock: Callable[[], float], took_s: float = 0.0
) -> DoctorReport:
    """The report of all checks over the part of the facts that ``scope`` is about.

    ``took_s`` is the time that reading took. Raises ConfigurationError for an object that is known not to exist.
    """
    began = clock()
    findings = run_all(CHECKS, narrowed(facts, scope))
    return DoctorReport(target=str(scope), findings=findings, source=facts.source, took_s=took_s + clock() - began)
