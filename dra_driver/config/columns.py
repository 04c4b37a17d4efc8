"""The columns of ``kubectl get gpupolicies`` and ``kubectl get gpunodes``; those of ``-o wide`` apart.

The CustomResourceDefinitions and the embedded API server show the same.
"""

from typing import Final

ShownField = tuple[str, str, str]
"""Name, type and path of a column, as in ``additionalPrinterColumns``."""

POLICY_COLUMNS: Final[tuple[ShownField, ...]] = (
    ("Priority", "integer", ".spec.priority"),
    ("GPUs", "integer", ".status.selected.gpus"),
    ("In Force", "integer", ".status.inForce.gpus"),
    ("Waiting", "integer", ".status.waiting.gpus"),
    ("Refused", "integer", ".status.refused.nodes"),
    ("Conflicting", "integer", ".status.conflicting.gpus"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
POLICY_WIDE: Final[tuple[ShownField, ...]] = (
    ("Nodes", "integer", ".status.selected.nodes"),
    ("Availability", "string", ".spec.availability"),
    ("Sharing", "string", ".spec.sharing.strategy"),
    ("Shares", "integer", ".spec.sharing.maxShares"),
    ("Message", "string", '.status.conditions[?(@.type=="InForce")].message'),
)
NODE_COLUMNS: Final[tuple[ShownField, ...]] = (
    ("Driver", "string", ".status.driverVersion"),
    ("GPUs", "integer", ".status.summary.gpus"),
    ("Used As", "string", ".status.summary.usedAs"),
    ("Health", "string", ".status.summary.health"),
    ("Policies", "string", ".status.summary.policies"),
    ("Problems", "integer", ".status.summary.problems"),
    ("Age", "date", ".metadata.creationTimestamp"),
)
NODE_WIDE: Final[tuple[ShownField, ...]] = (
    ("Products", "string", ".status.summary.products"),
    ("CUDA", "string", ".status.cudaVersion"),
    ("Toolkit", "string", ".status.toolkitVersion"),
    ("Runtime", "string", ".status.containerRuntimeVersion"),
    ("Version", "string", ".status.nodeProcessVersion"),
    ("Usage", "string", ".status.summary.usage"),
    ("Problem", "string", ".status.summary.problem"),
)
