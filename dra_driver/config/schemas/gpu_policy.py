"""The model of ``GpuPolicy`` of gpu.dra-driver.io/v1alpha1, from which its schemas are generated.

It has the fields, their bounds and the descriptions that the CustomResourceDefinition shows. Conditions over several
fields are in ``config/rules.py``. Bounds of taints and attributes match ResourceSlices (resource.k8s.io/v1
types.go): at most 16 taints (4 in Kubernetes 1.34, of which the driver may need two), and 32 attributes and capacities
in all, most of which the driver uses itself.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from dra_driver.config.schemas.base import AtMost, HostMemory, MemoryOrNone, MemoryQuantity, Strict, optional, text

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
PciPlace = Annotated[
    str,
    text(
        longest=16,
        pattern=r"pci[0-9a-f]{4}:[0-9a-f]{2}|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]",
        says="a PCI address such as 0000:65:00.0 or a PCIe root such as pci0000:64, in lower case",
    ),
]
TaintKey = Annotated[
    str, text(longest=253, pattern=rf"({_SUBDOMAIN}/)?{_LABEL_NAME}", says="a label key such as example.com/team")
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
    """Selection of GPUs. Every given field must match; without any field, every GPU matches.

    Patterns are shell patterns: * is any text, ? one character, [ab] one of several. They are case-sensitive.
    """

    rules: ClassVar[tuple[str, ...]] = ("memory-range",)

    node_names: Patterns | None = optional("Names of nodes, as shell patterns. One of them has to match.")
    uuids: Annotated[list[Uuid], AtMost(64)] | None = optional("UUIDs of GPUs, as nvidia-smi -L lists them.")
    minors: Annotated[list[Annotated[int, Field(ge=0, le=255)]], AtMost(64)] | None = optional(
        "Minor numbers: N of /dev/nvidiaN, and of the device name gpu-N."
    )
    pci_bus_ids: Annotated[list[PciBusId], AtMost(64)] | None = optional(
        "PCI addresses, such as 0000:65:00.0.", alias="pciBusIDs"
    )
    product_names: Patterns | None = optional("Values of the attribute productName, as shell patterns.")
    architectures: Patterns | None = optional("Architectures such as Hopper or Ada Lovelace, as shell patterns.")
    min_memory: MemoryQuantity | None = optional(
        "The least memory. A GPU sold as 80 GB reports 79.6 Gi, so leave a margin."
    )
    max_memory: MemoryQuantity | None = optional("The most memory.")
    mig_capable: bool | None = optional("true: only GPUs that support MIG; false: only others.")


class AllowedForms(Strict):
    """In which forms a GPU may be used. A form in use stays until the GPU is free."""

    rules: ClassVar[tuple[str, ...]] = ("something-left",)

    whole: bool | None = optional("Whether claims may have the whole GPU.", default=True)
    mig_profiles: Annotated[list[ProfilePattern], AtMost(32)] | None = optional(
        "MIG profiles that claims may have, as shell patterns such as 1g.*; an empty list forbids"
        " all of them, no list allows all of them."
    )
    monitor: bool | None = optional(
        "Whether the GPU also has a device gpu-N-monitor, only for requests with adminAccess. It consumes no counters:"
        " the scheduler also allocates it while the GPU or its partitions are in use.",
        default=False,
    )


class MigCount(Strict):
    """A number of partitions of one profile."""

    profile: Annotated[
        str,
        text(
            longest=32,
            pattern=r"[0-9]+g\.[0-9]+gb(\+[a-z.]+)?",
            says="a profile such as 1g.5gb; not a compute instance",
        ),
    ] = Field(description="A MIG profile, as nvidia-smi mig -lgip lists it.")
    count: Annotated[int, Field(ge=1, le=16)] = Field(description="The number of partitions.")


class MigRules(Strict):
    """MIG mode and fixed partitions. A GPU from Hopper on needs no mode: the driver switches it for each partition."""

    mode: Literal["Leave", "WhenFree"] | None = optional(
        "WhenFree: when no claim or process uses a GPU that needs a reset for it (A100, A30), the node process switches"
        " its MIG mode on if forms.whole is false, off if forms.migProfiles is empty. Leave: an administrator does it.",
        default="Leave",
    )
    layout: Annotated[list[MigCount], AtMost(8, unique="profile")] | None = optional(
        "The only partitions that a GPU offers, all at the same time; without it, every placement that is free."
    )


class DefaultShare(Strict):
    """The share of a claim that requests no amounts, such as the claim that the scheduler creates for a pod with an
    extended resource."""

    rules: ClassVar[tuple[str, ...]] = ("share-by-parts-or-memory", "parts-without-percent")

    parts: Annotated[int, Field(ge=2, le=100)] | None = optional(
        "The number of equal parts of the memory and compute of the GPU; a share is one of them."
    )
    memory: MemoryQuantity | None = optional("Memory of a share; nodes reject more than a GPU has for its claims.")
    compute_percent: Annotated[int, Field(ge=0, le=100)] | None = optional(
        "Percent of compute of a share; 0 consumes none and sets no limit. Default: the percentage of the memory."
    )


class Sharing(Strict):
    """Sharing of a GPU, or of its MIG devices, by several claims. Each gets the memory that it requests; a claim
    without a share request has the device exclusively, unless defaultShare is set."""

    rules: ClassVar[tuple[str, ...]] = (
        "default-share-needs-sharing",
        "default-share-without-percent",
        "interval-needs-time-slicing",
        "max-shares-needs-sharing",
        "default-percent-needs-sharing",
        "reserved-memory-needs-sharing",
        "mig-devices-need-sharing",
    )

    strategy: Literal["Exclusive", "TimeSlicing", "MPS"] = Field(
        description="Exclusive: one claim at a time. TimeSlicing: programs take turns, and memory is counted but"
        " not enforced. MPS: programs run together under one daemon, which enforces memory and compute."
    )
    interval: Literal["Default", "Short", "Medium", "Long"] | None = optional(
        "TimeSlicing: how long a program keeps the GPU while others wait."
    )
    max_shares: Annotated[int, Field(ge=1, le=1024)] | None = optional(
        "The most claims at a time; without it memory and compute are the only limits."
    )
    default_compute_percent: Annotated[int, Field(ge=0, le=100)] | None = optional(
        "Percent of compute that a claim consumes if it asks for memory alone: 100, the default,"
        " leaves none for others; 0 consumes none and sets no limit."
    )
    reserved_memory: MemoryOrNone | None = optional(
        "Memory that no claim gets; 0 for none. Default: the reserve of the NVIDIA driver"
        " and, with MPS, 64Mi for the MPS server."
    )
    default_share: DefaultShare | None = optional(
        "The share of a claim that requests no amounts. Default: all of the GPU."
    )
    mig_devices: bool | None = optional(
        "Whether claims also share MIG devices; maxShares and defaultShare then hold for each MIG device, too.",
        default=False,
    )


class PolicyTaint(Strict):
    """A taint of the GPU's devices, with effect NoSchedule: claims need a toleration for it."""

    rules: ClassVar[tuple[str, ...]] = ("taint-not-reserved",)

    key: TaintKey = Field(description="A label key.")
    value: TaintValue | None = optional("A label value.")
    effect: Literal["NoSchedule"] | None = optional(
        "NoSchedule, which leaves scheduled pods alone. To evict pods use a DeviceTaintRule.", default="NoSchedule"
    )


