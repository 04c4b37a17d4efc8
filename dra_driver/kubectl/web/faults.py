"""Faults of GPUs and nodes as cards: object, cause, time, affected pods and the next command. No I/O.

The commands only exclude new claims, reset an unused GPU or read: none of them ends a pod.
"""

import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from dra_driver.kubectl.web.fleet import GpuRow, NodeRow, SeenFleet

_RESETS: Final = ("xid", "ecc", "row-remap", "retired-pages", "recovery-action")
"""Causes that a reset of the GPU ends."""
_REBOOTS: Final = "Drain the node"
"""In messages about GPUs that need a reboot or a repair (`node/health/conditions.py`)."""


class FaultCard(Struct, frozen=True, kw_only=True):
    """``gpu`` is "" for a fault of the node. ``since`` is RFC 3339, "" if unknown. ``pods`` are (namespace, name)."""

    node: str
    gpu: str = ""
    product: str = ""
    causes: Sequence[str]
    message: str = ""
    since: str = ""
    pods: Sequence[tuple[str, str]] = ()
    command: str
    effect: str


def faults_of(fleet: SeenFleet) -> list[FaultCard]:
    """Return one card for each unhealthy GPU, then for each node that is not ready or reports problems.

    GPUs with pods come first, then the newest fault.
    """
    gpus = [_of_gpu(gpu) for node in fleet.nodes for gpu in node.gpus if gpu.is_unhealthy]
    gpus.sort(key=lambda each: each.since, reverse=True)
    gpus.sort(key=lambda each: not each.pods)
    return [*gpus, *(card for node in fleet.nodes for card in _of_node(node))]


def of_gpu(faults: Sequence[FaultCard], node: str, gpu: str) -> list[FaultCard]:
    return [each for each in faults if (each.node, each.gpu) == (node, gpu)]


def causes_of(gpu: GpuRow) -> tuple[str, ...]:
    """Return the causes with the values of their taints, such as ``xid 79``."""
    taints = {key.rpartition("/")[2]: value for key, _, value in (each.partition("=") for each in gpu.unhealthy)}
    if not gpu.causes:
        return tuple(f"{name} {value}".strip() for name, value in taints.items()) or ("unhealthy",)
    return tuple(f"{cause} {taints.get(cause, '')}".strip() for cause in gpu.causes)


def _of_gpu(gpu: GpuRow) -> FaultCard:
    causes = causes_of(gpu)
    pods = dict.fromkeys((part.namespace, pod) for part in gpu.parts for pod in part.pods)
    # Two GPUs of one name on a node have the UUID in the name of the row.
    node, name = shlex.quote(gpu.node), shlex.quote(gpu.uuid if " " in gpu.name else gpu.name)
    kinds = {cause.partition(" ")[0] for cause in causes}
    if _REBOOTS in gpu.message or any("node-reboot" in cause for cause in causes):
        command, effect = f"kubectl dra drain {node}", "Excludes new claims on the node and waits for its pods to end."
    elif gpu.parts:
        command, effect = f"kubectl dra drain {node} --gpu {name}", "Excludes new claims and waits for the pods to end."
    elif kinds & {*_RESETS} and not gpu.admins and "unknown" not in gpu.closed:
        command, effect = f"kubectl dra gpu reset {node}/{name}", "Resets the GPU, which no claim uses."
    else:
        command, effect = f"kubectl dra doctor node/{node} --on-node", "Checks the node from a pod on it."
    return FaultCard(
        node=gpu.node,
        gpu=gpu.name,
        product=gpu.product,
        causes=causes,
        message=gpu.message,
        since=gpu.since,
        pods=tuple(pods),
        command=command,
        effect=effect,
    )


def _of_node(node: NodeRow) -> Iterator[FaultCard]:
    if node.problem and node.problem != "cordoned":
        pods = dict.fromkeys((part.namespace, pod) for gpu in node.gpus for part in gpu.parts for pod in part.pods)
        yield FaultCard(
            node=node.name,
            causes=(node.problem,),
            pods=tuple(pods),
            command=f"kubectl describe node {shlex.quote(node.name)}",
            effect="Shows the node's conditions.",
        )
    if node.problems:
        yield FaultCard(
            node=node.name,
            causes=("reported problem",) if len(node.problems) == 1 else (f"{len(node.problems)} reported problems",),
            message=" ".join(node.problems),
            command=f"kubectl dra doctor node/{shlex.quote(node.name)}",
            effect="Checks the layers of the node.",
        )
