"""Explain why a pod or claim has no devices: ``explain(state, subject)`` returns an `Explanation`."""

from dra_driver.kubectl.explain.causes import gaps_that_matter
from dra_driver.kubectl.explain.evaluation import SchedulerModel, scheduler_for
from dra_driver.kubectl.explain.explanation import explain, explain_pods
from dra_driver.kubectl.explain.manifests import pods_in, with_defaults, with_taint_rules
from dra_driver.kubectl.explain.report import SCHEMA_VERSION, Answer, Explanation, render, to_wire
from dra_driver.kubectl.explain.subject import Subject, claim_subject, pod_subject, subject_of_claim

__all__ = [
    "SCHEMA_VERSION",
    "Answer",
    "Explanation",
    "SchedulerModel",
    "Subject",
    "claim_subject",
    "explain",
    "explain_pods",
    "gaps_that_matter",
    "pod_subject",
    "pods_in",
    "render",
    "scheduler_for",
    "subject_of_claim",
    "to_wire",
    "with_defaults",
    "with_taint_rules",
]
