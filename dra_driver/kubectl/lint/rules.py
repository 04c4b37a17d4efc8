"""The rules of lint: identifier, name, severity and summary.

Identifiers never change their meaning, because comments and pipelines refer to them. ``docs/lint.md`` explains each
rule with an example and a fix.
"""

from types import MappingProxyType
from typing import Final, Literal

from msgspec import Struct

Severity = Literal["error", "warning", "info"]
RANK: Final = MappingProxyType({"error": 0, "warning": 1, "info": 2})


class LintRule(Struct, frozen=True):
    """One rule. ``severity`` is the default; a check may choose another when it has more information."""

    id: str
    name: str
    severity: Severity
    summary: str


_ALL: Final = (
    # Files and objects
    LintRule("DRA001", "unreadable", "error", "The file is not readable YAML or JSON."),
    LintRule("DRA002", "duplicate-key", "error", "A key occurs twice in one mapping; one of the values is lost."),
    LintRule("DRA003", "unknown-field", "error", "A field that the API does not have."),
    LintRule("DRA004", "invalid-value", "error", "A value that the API server refuses."),
    LintRule("DRA005", "deprecated-api", "warning", "An API version that newer clusters do not serve."),
    LintRule("DRA006", "duplicate-name", "error", "Two objects, requests or claims have the same name."),
    LintRule("DRA007", "too-many", "error", "More entries than the API allows."),
    # Expressions
    LintRule("DRA010", "cel-error", "error", "The expression does not compile."),
    LintRule("DRA011", "cel-too-long", "error", "The expression is longer than the API allows."),
    LintRule("DRA012", "cel-cost", "error", "Evaluating the expression is costly or exceeds the limit."),
    LintRule("DRA013", "missing-driver-guard", "error", "The expression fails on devices of other drivers."),
    LintRule("DRA014", "guard-not-first", "info", "The driver check is not the first condition."),
    LintRule("DRA015", "may-fail-at-run-time", "warning", "The expression fails on devices that lack an attribute."),
    LintRule("DRA016", "unknown-attribute", "error", "The driver publishes no such attribute or capacity."),
    LintRule("DRA017", "wrong-type", "error", "A comparison of values of different types is never true."),
    LintRule("DRA018", "no-device-matches", "warning", "No known device matches."),
    LintRule("DRA019", "label-gigabytes", "warning", "The gigabytes in a product name are not its memory."),
    LintRule("DRA020", "unknown-driver", "warning", "No driver with that name is known."),
    LintRule("DRA021", "invalid-constant", "error", "The constant is not a valid quantity or version."),
    LintRule("DRA022", "younger-function", "warning", "Not every supported version of Kubernetes has the function."),
    # Classes, claims and templates
    LintRule("DRA030", "unknown-class", "info", "The DeviceClass is not defined in the input."),
    LintRule("DRA031", "all-over-32", "warning", "More devices match allocationMode All than a claim can have."),
    LintRule("DRA032", "too-many-devices", "error", "The claim requests more than 32 devices."),
    LintRule(
        "DRA033", "unknown-request", "error", "A constraint or configuration names a request that does not exist."
    ),
    LintRule("DRA034", "attribute-without-domain", "error", "A constraint's attribute needs a domain."),
    LintRule("DRA035", "invalid-parameters", "error", "The driver refuses the opaque parameters."),
    LintRule(
        "DRA036", "parameters-unused", "warning", "The parameters are for a driver whose devices are not requested."
    ),
    LintRule("DRA037", "parameters-of-wrong-kind", "error", "The parameters are for another type of device."),
    LintRule("DRA038", "admin-access", "warning", "Admin access needs a label on the namespace."),
    # DRA039 reported that an early version of the driver did not apply sharing; the identifier is not reused.
    LintRule("DRA040", "sharing-with-admin-access", "warning", "Sharing parameters have no effect on admin access."),
    LintRule("DRA041", "capacity-not-given", "warning", "No known device provides the requested capacity."),
    LintRule(
        "DRA042", "share-takes-all-compute", "info", "A share that requests only memory takes all of the compute."
    ),
    LintRule("DRA043", "several-mps-shares", "error", "The driver refuses several shares in a claim under MPS."),
    LintRule("DRA044", "sharing-of-a-share", "error", "The sharing section of a share contradicts its policy."),
    # Pods
    LintRule(
        "DRA050", "missing-claim", "warning", "The claim or template that a pod names is not defined in the input."
    ),
    LintRule("DRA051", "unknown-pod-claim", "error", "A container uses a claim that its pod does not declare."),
    LintRule(
        "DRA052", "unknown-container-request", "error", "A container uses a request that the claim does not have."
    ),
    LintRule("DRA053", "unused-pod-claim", "warning", "No container uses a claim of the pod."),
    LintRule(
        "DRA054", "claim-and-extended-resource", "warning", "A pod requests devices by claim and by extended resource."
    ),
    # Policies
    LintRule("DRA060", "invalid-policy", "error", "Nodes refuse the GpuPolicy."),
)
RULES: Final = MappingProxyType({rule.id: rule for rule in _ALL})
