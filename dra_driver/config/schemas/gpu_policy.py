"""The model of ``GpuPolicy`` of gpu.dra-driver.io/v1alpha1, from which its schemas are generated.

It has the fields, their bounds and the descriptions that the CustomResourceDefinition shows. Conditions over several
fields are in ``config/rules.py``. Bounds of taints and attributes are those of ResourceSlices (resource.k8s.io/v1
types.go): at most 16 taints (4 in Kubernetes 1.34, of which the driver may need two), and 32 attributes and capacities
in all, most of which the driver uses itself.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from dra_driver.config.schemas.base import AtMost, MemoryOrNone, MemoryQuantity, Strict, text

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_HEX = "[0-9a-fA-F]"
_UUID = rf"GPU-{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}"
_PCI = rf"({_HEX}{{4}}|{_HEX}{{8}}):{_HEX}{{2}}:{_HEX}{{2}}\.[0-7]"
_LABEL_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"

Name = Annotated[str, text(longest=63, pattern=_SUBDOMAIN, says="a DNS subdomain of lower-case characters")]
Pattern = Annotated[str, text(longest=128, pattern="[ -~]+", says="a shell pattern such as NVIDIA H100*")]
ProfilePattern = Annotated[
    str, text(longest=64, pattern=r"[A-Za-z0-9.+*?\[\]!-]+", says="a shell pattern of MIG profiles such as 1g.*")
]
Patterns = Annotated[list[Pattern], AtMost(32)]
Uuid = Annotated[
    str, text(longest=40, pattern=_UUID, says="a GPU UUID such as GPU-7277883e-ce1e-3b6e-6cc1-6d52e80cdb86")
]
PciBusId = Annotated[str, text(longest=16, pattern=_PCI, says="a PCI address such as 0000:65:00.0")]
TaintKey = Annotated[
    str,
    text(longest=253, pattern=rf"({_SUBDOMAIN}/)?{_LABEL_NAME}", says="a label key such as example.com/team"),
]
TaintValue = Annotated[str, text(longest=63, shortest=0, pattern=rf"({_LABEL_NAME})?", says="a label value")]
AttributeName = Annotated[
    str,
    text(longest=64, pattern=rf"({_SUBDOMAIN}/)?[A-Za-z_][A-Za-z0-9_]{{0,31}}", says="a name such as example.com/team"),
]
Xids = Annotated[list[Annotated[int, Field(ge=1, le=65535)]], AtMost(64)]
_CAUSES = Literal["xid", "ecc", "lost", "hang", "row-remap", "retired-pages", "recovery-action", "nvlink", "fabric"]


class Metadata(Strict):
    """The object's metadata. Only the name is checked; Kubernetes checks the rest."""

    model_config = ConfigDict(extra="allow")

    name: Name


class GpuSelection(Strict):
    """Which GPUs the policy is for. Every field that is given has to match; without any field, every GPU matches.

    Patterns are shell patterns: * is any text, ? one character, [ab] one of several. They are case-sensitive.
    """

    rules: ClassVar[tuple[str, ...]] = ("memory-range",)

    node_names: Annotated[
        Patterns | None, Field(description="Names of nodes, as shell patterns. One of them has to match.")
    ] = None
    uuids: Annotated[
        Annotated[list[Uuid], AtMost(64)] | None,
        Field(description="UUIDs of GPUs, as nvidia-smi -L lists them."),
    ] = None
    minors: Annotated[
        Annotated[list[Annotated[int, Field(ge=0, le=255)]], AtMost(64)] | None,
        Field(description="Minor numbers: N of /dev/nvidiaN, and of the device name gpu-N."),
    ] = None
    pci_bus_ids: Annotated[
        Annotated[list[PciBusId], AtMost(64)] | None,
        Field(alias="pciBusIDs", description="PCI addresses, such as 0000:65:00.0."),
    ] = None
    product_names: Annotated[
        Patterns | None, Field(description="Values of the attribute productName, as shell patterns.")
    ] = None
    architectures: Annotated[
        Patterns | None, Field(description="Architectures such as Hopper or Ada Lovelace, as shell patterns.")
    ] = None
    min_memory: Annotated[
        MemoryQuantity | None,
        Field(description="The least memory. A GPU sold as 80 GB reports 79.6 Gi, so leave a margin."),
    ] = None
    max_memory: Annotated[MemoryQuantity | None, Field(description="The most memory.")] = None
    mig_capable: Annotated[bool | None, Field(description="true: only GPUs that support MIG; false: only others.")] = (
        None
    )


class AllowedForms(Strict):
    """In which forms a GPU may be used. A form in use stays until the GPU is free."""

    rules: ClassVar[tuple[str, ...]] = ("something-left",)

    whole: Annotated[
        bool | None, Field(description="Whether claims may have the whole GPU.", json_schema_extra={"default": True})
    ] = None
    mig_profiles: Annotated[
        Annotated[list[ProfilePattern], AtMost(32)] | None,
        Field(
            description="MIG profiles that claims may have, as shell patterns such as 1g.*; an empty list forbids"
            " all of them, no list allows all of them."
        ),
    ] = None


