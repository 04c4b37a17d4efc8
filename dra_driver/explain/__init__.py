"""Why a pod or a claim has no devices, in the words of the person who asks: ``explain(state, subject) -> Report``."""

from dra_driver.explain.explanation import explain, explain_pods
from dra_driver.explain.report import SCHEMA_VERSION, Explanation
from dra_driver.explain.subject import Subject, claim_subject, pod_subject

__all__ = ["SCHEMA_VERSION", "Explanation", "Subject", "claim_subject", "explain", "explain_pods", "pod_subject"]
