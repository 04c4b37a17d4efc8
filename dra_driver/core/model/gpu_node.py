"""The fields of ``GpuNode`` (gpu.dra-driver.io/v1alpha1) and of the status of a GpuPolicy; the
CustomResourceDefinitions are generated from these structs. Every text and list is bounded, far below the 1.5 MiB of
etcd. Only the node process writes the GpuNode of its node; the controller aggregates them."""

from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct, field

from dra_driver.core.model.terms import Effect
from dra_driver.core.model.usage_rules import IdleAction, OverGrantAction, PodProtection
from dra_driver.core.wire import ALWAYS

MAX_GPUS: Final = 64
MAX_NAMES: Final = 20  # claims and policies listed of one policy, and places listed of one outcome

MAX_REPORTED: Final = 32  # findings of each kind
MAX_TOLD_PODS: Final = 4

Word = Annotated[str, Meta(min_length=1, max_length=63)]
Uid = Annotated[str, Meta(min_length=1, max_length=128)]
Version = Annotated[str, Meta(min_length=1, max_length=128)]
Line = Annotated[str, Meta(min_length=1, max_length=253)]
ClaimName = Annotated[str, Meta(min_length=1, max_length=317)]
Sentence = Annotated[str, Meta(min_length=1, max_length=1024)]
Time = Annotated[str, Meta(min_length=1, max_length=32, extra_json_schema={"format": "date-time"})]  # RFC 3339 in UTC
GpuNames = Annotated[tuple[Word, ...], Meta(max_length=MAX_GPUS)]
PolicyNames = Annotated[tuple[Word, ...], Meta(max_length=MAX_NAMES)]
ClaimNames = Annotated[tuple[ClaimName, ...], Meta(max_length=MAX_NAMES)]
Count = Annotated[int, Meta(ge=0, le=1024)]
Generation = Annotated[int, Meta(ge=0, le=2**53 - 1)]
Total = Annotated[int, Meta(ge=0, le=2**31 - 1)]


def _says(description: str) -> Meta:
    return Meta(description=description)


class PublishedForm(StrEnum):
    """The form that claims may have or have of a GPU; `FREE` is that of a GPU which no claim has."""

    FREE = "Free"
    WHOLE = "Whole"
    PARTITIONS = "Partitions"
    SHARED = "Shared"


OfferedForm = Annotated[PublishedForm, Meta(extra_json_schema={"enum": ["Whole", "Partitions", "Shared"]})]


class HealthWord(StrEnum):
    """`UNKNOWN`: health monitoring is off or does not cover every error. Words of later versions are unknown, too."""

    HEALTHY = "Healthy"
    UNHEALTHY = "Unhealthy"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "HealthWord":  # noqa: ARG003 - the signature of StrEnum
        return cls.UNKNOWN


class PolicyOrigin(StrEnum):
    """Source of a policy on a node."""

    OBJECT = "Object"
    FILE = "File"


class PolicyState(StrEnum):
    """The state of a policy on one node: the worst of its GPUs, in the order Refused, Conflicting, Waiting, InForce,
    Outranked."""

    IN_FORCE = "InForce"
    WAITING = "Waiting"
    REFUSED = "Refused"
    CONFLICTING = "Conflicting"
    OUTRANKED = "Outranked"


class NodeSummary(Struct, frozen=True, kw_only=True, rename="camel"):
    """The lists below in words, for the columns of kubectl."""

    gpus: Annotated[Count, _says("How many GPUs the node process knows.")]
    products: Annotated[Line | None, _says("Number and models, such as 8 x NVIDIA H100 80GB HBM3.")] = None
    used_as: Annotated[Line | None, _says("How they are used, such as 6 Free, 2 Whole.")] = None
    health: Annotated[Line | None, _says("Healthy, or which GPUs are not and why.")] = None
    policies: Annotated[
        Line | None, _says("The policies in force, then all further policies, each with the reason.")
    ] = None
    usage: Annotated[Line | None, _says("Claims over their grant, idle claims, GPUs with processes of no claim.")] = (
        None
    )
    problems: Annotated[Count, _says("How many problems are listed.")]
    problem: Annotated[Line | None, _says("The first of them, cut to the length of a column.")] = None


class NodeTaint(Struct, frozen=True, kw_only=True, rename="camel"):
    """A taint of the GPU's devices."""

    key: ClaimName
    value: Annotated[str, Meta(max_length=63)] = ""
    effect: Effect


