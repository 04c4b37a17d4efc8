"""Explain why a pod or claim has no devices: ``explain(state, subject)`` returns an `Explanation`."""

from dra_driver.kubectl.explain.added_node import NodeTemplate, with_added_node, with_added_nodes
from dra_driver.kubectl.explain.causes import gaps_that_matter
from dra_driver.kubectl.explain.evaluation import SchedulerModel, scheduler_for
from dra_driver.kubectl.explain.explanation import explain, explain_pods
from dra_driver.kubectl.explain.manifests import pods_in, with_defaults, with_taint_rules
from dra_driver.kubectl.explain.queueing import FIX_MAPPINGS, misconfigured
from dra_driver.kubectl.explain.rails import with_rails
from dra_driver.kubectl.explain.report import Answer, Explanation, ExplanationList, not_checked, render
from dra_driver.kubectl.explain.subject import Subject, Wire, claim_subject, pod_subject, subject_of, subject_of_claim
from dra_driver.kubectl.explain.waiting import (
    check_queue,
    explain_groups,
    owner_groups,
    render_waiting,
    waiting_groups,
    waiting_list,
)
