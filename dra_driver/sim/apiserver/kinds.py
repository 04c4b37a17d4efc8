"""Every kind that the embedded API server serves, with names, subresources, rules and columns.

In-process users refer to kinds by these constants (`PODS`, `RESOURCE_CLAIMS`, ...). Names, short names and scopes are
those of Kubernetes 1.36's discovery documents; generation, unconditional updates and create-on-update follow its
registry strategies.
"""

from dra_driver.sim.apiserver.kind import Printer, ResourceKind, WriteRules
from dra_driver.sim.apiserver.printers import (
    BINDINGS_PRINTER,
    BUDGETS_PRINTER,
    CLAIMS_PRINTER,
    CONFIG_MAPS_PRINTER,
    DAEMON_SETS_PRINTER,
    DEPLOYMENTS_PRINTER,
    EVENTS_PRINTER,
    GPU_NODES_PRINTER,
    GPU_POLICIES_PRINTER,
    JOBS_PRINTER,
    LEASES_PRINTER,
    NAME_AND_AGE,
    NAMESPACES_PRINTER,
    NODES_PRINTER,
    PODS_PRINTER,
    POLICIES_PRINTER,
    POLICY_BINDINGS_PRINTER,
    REPLICA_SETS_PRINTER,
    SECRETS_PRINTER,
    SERVICES_PRINTER,
    SLICES_PRINTER,
)
from dra_driver.sim.apiserver.rules.claims import CLAIM_RULES, CLASS_RULES, TEMPLATE_RULES
from dra_driver.sim.apiserver.rules.core import (
    EVENT_RULES,
    GPU_NODE_RULES,
    NAMESPACE_RULES,
    POLICY_OBJECT_RULES,
    SECRET_RULES,
    SERVICE_RULES,
)
from dra_driver.sim.apiserver.rules.pods import POD_RULES
from dra_driver.sim.apiserver.rules.slices import SLICE_RULES
from dra_driver.sim.apiserver.rules.workloads import (
    BUDGET_RULES,
    DAEMON_SET_RULES,
    DEPLOYMENT_RULES,
    JOB_RULES,
    REPLICA_SET_RULES,
)
from dra_driver.sim.apiserver.validation import dns_1035_label, dns_label, dns_subdomain, path_segment