class Sharing(Strict):
    """How several claims share the whole GPU. Each gets the memory it asks for; a claim that asks for no share has
    the GPU alone."""

    rules: ClassVar[tuple[str, ...]] = (
        "interval-needs-time-slicing",
        "max-shares-needs-sharing",
        "default-percent-needs-sharing",
        "reserved-memory-needs-sharing",
    )

    strategy: Annotated[
        Literal["Exclusive", "TimeSlicing", "MPS"],
        Field(
            description="Exclusive: one claim at a time. TimeSlicing: programs take turns, and memory is counted but"
            " not enforced. MPS: programs run together under one daemon, which enforces memory and compute."
        ),
    ]
    interval: Annotated[
        Literal["Default", "Short", "Medium", "Long"] | None,
        Field(description="TimeSlicing: how long a program keeps the GPU while others wait."),
    ] = None
    max_shares: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | None,
        Field(description="The most claims at a time; without it memory and compute are the only limits."),
    ] = None
    default_compute_percent: Annotated[
        Annotated[int, Field(ge=0, le=100)] | None,
        Field(
            description="Percent of compute that a claim consumes if it asks for memory alone: 100, the default,"
            " leaves none for others; 0 consumes none and sets no limit."
        ),
    ] = None
    reserved_memory: Annotated[
        MemoryOrNone | None,
        Field(
            description="Memory that no claim gets; 0 for none. Without it, what the NVIDIA driver keeps for itself"
            " and, with MPS, 64Mi for the MPS server."
        ),
    ] = None


class PolicyTaint(Strict):
    """A taint of the GPU's devices, with effect NoSchedule: claims need a toleration for it."""

    rules: ClassVar[tuple[str, ...]] = ("taint-not-reserved",)

    key: Annotated[TaintKey, Field(description="A label key.")]
    value: Annotated[TaintValue | None, Field(description="A label value.")] = None
    effect: Annotated[
        Literal["NoSchedule"] | None,
        Field(
            description="NoSchedule, which leaves scheduled pods alone. To evict pods use a DeviceTaintRule.",
            json_schema_extra={"default": "NoSchedule"},
        ),
    ] = None


class PolicyAttribute(Strict):
    """An attribute of the GPU's devices, for selectors of claims and classes."""

    rules: ClassVar[tuple[str, ...]] = ("one-value", "attribute-not-reserved")

    name: Annotated[
        AttributeName,
        Field(
            description="The attribute's name, preferably with a domain; without one the driver's name is its domain."
        ),
    ]
    string_value: Annotated[
        Annotated[str, text(longest=64, shortest=0, pattern="[ -~]*", says="printable ASCII text")] | None,
        Field(alias="string", description="The value, if it is a text."),
    ] = None
    int_value: Annotated[
        Annotated[int, Field(ge=1 - 2**53, le=2**53 - 1)] | None,  # what JSON holds exactly everywhere
        Field(alias="int", description="The value, if it is a whole number."),
    ] = None
    bool_value: Annotated[bool | None, Field(alias="bool", description="The value, if it is true or false.")] = None


class HealthAdditions(Strict):
    """What taints in addition to what does by default."""

    xids: Annotated[Xids | None, Field(description="XIDs that taint, also those of application errors.")] = None


class HealthExceptions(Strict):
    """What is counted and never taints. What names an XID is stronger than what names the cause xid."""

    xids: Annotated[Xids | None, Field(description="XIDs that do not taint.")] = None
    causes: Annotated[
        Annotated[list[Literal[_CAUSES, "unmonitored"]], AtMost(16)] | None,
        Field(description="Causes that do not taint."),
    ] = None


class HealthEvictions(Strict):
    """What taints with the effect NoExecute. Kubernetes deletes the pods then: it does not look at
    PodDisruptionBudgets and does not limit how many it deletes at a time."""

    xids: Annotated[Xids | None, Field(description="XIDs that evict, also those that do not taint by default.")] = None
    causes: Annotated[
        Annotated[list[Literal[_CAUSES]], AtMost(16)] | None,
        Field(description="Causes that evict; lost is the GPU that has vanished or does not answer."),
    ] = None


