"""The rules: what each is called, how bad a breach is, and in one line why.

Owns identifiers, which never change their meaning once published: people write them into comments and pipelines.
``docs/lint.md`` explains each with an example and a fix. Refuses to know how a rule is checked.
"""

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Severity = Literal["error", "warning", "info"]
RANK: Final = MappingProxyType({"error": 0, "warning": 1, "info": 2})


@dataclass(frozen=True, slots=True)
class LintRule:
    """``severity`` is the usual one; a check may choose another where it knows more."""

    id: str
    name: str
    severity: Severity
    summary: str


_ALL: Final = (
    # Files and objects
    LintRule("DRA001", "unreadable", "error", "The file is not YAML or JSON that can be read."),
    LintRule("DRA002", "duplicate-key", "error", "A key stands twice in one mapping; one of the values is lost."),
    LintRule("DRA003", "unknown-field", "error", "A field that the API does not have."),
    LintRule("DRA004", "invalid-value", "error", "A value that the API server refuses."),
    LintRule("DRA005", "deprecated-api", "warning", "An API version that newer clusters do not serve."),
    LintRule("DRA006", "duplicate-name", "error", "Two things of one kind with the same name."),
    LintRule("DRA007", "too-many", "error", "More entries than the API allows."),
    # Expressions
    LintRule("DRA010", "cel-error", "error", "The expression does not compile."),
    LintRule("DRA011", "cel-too-long", "error", "The expression is longer than the API allows."),
    LintRule("DRA012", "cel-cost", "error", "Evaluating the expression costs more than is allowed, or a lot."),
    LintRule("DRA013", "missing-driver-guard", "error", "The expression fails on devices of other drivers."),
    LintRule("DRA014", "guard-not-first", "info", "The check of the driver does not come first."),
    LintRule("DRA015", "may-fail-at-run-time", "warning", "The expression fails on devices that lack an attribute."),
    LintRule("DRA016", "unknown-attribute", "error", "The driver publishes no such attribute or capacity."),
    LintRule("DRA017", "wrong-type", "error", "A comparison of values of different types, which is never true."),
    LintRule("DRA018", "no-device-matches", "warning", "No known device can match."),
    LintRule("DRA019", "label-gigabytes", "warning", "Gigabytes of a product's label taken for its memory."),
    LintRule("DRA020", "unknown-driver", "warning", "No driver of that name is known."),
    LintRule("DRA021", "invalid-constant", "error", "A quantity or version that is none."),
    # Classes, claims and templates
    LintRule("DRA030", "unknown-class", "info", "The DeviceClass is not defined here."),
    LintRule("DRA031", "all-over-32", "warning", "All matching devices are more than a claim can hold."),
    LintRule("DRA032", "too-many-devices", "error", "The claim asks for more than 32 devices."),
    LintRule("DRA033", "unknown-request", "error", "A reference to a request that the claim does not have."),
    LintRule("DRA034", "attribute-without-domain", "error", "A constraint's attribute needs a domain."),
    LintRule("DRA035", "invalid-parameters", "error", "Opaque parameters that the driver refuses."),
    LintRule("DRA036", "parameters-unused", "warning", "Parameters for a driver whose devices are not requested."),
    LintRule("DRA037", "parameters-of-wrong-kind", "error", "Parameters for another type of device."),
    LintRule("DRA038", "admin-access", "warning", "Admin access needs a label on the namespace."),
    # DRA039 said that a version of the driver did not apply sharing; its number is not given again.
    LintRule("DRA040", "sharing-with-admin-access", "warning", "Sharing that is asked for with admin access only."),
    LintRule("DRA041", "capacity-not-given", "warning", "An amount of a capacity that no known device gives."),
    LintRule("DRA042", "share-takes-all-compute", "info", "A share of memory that takes all of the GPU's compute."),
    LintRule("DRA043", "several-mps-shares", "error", "More than one share in a claim, which is refused under MPS."),
    LintRule("DRA044", "sharing-of-a-share", "error", "A sharing section for a share that contradicts its policy."),
    # Pods
    LintRule("DRA050", "missing-claim", "warning", "The claim or template that a pod names is not defined here."),
    LintRule("DRA051", "unknown-pod-claim", "error", "A container uses a claim that its pod does not declare."),
    LintRule(
        "DRA052", "unknown-container-request", "error", "A container uses a request that the claim does not have."
    ),
    LintRule("DRA053", "unused-pod-claim", "warning", "A claim of the pod is used by no container."),
    LintRule("DRA054", "claim-and-extended-resource", "warning", "A pod asks for the same devices in two ways."),
    # Policies
    LintRule("DRA060", "invalid-policy", "error", "A GpuPolicy that nodes refuse."),
)
RULES: Final = MappingProxyType({rule.id: rule for rule in _ALL})