NAMESPACES = ResourceKind(
    group="",
    version="v1",
    kind="Namespace",
    plural="namespaces",
    short_names=("ns",),
    namespaced=False,
    subresources=("status", "finalize"),
    name_rule=dns_label,
    selectable=("status.phase",),
    printer=NAMESPACES_PRINTER,
    rules=NAMESPACE_RULES,
)
NODES = ResourceKind(
    group="",
    version="v1",
    kind="Node",
    plural="nodes",
    short_names=("no",),
    namespaced=False,
    subresources=("status",),
    name_rule=dns_subdomain,
    keeps_status_on_create=True,
    selectable=("spec.unschedulable",),
    printer=NODES_PRINTER,
)
PODS = ResourceKind(
    group="",
    version="v1",
    kind="Pod",
    plural="pods",
    short_names=("po",),
    categories=("all",),
    subresources=("status", "log", "proxy", "binding", "eviction"),
    name_rule=dns_subdomain,
    generation=True,
    selectable=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.nominatedNodeName",
    ),
    printer=PODS_PRINTER,
    returns_deleted=True,
    rules=POD_RULES,
)
EVENTS = ResourceKind(
    group="",
    version="v1",
    kind="Event",
    plural="events",
    short_names=("ev",),
    name_rule=dns_subdomain,
    create_on_update=True,
    served_also_as=(("events.k8s.io", "v1"),),
    selectable=(
        "involvedObject.kind",
        "involvedObject.namespace",
        "involvedObject.name",
        "involvedObject.uid",
        "involvedObject.apiVersion",
        "involvedObject.resourceVersion",
        "involvedObject.fieldPath",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    printer=EVENTS_PRINTER,
    rules=EVENT_RULES,
)
SERVICE_ACCOUNTS = ResourceKind(
    group="",
    version="v1",
    kind="ServiceAccount",
    plural="serviceaccounts",
    short_names=("sa",),
    name_rule=dns_subdomain,
    printer=NAME_AND_AGE,
    returns_deleted=True,
)
SECRETS = ResourceKind(
    group="",
    version="v1",
    kind="Secret",
    plural="secrets",
    name_rule=dns_subdomain,
    selectable=("type",),
    printer=SECRETS_PRINTER,
    rules=SECRET_RULES,
)
CONFIG_MAPS = ResourceKind(
    group="",
    version="v1",
    kind="ConfigMap",
    plural="configmaps",
    short_names=("cm",),
    name_rule=dns_subdomain,
    printer=CONFIG_MAPS_PRINTER,
)
SERVICES = ResourceKind(
    group="",
    version="v1",
    kind="Service",
    plural="services",
    short_names=("svc",),
    categories=("all",),
    subresources=("status",),
    name_rule=dns_1035_label,
    create_on_update=True,
    selectable=("spec.clusterIP", "spec.type"),
    printer=SERVICES_PRINTER,
    returns_deleted=True,
    rules=SERVICE_RULES,
)
DEPLOYMENTS = ResourceKind(
    group="apps",
    version="v1",
    kind="Deployment",
    plural="deployments",
    short_names=("deploy",),
    categories=("all",),
    subresources=("status", "scale"),
    name_rule=dns_subdomain,
    generation=True,
    printer=DEPLOYMENTS_PRINTER,
    rules=DEPLOYMENT_RULES,
)
REPLICA_SETS = ResourceKind(
    group="apps",
    version="v1",
    kind="ReplicaSet",
    plural="replicasets",
    short_names=("rs",),
    categories=("all",),
    subresources=("status", "scale"),
    name_rule=dns_subdomain,
    generation=True,
    selectable=("status.replicas",),
    printer=REPLICA_SETS_PRINTER,
    rules=REPLICA_SET_RULES,
)
DAEMON_SETS = ResourceKind(
    group="apps",
    version="v1",
    kind="DaemonSet",
    plural="daemonsets",
    short_names=("ds",),
    categories=("all",),
    subresources=("status",),
    name_rule=dns_subdomain,
    generation=True,
    printer=DAEMON_SETS_PRINTER,
    rules=DAEMON_SET_RULES,
)
JOBS = ResourceKind(
    group="batch",
    version="v1",
    kind="Job",
    plural="jobs",
    categories=("all",),
    subresources=("status",),
    name_rule=dns_subdomain,
    generation=True,
    selectable=("status.successful",),
    default_propagation="Orphan",
    printer=JOBS_PRINTER,
    rules=JOB_RULES,
)
RESOURCE_SLICES = ResourceKind(
    group="resource.k8s.io",
    version="v1",
    kind="ResourceSlice",
    plural="resourceslices",
    namespaced=False,
    name_rule=dns_subdomain,
    generation=True,
    selectable=("spec.nodeName", "spec.driver"),
    printer=SLICES_PRINTER,
    returns_deleted=True,
    rules=SLICE_RULES,
)
RESOURCE_CLAIMS = ResourceKind(
    group="resource.k8s.io",
    version="v1",
    kind="ResourceClaim",
    plural="resourceclaims",
    subresources=("status",),
    name_rule=dns_subdomain,
    printer=CLAIMS_PRINTER,
    returns_deleted=True,
    rules=CLAIM_RULES,
)
RESOURCE_CLAIM_TEMPLATES = ResourceKind(
    group="resource.k8s.io",
    version="v1",
    kind="ResourceClaimTemplate",
    plural="resourceclaimtemplates",
    name_rule=dns_subdomain,
    printer=NAME_AND_AGE,
    returns_deleted=True,
    rules=TEMPLATE_RULES,
)
DEVICE_CLASSES = ResourceKind(
    group="resource.k8s.io",
    version="v1",
    kind="DeviceClass",
    plural="deviceclasses",
    namespaced=False,
    name_rule=dns_subdomain,
    generation=True,
    printer=NAME_AND_AGE,
    returns_deleted=True,
    rules=CLASS_RULES,
)
LEASES = ResourceKind(
    group="coordination.k8s.io",
    version="v1",
    kind="Lease",
    plural="leases",
    name_rule=dns_subdomain,
    needs_resource_version=True,
    create_on_update=True,
    printer=LEASES_PRINTER,
)
POD_DISRUPTION_BUDGETS = ResourceKind(
    group="policy",
    version="v1",
    kind="PodDisruptionBudget",
    plural="poddisruptionbudgets",
    short_names=("pdb",),
    subresources=("status",),
    name_rule=dns_subdomain,
    generation=True,
    printer=BUDGETS_PRINTER,
    rules=BUDGET_RULES,
)


def _rbac(kind: str, plural: str, *, namespaced: bool, printer: Printer | None = None) -> ResourceKind:
    return ResourceKind(
        group="rbac.authorization.k8s.io",
        version="v1",
        kind=kind,
        plural=plural,
        namespaced=namespaced,
        name_rule=path_segment,
        create_on_update=True,
        printer=printer,
    )


ROLES = _rbac("Role", "roles", namespaced=True)
ROLE_BINDINGS = _rbac("RoleBinding", "rolebindings", namespaced=True, printer=BINDINGS_PRINTER)
CLUSTER_ROLES = _rbac("ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDINGS = _rbac("ClusterRoleBinding", "clusterrolebindings", namespaced=False, printer=BINDINGS_PRINTER)


def _admission(kind: str, plural: str, printer: Printer, *, subresources: tuple[str, ...] = ()) -> ResourceKind:
    return ResourceKind(
        group="admissionregistration.k8s.io",
        version="v1",
        kind=kind,
        plural=plural,
        namespaced=False,
        subresources=subresources,
        name_rule=dns_subdomain,
        generation=True,
        needs_resource_version=True,
        printer=printer,
    )


VALIDATING_ADMISSION_POLICIES = _admission(
    "ValidatingAdmissionPolicy", "validatingadmissionpolicies", POLICIES_PRINTER, subresources=("status",)
)
VALIDATING_ADMISSION_POLICY_BINDINGS = _admission(
    "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", POLICY_BINDINGS_PRINTER
)
CUSTOM_RESOURCE_DEFINITIONS = ResourceKind(
    group="apiextensions.k8s.io",
    version="v1",
    kind="CustomResourceDefinition",
    plural="customresourcedefinitions",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    namespaced=False,
    subresources=("status",),
    name_rule=dns_subdomain,
    generation=True,
    needs_resource_version=True,
)


def _own(kind: str, plural: str, short: str, printer: Printer, rules: WriteRules) -> ResourceKind:
    """A kind of this project, which a CustomResourceDefinition describes in a real cluster."""
    return ResourceKind(
        group="gpu.dra-driver.io",
        version="v1alpha1",
        kind=kind,
        plural=plural,
        short_names=(short,),
        namespaced=False,
        subresources=("status",),
        name_rule=dns_subdomain,
        generation=True,
        needs_resource_version=True,
        printer=printer,
        rules=rules,
    )


GPU_POLICIES = _own("GpuPolicy", "gpupolicies", "gpupol", GPU_POLICIES_PRINTER, POLICY_OBJECT_RULES)
GPU_NODES = _own("GpuNode", "gpunodes", "gpuno", GPU_NODES_PRINTER, GPU_NODE_RULES)

ALL_KINDS: tuple[ResourceKind, ...] = (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    JOBS,
    LEASES,
    POD_DISRUPTION_BUDGETS,
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    ROLE_BINDINGS,
    ROLES,
    VALIDATING_ADMISSION_POLICIES,
    VALIDATING_ADMISSION_POLICY_BINDINGS,
    CUSTOM_RESOURCE_DEFINITIONS,
    DEVICE_CLASSES,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_SLICES,
    GPU_NODES,
    GPU_POLICIES,
)