class Health(Strict):
    """What errors of the GPU do to its devices. Without it, errors that need a recovery taint with the effect
    NoSchedule until it was seen, and application errors do not."""

    rules: ClassVar[tuple[str, ...]] = ("ignored-xid", "ignored-cause")

    taint: Annotated[HealthAdditions | None, Field(description="Errors that taint in addition.")] = None
    ignore: Annotated[HealthExceptions | None, Field(description="Errors that do not taint.")] = None
    evict: Annotated[HealthEvictions | None, Field(description="Errors that end pods; without it, none does.")] = None
    calm_seconds: Annotated[
        Annotated[int, Field(ge=0, le=86400)] | None,
        Field(
            description="Seconds without a new error after recovery was seen, until the taint goes; without it, the"
            " default of the cause."
        ),
    ] = None
    eviction_grace_seconds: Annotated[
        Annotated[int, Field(ge=0, le=3600)] | None,
        Field(
            description="Seconds that the controller waits before it evicts a pod that came by an extended resource.",
            json_schema_extra={"default": 60},
        ),
    ] = None


class OverGrantRule(Strict):
    """What becomes of a share whose processes together have more memory than its claim was granted. Memory of processes
    that cannot be attributed to a pod of the claim never counts. Needs the usage exporter."""

    action: Annotated[
        Literal["Report", "Evict"] | None,
        Field(
            description="Report: metric and events. Evict: the controller also evicts a pod of the claim after the"
            " grace time, if its chart allows it; PodDisruptionBudgets are honoured.",
            json_schema_extra={"default": "Report"},
        ),
    ] = None
    grace_seconds: Annotated[
        Annotated[int, Field(ge=10, le=86400)] | None,
        Field(
            description="Seconds from the first event until a pod is evicted.",
            json_schema_extra={"default": 60},
        ),
    ] = None
    overhead_per_process: Annotated[
        MemoryOrNone | None,
        Field(
            description="Memory that each process may have beyond the grant, for its CUDA context; 512Mi without it."
        ),
    ] = None


class IdleRule(Strict):
    """When a claim counts as idle: it has no process on its devices, or they do not compute. A claim whose use is not
    known is never idle. Needs the usage exporter."""

    after_minutes: Annotated[
        Annotated[int, Field(ge=1, le=10080)], Field(description="Minutes without use, from when it was first watched.")
    ]
    action: Annotated[
        Literal["Report", "Reclaim"] | None,
        Field(
            description="Report: metric and events. Reclaim: the controller also evicts the claim's pods after as many"
            " minutes more, if its chart allows it; never a pod without a controller of its own.",
            json_schema_extra={"default": "Report"},
        ),
    ] = None


class Usage(Strict):
    """What becomes of claims that use more than they were granted, or nothing."""

    over_grant: Annotated[
        OverGrantRule | None, Field(description="Claims over their memory; without it, they are reported.")
    ] = None
    idle: Annotated[IdleRule | None, Field(description="Claims without use; without it, none counts as idle.")] = None


class PolicySpec(Strict):
    """What GPUs may be used as. For each GPU the matching policy of highest priority applies, alone. Without any, a GPU
    may be used whole or as partitions of any MIG profile, and is not shared."""

    rules: ClassVar[tuple[str, ...]] = ("sharing-needs-whole", "attribute-once")

    select: Annotated[
        GpuSelection | None, Field(description="Which GPUs the policy is for; without it, every GPU.")
    ] = None
    priority: Annotated[
        Annotated[int, Field(ge=-1000, le=1000)] | None,
        Field(
            description="Of several policies that match a GPU the one of highest priority applies. Two of the same"
            " priority must not match one GPU unless they give the same terms.",
            json_schema_extra={"default": 0},
        ),
    ] = None
    availability: Annotated[
        Literal["Open", "Reserved", "Hidden"] | None,
        Field(
            description="Open: for every claim. Reserved: only for claims that tolerate the taint"
            " gpu.dra-driver.io/reserved=<name of the policy>. Hidden: for no claim.",
            json_schema_extra={"default": "Open"},
        ),
    ] = None
    forms: Annotated[
        AllowedForms | None,
        Field(description="The forms in which the GPU may be used; without it, whole or any MIG profile."),
    ] = None
    sharing: Annotated[Sharing | None, Field(description="How claims share the GPU; without it, they do not.")] = None
    taints: Annotated[
        Annotated[list[PolicyTaint], AtMost(2, unique="key")] | None,
        Field(description="Taints of the GPU's devices."),
    ] = None
    attributes: Annotated[
        Annotated[list[PolicyAttribute], AtMost(8, unique="name")] | None,
        Field(description="Attributes of the GPU's devices in addition to the driver's own."),
    ] = None
    health: Annotated[
        Health | None, Field(description="What errors of the GPU do; without it, the default rules apply.")
    ] = None
    usage: Annotated[Usage | None, Field(description="What claims over their grant, or without use, lead to.")] = None


class GpuPolicy(Strict):
    """What GPUs may be used as: whole or partitioned, exclusive or shared, open, reserved or hidden."""

    api_version: Literal["gpu.dra-driver.io/v1alpha1"]
    kind: Literal["GpuPolicy"]
    metadata: Metadata
    spec: PolicySpec
    status: Annotated[dict[str, Any] | None, Field(json_schema_extra={"x-any": True})] = None