class PolicyAttribute(Strict):
    """An attribute of the GPU's devices, for selectors of claims and classes."""

    rules: ClassVar[tuple[str, ...]] = ("one-value", "attribute-not-reserved")

    name: AttributeName = Field(
        description="The attribute's name, preferably with a domain; without one the driver's name is its domain."
    )
    string_value: Annotated[str, text(longest=64, shortest=0, pattern="[ -~]*", says="printable ASCII text")] | None = (
        optional("The value, if it is a text.", alias="string")
    )
    # What JSON holds exactly everywhere.
    int_value: Annotated[int, Field(ge=1 - 2**53, le=2**53 - 1)] | None = optional(
        "The value, if it is a whole number.", alias="int"
    )
    bool_value: bool | None = optional("The value, if it is true or false.", alias="bool")


class GpuRail(Strict):
    """The rail of GPUs: the switch of a rail-optimized network that their network cards are connected to."""

    pci: PciPlace = Field(
        description="The PCI address of a GPU, as its attribute pciBusID, or a PCIe root, as pcieRoot, for all GPUs of"
        " the root. The entry of a GPU's address overrides the entry of its root."
    )
    rail: Annotated[int, Field(ge=0, le=255)] = Field(description="The number of the rail.")


class HealthAdditions(Strict):
    """Errors that taint in addition to the defaults."""

    xids: Xids | None = optional("XIDs that taint, including application errors.")


class HealthExceptions(Strict):
    """Errors that are counted and never taint. An entry for one XID overrides an entry for the cause xid."""

    xids: Xids | None = optional("XIDs that do not taint.")
    causes: Annotated[list[Literal[_CAUSES, "unmonitored"]], AtMost(16)] | None = optional("Causes that do not taint.")


class HealthEvictions(Strict):
    """Errors that taint with the effect NoExecute. Kubernetes then deletes the pods: it ignores PodDisruptionBudgets
    and deletes all of them at the same time."""

    xids: Xids | None = optional("XIDs that evict, including XIDs that do not taint by default.")
    causes: Annotated[list[Literal[_CAUSES]], AtMost(16)] | None = optional(
        "Causes that evict; lost: the GPU disappeared or does not answer."
    )