class NodeGpu(Struct, frozen=True, kw_only=True, rename="camel"):
    """One GPU of the node."""

    name: Annotated[Word, _says("The name of its device, gpu-N.")]
    uuid: Annotated[Annotated[str, Meta(min_length=1, max_length=64)], _says("As nvidia-smi -L prints it.")]
    product_name: Annotated[Version | None, _says("As NVML prints it.")] = None
    memory: Annotated[Word | None, _says("All of its memory, as a quantity such as 81559Mi.")] = None
    offered_as: Annotated[
        tuple[OfferedForm, ...],
        Meta(max_length=3, description="The forms that new claims may have; none for a GPU that is hidden."),
        ALWAYS,
    ] = ()
    used_as: Annotated[PublishedForm, _says("The form that prepared claims have of it."), ALWAYS] = PublishedForm.FREE
    policy: Annotated[str, Meta(max_length=63, description="The policy that applies; none without one.")] = ""
    waiting: Annotated[Sentence | None, _says("Which newer terms wait until the GPU is free.")] = None
    health: Annotated[HealthWord, _says("Unknown: health monitoring is off or does not cover every error."), ALWAYS] = (
        HealthWord.UNKNOWN
    )
    causes: Annotated[
        tuple[Word, ...], Meta(max_length=16, description="Causes of its health, as in docs/health.md.")
    ] = ()
    message: Annotated[Sentence | None, _says("Its health in words.")] = None
    taints: Annotated[tuple[NodeTaint, ...], Meta(max_length=16, description="Taints of the whole GPU's device.")] = ()


class NodePolicy(Struct, frozen=True, kw_only=True, rename="camel"):
    """A policy that selects GPUs of this node, or would if it were valid. One that cannot be read has no GPUs."""

    name: Word
    origin: Annotated[PolicyOrigin, _says("A GpuPolicy object, or a file on the node.")] = field(name="source")
    generation: Annotated[Generation | None, _says("The object's metadata.generation that this is about.")] = None
    state: Annotated[
        PolicyState,
        _says(
            "InForce: applies to at least one GPU, and no worse state applies. Waiting: a GPU is in use in a form"
            " that the policy ends. Refused: the policy or its set is invalid. Conflicting: another policy of the same"
            " priority contradicts it. Outranked: policies of higher priority apply to all of its GPUs."
        ),
    ]
    gpus: Annotated[GpuNames, _says("The GPUs that it selects."), ALWAYS] = ()
    in_force: Annotated[GpuNames, _says("Those on which it is in force.")] = ()
    waiting: Annotated[GpuNames, _says("Those on which it waits for claims to end.")] = ()
    conflicting: Annotated[GpuNames, _says("Those on which it conflicts.")] = ()
    conflicts_with: Annotated[PolicyNames, _says("The policies with which it conflicts.")] = ()
    waiting_for: Annotated[ClaimNames, _says("The claims that it waits for, as namespace/name.")] = ()
    message: Annotated[Sentence | None, _says("Why it is not in force.")] = None


class NodeProblem(Struct, frozen=True, kw_only=True, rename="camel"):
    """Something that keeps the node from serving all of its GPUs, or less of them. ``reason`` is a CamelCase word."""

    reason: Word
    message: Sentence


class ReportedPod(Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod in the claim's namespace."""

    name: Line
    uid: Uid


Processes = Annotated[int, Meta(ge=0, le=100_000, description="How many processes there were.")]


class ReportedOverGrant(Struct, frozen=True, kw_only=True, rename="camel"):
    """A claim whose processes together have more memory of a shared GPU than was granted."""

    namespace: Line
    claim: Annotated[Line, _says("The ResourceClaim's name.")]
    claim_uid: Uid
    gpu: Annotated[Word, _says("The name of the GPU's device, gpu-N.")]
    pods: Annotated[
        tuple[ReportedPod, ...],
        Meta(max_length=MAX_TOLD_PODS, description="Pods of the claim that have the memory, the one with most first."),
    ]
    used: Annotated[Word, _says("Highest observed value, as a quantity.")]
    granted: Annotated[Word, _says("Amount allocated to the claim, as a quantity.")]
    processes: Processes
    since: Annotated[Time, _says("RFC 3339.")]
    action: Annotated[
        OverGrantAction,
        _says("Evict: the controller evicts the first of the pods after the grace period, if it may."),
        ALWAYS,
    ] = OverGrantAction.REPORT
    grace_s: Annotated[int, Meta(ge=0, le=86400, description="The policy's grace period.")] = field(name="graceSeconds")
    pod_protection: Annotated[
        PodProtection | None, _says("Ignore: the pods' annotation no-eviction and budgets do not keep them.")
    ] = None


class ReportedUnattributed(Struct, frozen=True, kw_only=True, rename="camel"):
    """Processes on a GPU that belong to no claim that has it."""

    gpu: Annotated[Word, _says("The name of the GPU's device, gpu-N.")]
    processes: Processes
    memory: Annotated[Word | None, _says("Memory of all of them, as a quantity.")] = None
    since: Annotated[Time, _says("RFC 3339.")]
    commands: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64)], ...],
        Meta(max_length=5, description="Names of their programs, which they choose themselves."),
        ALWAYS,
    ] = ()


class ReportedIdle(Struct, frozen=True, kw_only=True, rename="camel"):
    """A claim that does not use its devices."""

    namespace: Line
    claim: Annotated[Line, _says("The ResourceClaim's name.")]
    claim_uid: Uid
    since: Annotated[Time, _says("RFC 3339.")]
    action: Annotated[
        IdleAction,
        _says("Reclaim: the controller evicts the claim's pods after as many minutes more, if it may."),
        ALWAYS,
    ] = IdleAction.REPORT
    after_min: Annotated[int, Meta(ge=1, le=10080, description="The policy's minutes.")] = field(name="afterMinutes")


