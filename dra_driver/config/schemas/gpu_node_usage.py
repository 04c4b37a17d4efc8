"""The model of ``status.usage`` of a GpuNode, from which its part of the CustomResourceDefinition is generated."""

from typing import Annotated, Literal

from pydantic import Field

from dra_driver.config.schemas.base import AtMost, Strict, text

Word = Annotated[str, text(longest=63)]
Name = Annotated[str, text(longest=253)]
Uid = Annotated[str, text(longest=128)]
Time = Annotated[
    Annotated[str, text(longest=32)], Field(description="RFC 3339.", json_schema_extra={"format": "date-time"})
]
Processes = Annotated[Annotated[int, Field(ge=0, le=100_000)], Field(description="How many processes there were.")]


class ToldPodModel(Strict):
    """A pod in the claim's namespace."""

    name: Name
    uid: Uid


class ToldOverGrantModel(Strict):
    """A claim whose processes together have more memory of a shared GPU than was granted."""

    namespace: Name
    claim: Annotated[Name, Field(description="The ResourceClaim's name.")]
    claim_uid: Uid
    gpu: Annotated[Word, Field(description="The name of the GPU's device, gpu-N.")]
    pods: Annotated[
        Annotated[list[ToldPodModel], AtMost(4)],
        Field(description="Pods of the claim that have the memory, the one with most first."),
    ]
    used: Annotated[Word, Field(description="The most that was seen, as a quantity.")]
    granted: Annotated[Word, Field(description="What the claim was allocated, as a quantity.")]
    processes: Processes
    since: Time
    action: Annotated[
        Literal["Report", "Evict"],
        Field(description="Evict: the controller evicts the first of the pods after the grace time, if it may."),
    ]
    grace_seconds: Annotated[Annotated[int, Field(ge=0, le=86400)], Field(description="The policy's grace time.")]


class ToldForeignModel(Strict):
    """Processes on a GPU that belong to no claim that has it."""

    gpu: Annotated[Word, Field(description="The name of the GPU's device, gpu-N.")]
    processes: Processes
    memory: Annotated[Word | None, Field(description="What they have together, as a quantity.")] = None
    since: Time
    commands: Annotated[
        Annotated[list[Annotated[str, text(longest=64)]], AtMost(5)],
        Field(description="Names of their programs, which they choose themselves."),
    ]


class ToldIdleModel(Strict):
    """A claim that does not use its devices."""

    namespace: Name
    claim: Annotated[Name, Field(description="The ResourceClaim's name.")]
    claim_uid: Uid
    since: Time
    action: Annotated[
        Literal["Report", "Reclaim"],
        Field(description="Reclaim: the controller evicts the claim's pods after as many minutes more, if it may."),
    ]
    after_minutes: Annotated[Annotated[int, Field(ge=1, le=10080)], Field(description="The policy's minutes.")]


class ToldUsageModel(Strict):
    """What the usage exporter found on this node."""

    checked_at: Annotated[
        Annotated[str, text(longest=32)] | None,
        Field(
            description="Renewed while the controller is asked to act, at least every other minute; it does not act on"
            " old entries.",
            json_schema_extra={"format": "date-time"},
        ),
    ] = None
    over_grant: Annotated[
        Annotated[list[ToldOverGrantModel], AtMost(32)] | None, Field(description="Claims over their grant.")
    ] = None
    unattributed: Annotated[
        Annotated[list[ToldForeignModel], AtMost(32)] | None, Field(description="GPUs with processes of no claim.")
    ] = None
    idle: Annotated[Annotated[list[ToldIdleModel], AtMost(32)] | None, Field(description="Claims without use.")] = None