class Health(Strict):
    """Effect of GPU errors on its devices. By default, errors that need a recovery taint with the effect NoSchedule
    until the driver detects the recovery, and application errors do not taint."""

    rules: ClassVar[tuple[str, ...]] = ("ignored-xid", "ignored-cause")

    taint: HealthAdditions | None = optional("Errors that taint in addition.")
    ignore: HealthExceptions | None = optional("Errors that do not taint.")
    evict: HealthEvictions | None = optional("Errors that end pods (default: none).")
    reset: Literal["Never", "WhenFree"] | None = optional(
        "WhenFree: the node process resets a GPU for which the NVIDIA driver asks for it, when no claim or process uses"
        " the GPU; at most three times a day.",
        default="Never",
    )
    calm_seconds: Annotated[int, Field(ge=0, le=86400)] | None = optional(
        "Seconds without a new error after the detected recovery, until the taint is removed (default: depends"
        " on the cause)."
    )
    eviction_grace_seconds: Annotated[int, Field(ge=0, le=3600)] | None = optional(
        "Seconds that the controller waits before it evicts a pod that requests an extended resource.", default=60
    )


class OverGrantRule(Strict):
    """Action on a share whose processes together have more memory than its claim was granted. Only memory of processes
    in a pod of the claim counts. Needs the usage exporter."""

    action: Literal["Report", "Evict"] | None = optional(
        "Report: metric and events. Evict: the controller also evicts a pod of the claim after the"
        " grace period, if its chart allows it; PodDisruptionBudgets are honoured.",
        default="Report",
    )
    grace_seconds: Annotated[int, Field(ge=10, le=86400)] | None = optional(
        "Seconds from the first event until a pod is evicted.", default=60
    )
    overhead_per_process: MemoryOrNone | None = optional(
        "Memory that each process may have beyond the grant, for its CUDA context; 512Mi without it."
    )
    pod_protection: Literal["Honor", "Ignore"] | None = optional(
        "Honor: the pod's annotation gpu.dra-driver.io/no-eviction and its PodDisruptionBudgets keep it. Ignore: they"
        " do not; the controller deletes a pod that a budget protects, if its chart allows it.",
        default="Honor",
    )


class IdleRule(Strict):
    """Definition of an idle claim: it has no process on its devices, or its processes do not compute. A claim of
    unknown use is never idle. Needs the usage exporter."""

    after_minutes: Annotated[int, Field(ge=1, le=10080)] = Field(
        description="Minutes without use since the first sample."
    )
    action: Literal["Report", "Reclaim"] | None = optional(
        "Report: metric and events. Reclaim: the controller also evicts the claim's pods after as many"
        " minutes more, if its chart allows it; only pods with a controller.",
        default="Report",
    )


class Usage(Strict):
    """Actions on claims that exceed their grant or are idle."""

    over_grant: OverGrantRule | None = optional("Claims over their memory (default: report).")
    idle: IdleRule | None = optional("Claims without use (default: no claim counts as idle).")


class PolicySpec(Strict):
    """Permitted uses of GPUs. Only the matching policy of highest priority applies to a GPU. Without a policy, a GPU
    may be used whole or as partitions of any MIG profile, and is not shared."""

    rules: ClassVar[tuple[str, ...]] = (
        "sharing-needs-whole",
        "mig-mode-needs-forms",
        "layout-needs-profiles",
        "no-compute-instances",
        "attribute-once",
        "rail-once",
    )

    select: GpuSelection | None = optional("GPUs that the policy applies to (default: every GPU).")
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = optional(
        "The matching policy of highest priority applies to a GPU. Policies of the same priority"
        " that match the same GPU must have the same terms.",
        default=0,
    )
    availability: Literal["Open", "Reserved", "Hidden"] | None = optional(
        "Open: for every claim. Reserved: only for claims that tolerate the taint"
        " gpu.dra-driver.io/reserved=<name of the policy>. Hidden: for no claim.",
        default="Open",
    )
    forms: AllowedForms | None = optional(
        "The forms in which the GPU may be used; without it, whole or any MIG profile."
    )
    mig: MigRules | None = optional("MIG mode and fixed partitions; without it, neither.")
    sharing: Sharing | None = optional("How claims share the GPU; without it, they do not.")
    host_memory_per_pod: HostMemory | None = optional(
        "Memory of the node that each pod with a device of the GPU uses for CUDA contexts, pinned buffers and the MPS"
        " server. Kubernetes 1.37 adds it to the pod's memory (feature gate DRANodeAllocatableResources)."
    )
    taints: Annotated[list[PolicyTaint], AtMost(2, unique="key")] | None = optional("Taints of the GPU's devices.")
    attributes: Annotated[list[PolicyAttribute], AtMost(8, unique="name")] | None = optional(
        "Attributes of the GPU's devices in addition to the driver's own."
    )
    rails: Annotated[list[GpuRail], AtMost(64, unique="pci")] | None = optional(
        "Rails of GPUs, published as the attribute rail. Entries without a GPU on a node have no effect there."
    )
    health: Health | None = optional("What errors of the GPU do; without it, the default rules apply.")
    usage: Usage | None = optional("What claims over their grant, or without use, lead to.")


class GpuPolicy(Strict):
    """Permitted uses of GPUs: whole or partitioned, exclusive or shared, open, reserved or hidden."""

    api_version: Literal["gpu.dra-driver.io/v1alpha1"]
    kind: Literal["GpuPolicy"]
    metadata: Metadata
    spec: PolicySpec
    status: dict[str, Any] | None = Field(None, json_schema_extra={"x-any": True})
