"""The model of ``GpuNode`` of gpu.dra-driver.io/v1alpha1, from which its CustomResourceDefinition is generated.

A GpuNode is written by the node process of that node alone and has no spec: it says what is there. The plain values are
in ``core/model/gpu_node.py``, and ``config/gpu_node.py`` makes one of the other. Every text and list is bounded, so
that an object stays far below the 1.5 MiB of etcd. ``summary`` repeats the lists in words, because the columns of
kubectl cannot count.
"""

from typing import Annotated, Literal

from pydantic import Field

from dra_driver.config.schemas.base import AtMost, Strict, text
from dra_driver.config.schemas.gpu_node_usage import ToldUsageModel

Word = Annotated[str, text(longest=63)]
Version = Annotated[str, text(longest=128)]
Line = Annotated[str, text(longest=253)]
Sentence = Annotated[str, text(longest=1024)]
GpuNames = Annotated[list[Word], AtMost(64)]
Count = Annotated[int, Field(ge=0, le=1024)]


class NodeSummaryModel(Strict):
    """The lists below in words, for the columns of kubectl."""

    gpus: Annotated[Count, Field(description="How many GPUs the node process knows.")]
    products: Annotated[Line | None, Field(description="What they are, such as 8 x NVIDIA H100 80GB HBM3.")] = None
    used_as: Annotated[Line | None, Field(description="How they are used, such as 6 Free, 2 Whole.")] = None
    health: Annotated[Line | None, Field(description="Healthy, or which GPUs are not and why.")] = None
    policies: Annotated[Line | None, Field(description="The policies in force, then those that are not, with why.")] = (
        None
    )
    usage: Annotated[
        Line | None, Field(description="Claims over their grant, idle claims, GPUs with processes of no claim.")
    ] = None
    problems: Annotated[Count, Field(description="How many problems are listed.")]
    problem: Annotated[Line | None, Field(description="The first of them, cut to the length of a column.")] = None


class NodeTaintModel(Strict):
    """A taint of the GPU's devices."""

    key: Annotated[str, text(longest=317)]
    value: Annotated[str, text(longest=63, shortest=0)] | None = None
    effect: Literal["NoSchedule", "NoExecute", "None"]


class NodeGpuModel(Strict):
    """One GPU of the node."""

    name: Annotated[Word, Field(description="The name of its device, gpu-N.")]
    uuid: Annotated[Annotated[str, text(longest=64)], Field(description="As nvidia-smi -L prints it.")]
    product_name: Annotated[Version | None, Field(description="As NVML prints it.")] = None
    memory: Annotated[Word | None, Field(description="All of its memory, as a quantity such as 81559Mi.")] = None
    offered_as: Annotated[
        Annotated[list[Literal["Whole", "Partitions", "Shared"]], AtMost(3)],
        Field(description="The forms that new claims may have; none for a GPU that is hidden."),
    ]
    used_as: Annotated[
        Literal["Free", "Whole", "Partitions", "Shared"],
        Field(description="The form that prepared claims have of it."),
    ]
    policy: Annotated[Word | None, Field(description="The policy that applies; none without one.")] = None
    waiting: Annotated[Sentence | None, Field(description="Which newer terms wait until the GPU is free.")] = None
    health: Annotated[
        Literal["Healthy", "Unhealthy", "Unknown"],
        Field(description="Unknown: not every error can be seen, or health is not watched."),
    ]
    causes: Annotated[
        Annotated[list[Word], AtMost(16)] | None, Field(description="Causes of its health, as in docs/health.md.")
    ] = None
    message: Annotated[Sentence | None, Field(description="Its health in words.")] = None
    taints: Annotated[
        Annotated[list[NodeTaintModel], AtMost(16)] | None, Field(description="Taints of the whole GPU's device.")
    ] = None


class NodePolicyModel(Strict):
    """A policy that selects GPUs of this node, or would if it were valid."""

    name: Word
    source: Annotated[Literal["Object", "File"], Field(description="A GpuPolicy object, or a file on the node.")]
    generation: Annotated[
        Annotated[int, Field(ge=0, le=2**53 - 1)] | None,
        Field(description="The object's metadata.generation that this is about."),
    ] = None
    state: Annotated[
        Literal["InForce", "Waiting", "Refused", "Conflicting", "Outranked"],
        Field(
            description="InForce: on at least one GPU, and nowhere worse. Waiting: a GPU is in use in a form that the"
            " policy ends. Refused: it is wrong, or the set that it is part of. Conflicting: another policy of the same"
            " priority says something else. Outranked: others of higher priority apply to all of its GPUs."
        ),
    ]
    gpus: Annotated[GpuNames, Field(description="The GPUs that it selects.")]
    in_force: Annotated[GpuNames | None, Field(description="Those on which it is in force.")] = None
    waiting: Annotated[GpuNames | None, Field(description="Those on which it waits for claims to end.")] = None
    conflicting: Annotated[GpuNames | None, Field(description="Those on which it conflicts.")] = None
    conflicts_with: Annotated[
        Annotated[list[Word], AtMost(20)] | None, Field(description="The policies with which it conflicts.")
    ] = None
    waiting_for: Annotated[
        Annotated[list[Annotated[str, text(longest=317)]], AtMost(20)] | None,
        Field(description="The claims that it waits for, as namespace/name."),
    ] = None
    message: Annotated[Sentence | None, Field(description="Why it is not in force.")] = None


class NodeProblemModel(Strict):
    """Something that keeps the node from serving all of its GPUs, or less of them."""

    reason: Word
    message: Sentence


class GpuNodeStatusModel(Strict):
    """What the node process knows of its GPUs, as of its last change."""

    observed_at: Annotated[
        Annotated[str, text(longest=32)],
        Field(description="When this was written. It is written when it changes, and not otherwise.",
              json_schema_extra={"format": "date-time"}),
    ]  # fmt: skip
    driver_name: Annotated[Word, Field(description="The DRA driver's name in claims and slices.")]
    node_process_version: Annotated[Version | None, Field(description="The version of this project on the node.")] = (
        None
    )
    driver_version: Annotated[Version | None, Field(description="The NVIDIA driver's version.")] = None
    nvml_version: Annotated[Version | None, Field(description="NVML's own version.")] = None
    cuda_version: Annotated[Version | None, Field(description="The newest CUDA that the NVIDIA driver supports.")] = (
        None
    )
    toolkit_version: Annotated[
        Version | None, Field(description="The version of the NVIDIA Container Toolkit's CDI hook.")
    ] = None
    container_runtime_version: Annotated[Version | None, Field(description="As the Node object says it.")] = None
    kernel_version: Annotated[Version | None, Field(description="As the Node object says it.")] = None
    summary: Annotated[NodeSummaryModel, Field(description="The lists below in words, for the columns of kubectl.")]
    gpus: Annotated[Annotated[list[NodeGpuModel], AtMost(64)], Field(description="The GPUs of the node.")]
    policies: Annotated[
        Annotated[list[NodePolicyModel], AtMost(256)],
        Field(description="Policies that select GPUs of this node."),
    ]
    problems: Annotated[
        Annotated[list[NodeProblemModel], AtMost(32)], Field(description="What is wrong, in sentences.")
    ]
    usage: Annotated[
        ToldUsageModel | None,
        Field(description="What the usage exporter found, as far as the node process believes it."),
    ] = None
