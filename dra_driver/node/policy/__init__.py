"""Decide the form in which each GPU of a node is published, from policies and present uses. Other packages import from
here."""

from dra_driver.node.policy.folder import PolicyFile, read_file, read_folder
from dra_driver.node.policy.policy_set import MAX_POLICIES, PolicyObject, examine, kept
from dra_driver.node.policy.resolve import resolve, survey
from dra_driver.node.policy.source import PolicySource, policy_outcomes
