"""What a GpuNode says of its node, and what a GpuPolicy's status says of the fleet, as values.

The schemas with the bounds of every field are generated from ``config/schemas/``; ``config/status.py`` makes one of the
other. The node process writes GpuNodes, and the controller adds them up to the status of policies.
"""

from enum import StrEnum
from typing import Final

from msgspec import Struct

from dra_driver.core.model.gpu_node_usage import NO_USAGE, ToldUsage
from dra_driver.core.model.terms import Taint

MAX_GPUS: Final = 64
MAX_POLICIES: Final = 256
MAX_PROBLEMS: Final = 32
MAX_NAMES: Final = 20
"""Claims and policies listed of one policy, and places listed of one outcome."""
MAX_MESSAGE: Final = 1024


class PublishedForm(StrEnum):
    """The form that claims may have or have of a GPU; `FREE` is that of a GPU which no claim has."""

    FREE = "Free"
    WHOLE = "Whole"
    PARTITIONS = "Partitions"
    SHARED = "Shared"


class HealthWord(StrEnum):
    """`UNKNOWN`: not every error can be seen, or health is not watched."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"


class PolicyOrigin(StrEnum):
    """Where a node has a policy from."""

    OBJECT = "Object"
    FILE = "File"


class PolicyState(StrEnum):
    """What became of a policy on one node; the worst of its GPUs, in the order Refused, Conflicting, Waiting,
    InForce, Outranked."""

    IN_FORCE = "InForce"
    WAITING = "Waiting"
    REFUSED = "Refused"
    CONFLICTING = "Conflicting"
    OUTRANKED = "Outranked"


class NodeGpu(Struct, frozen=True, kw_only=True):
    """One GPU. ``memory`` is a quantity; ``policy`` is "" where none applies; ``message`` is about its health."""

    name: str
    uuid: str
    product_name: str | None = None
    memory: str | None = None
    offered_as: tuple[PublishedForm, ...] = ()
    used_as: PublishedForm = PublishedForm.FREE
    policy: str = ""
    waiting: str | None = None
    health: HealthWord = HealthWord.HEALTHY
    causes: tuple[str, ...] = ()
    message: str | None = None
    taints: tuple[Taint, ...] = ()


class NodePolicy(Struct, frozen=True, kw_only=True):
    """A policy that selects GPUs of the node. ``gpus`` and the lists after it are names of GPUs (``gpu-0``).

    ``generation`` is that of the object, None for a file. ``waiting_for`` are claims as ``namespace/name``. A refused
    policy may be one that cannot be read: it has no ``gpus`` then.
    """

    name: str
    origin: PolicyOrigin
    state: PolicyState
    generation: int | None = None
    gpus: tuple[str, ...] = ()
    in_force: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    conflicting: tuple[str, ...] = ()
    conflicts_with: tuple[str, ...] = ()
    waiting_for: tuple[str, ...] = ()
    message: str | None = None


class NodeProblem(Struct, frozen=True, kw_only=True):
    """``reason`` is one word in CamelCase, ``message`` a sentence."""

    reason: str
    message: str


class GpuNodeStatus(Struct, frozen=True, kw_only=True):
    """The status of one GpuNode without the time of its last change. Versions are as their sources print them."""

    driver_name: str
    node_process_version: str | None = None
    driver_version: str | None = None
    nvml_version: str | None = None
    cuda_version: str | None = None
    toolkit_version: str | None = None
    container_runtime_version: str | None = None
    kernel_version: str | None = None
    gpus: tuple[NodeGpu, ...] = ()
    policies: tuple[NodePolicy, ...] = ()
    problems: tuple[NodeProblem, ...] = ()
    usage: ToldUsage = NO_USAGE


class PolicyPlace(Struct, frozen=True, kw_only=True):
    """GPUs of one node in the status of a policy."""

    node: str
    gpus: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    message: str | None = None


class PolicyCount(Struct, frozen=True, kw_only=True):
    """Nodes and GPUs of the fleet, and the first `MAX_NAMES` of them by the nodes' names."""

    nodes: int = 0
    gpus: int = 0
    places: tuple[PolicyPlace, ...] = ()


class PolicyStatus(Struct, frozen=True, kw_only=True):
    """What the fleet made of one policy; its conditions are the writer's business."""

    observed_generation: int | None = None
    selected: PolicyCount = PolicyCount()
    in_force: PolicyCount = PolicyCount()
    waiting: PolicyCount = PolicyCount()
    refused: PolicyCount = PolicyCount()
    conflicting: PolicyCount = PolicyCount()
    outranked: PolicyCount = PolicyCount()
