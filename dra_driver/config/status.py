"""Encode and decode the status of a GpuNode with its summary in words, and list the columns of ``kubectl get``, which
the CustomResourceDefinitions and the embedded API server show."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from msgspec.structs import replace

from dra_driver.core.model import gpu_node
from dra_driver.core.text import cut
from dra_driver.core.wire import from_wire, to_wire

NODE_KIND: Final = "GpuNode"
_MOST: Final = 1024
_COLUMN: Final = 120


def node_status(status: gpu_node.GpuNodeStatus, observed_at: str) -> dict[str, Any]:
    """``status`` of the GpuNode. ``observed_at`` is RFC 3339 in UTC."""
    return to_wire(replace(status, observed_at=observed_at, summary=summary_of(status)))


def node_status_of(written: object) -> gpu_node.GpuNodeStatus | None:
    """The status of a GpuNode object of any shape, without invalid entries; None for one without."""
    status = written.get("status") if isinstance(written, Mapping) else None
    try:
        return replace(from_wire(gpu_node.GpuNodeStatus, status), observed_at=None, summary=None)
    except ValueError:
        return None


def summary_of(status: gpu_node.GpuNodeStatus) -> gpu_node.NodeSummary:
    """The lists in words: ``kubectl get`` cannot count."""
    unhealthy = [gpu for gpu in status.gpus if gpu.health is gpu_node.HealthWord.UNHEALTHY]
    named = "; ".join(f"{gpu.name} {', '.join(gpu.causes) or gpu.health}" for gpu in unhealthy)
    is_unknown = any(gpu.health is gpu_node.HealthWord.UNKNOWN for gpu in status.gpus)
    common = gpu_node.HealthWord.UNKNOWN if is_unknown else gpu_node.HealthWord.HEALTHY
    health = f"{len(unhealthy)} of {len(status.gpus)} unhealthy: {named}" if unhealthy else str(common)
    return gpu_node.NodeSummary(
        gpus=min(len(status.gpus), _MOST),
        products=_counted((gpu.product_name or "unnamed" for gpu in status.gpus), times=" x "),
        used_as=_counted((gpu.used_as for gpu in status.gpus), times=" "),
        health=health if status.gpus else None,
        policies=_policies_in_words(status.policies),
        usage=usage_in_words(status.usage),
        problems=min(len(status.problems), _MOST),
        problem=cut(status.problems[0].message, _COLUMN) if status.problems else None,
    )


def usage_in_words(reported: gpu_node.ReportedUsage) -> str | None:
    """For a column of kubectl; None when there is nothing to report."""
    counts = {
        "over grant": [f"{each.namespace}/{each.claim}" for each in reported.over_grant],
        "idle": [f"{each.namespace}/{each.claim}" for each in reported.idle],
        "with processes of no claim": [each.gpu for each in reported.unattributed],
    }
    return "; ".join(f"{len(names)} {what}: {', '.join(names)}" for what, names in counts.items() if names) or None


def _policies_in_words(policies: Sequence[gpu_node.NodePolicy]) -> str:
    """Return the names of the policies in force, after all further policies with their state."""
    good = [policy.name for policy in policies if policy.state is gpu_node.PolicyState.IN_FORCE]
    shown = (gpu_node.PolicyState.REFUSED, gpu_node.PolicyState.CONFLICTING, gpu_node.PolicyState.WAITING)
    bad = [f"{policy.name} ({policy.state})" for state in shown for policy in policies if policy.state is state]
    return ", ".join([*bad, *good])


def _counted(words: Iterable[str], times: str) -> str:
    return ", ".join(f"{count}{times}{word}" for word, count in sorted(Counter(map(str, words)).items()))


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