class ReportedUsage(Struct, frozen=True, kw_only=True, rename="camel"):
    """Findings of the usage exporter that the node process accepted. The controller evicts only for these."""

    checked_at: Annotated[
        Time | None,
        _says(
            "Renewed at least every other minute while the node requests an action of the controller."
            " The controller ignores old entries."
        ),
    ] = None
    over_grant: Annotated[
        tuple[ReportedOverGrant, ...], Meta(max_length=MAX_REPORTED, description="Claims over their grant.")
    ] = ()
    unattributed: Annotated[
        tuple[ReportedUnattributed, ...], Meta(max_length=MAX_REPORTED, description="GPUs with processes of no claim.")
    ] = ()
    idle: Annotated[tuple[ReportedIdle, ...], Meta(max_length=MAX_REPORTED, description="Claims without use.")] = ()

    @property
    def asks(self) -> bool:
        """Return whether the node requests an action of the controller."""
        evicts = any(each.action is OverGrantAction.EVICT for each in self.over_grant)
        return evicts or any(each.action is IdleAction.RECLAIM for each in self.idle)


NO_USAGE: Final = ReportedUsage()


class GpuNodeStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """State of this node's GPUs, as last reported by the node process."""

    observed_at: Annotated[
        Time | None, _says("When this was written. It is written when it changes, and not otherwise."), ALWAYS
    ] = None
    driver_name: Annotated[Word, _says("The DRA driver's name in claims and slices.")]
    node_process_version: Annotated[Version | None, _says("The version of this project on the node.")] = None
    driver_version: Annotated[Version | None, _says("The NVIDIA driver's version.")] = None
    nvml_version: Annotated[Version | None, _says("NVML's own version.")] = None
    cuda_version: Annotated[Version | None, _says("The newest CUDA that the NVIDIA driver supports.")] = None
    toolkit_version: Annotated[Version | None, _says("The version of the NVIDIA Container Toolkit's CDI hook.")] = None
    container_runtime_version: Annotated[Version | None, _says("As the Node object says it.")] = None
    kernel_version: Annotated[Version | None, _says("As the Node object says it.")] = None
    summary: Annotated[NodeSummary | None, _says("The lists below in words, for the columns of kubectl."), ALWAYS] = (
        None
    )
    gpus: Annotated[tuple[NodeGpu, ...], Meta(max_length=MAX_GPUS, description="The GPUs of the node."), ALWAYS] = ()
    policies: Annotated[
        tuple[NodePolicy, ...], Meta(max_length=256, description="Policies that select GPUs of this node."), ALWAYS
    ] = ()
    problems: Annotated[
        tuple[NodeProblem, ...], Meta(max_length=32, description="Problems of the node, in sentences."), ALWAYS
    ] = ()
    usage: Annotated[ReportedUsage, _says("Findings of the usage exporter that the node process validated.")] = NO_USAGE


class PolicyPlace(Struct, frozen=True, kw_only=True, rename="camel"):
    """GPUs of one node."""

    node: Line
    gpus: Annotated[GpuNames, _says("Names of the GPUs' devices.")] = ()
    claims: Annotated[
        tuple[Line, ...],
        Meta(max_length=MAX_NAMES, description="The claims that the policy waits for, as namespace/name."),
    ] = ()
    policies: Annotated[PolicyNames, _says("The policies with which it conflicts.")] = ()
    message: Annotated[Sentence | None, _says("Why, in words.")] = None


class PolicyCount(Struct, frozen=True, kw_only=True, rename="camel"):
    """Number of nodes and GPUs of the fleet, and the first nodes by name."""

    nodes: Annotated[Total, ALWAYS] = 0
    gpus: Annotated[Total, ALWAYS] = 0
    places: Annotated[tuple[PolicyPlace, ...], Meta(max_length=MAX_NAMES, description="The first of them.")] = ()


class PolicyStatus(Struct, frozen=True, kw_only=True, rename="camel"):
    """State of the policy on the nodes, as last observed. The controller adds ``conditions``."""

    observed_generation: Annotated[Generation | None, _says("The generation of the policy that this is about.")] = None
    selected: Annotated[PolicyCount, _says("Nodes and GPUs that the policy selects.")] = PolicyCount()
    in_force: Annotated[PolicyCount, _says("Where it is in force.")] = PolicyCount()
    waiting: Annotated[PolicyCount, _says("Where it waits until claims end that use a GPU in another form.")] = (
        PolicyCount()
    )
    refused: Annotated[PolicyCount, _says("Where nodes refuse it, or the set it is part of.")] = PolicyCount()
    conflicting: Annotated[
        PolicyCount, _says("Nodes and GPUs on which a policy of the same priority contradicts it.")
    ] = PolicyCount()
    outranked: Annotated[PolicyCount, _says("Where a policy of higher priority applies.")] = PolicyCount()
