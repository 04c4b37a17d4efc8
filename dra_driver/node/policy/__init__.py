"""Decide what each GPU of a node may be published as, from an administrator's policies and the present uses.

``source.py`` has the policies of a folder and of the API server, ``resolve.py`` chooses the one that applies to a GPU,
and ``in_use.py`` keeps the form of a GPU that is in use. The caller supplies the uses, which it reads from the journal.
Other packages import from here.
"""

from dra_driver.node.policy.folder import PolicyFile, read_file, read_folder
from dra_driver.node.policy.policy_set import MAX_POLICIES, PolicyObject, examine, kept
from dra_driver.node.policy.resolve import resolve, survey
from dra_driver.node.policy.source import PolicySets, PolicySource, standing_of

__all__ = [
    "MAX_POLICIES",
    "PolicyFile",
    "PolicyObject",
    "PolicySets",
    "PolicySource",
    "examine",
    "kept",
    "read_file",
    "read_folder",
    "resolve",
    "standing_of",
    "survey",
]
