"""Every kind that the embedded API server serves, as constants (`PODS`, `RESOURCE_CLAIMS`, ...). Names and scopes match
the discovery documents of Kubernetes 1.36; generation, unconditional updates and create-on-update follow its
registry strategies."""

from functools import partial

from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.rules import core, workloads
from dra_driver.sim.apiserver.rules.dra import CLAIM_RULES, CLASS_RULES, TEMPLATE_RULES
from dra_driver.sim.apiserver.rules.slices import SLICE_RULES
from dra_driver.sim.apiserver.validation import dns_1035_label, dns_label, path_segment

_apps = partial(ResourceKind, group="apps", categories=("all",), generation=True)
_dra = partial(ResourceKind, group="resource.k8s.io", returns_deleted=True)
_rbac = partial(ResourceKind, group="rbac.authorization.k8s.io", name_rule=path_segment, create_on_update=True)
_admission = partial(
    ResourceKind, group="admissionregistration.k8s.io", namespaced=False, generation=True, needs_resource_version=True
)
# Kinds of this project, which CustomResourceDefinitions describe in a real cluster.
_own = partial(
    ResourceKind,
    group="gpu.dra-driver.io",
    version="v1alpha1",
    namespaced=False,
    subresources=("status",),
    generation=True,
    needs_resource_version=True,
)

NAMESPACES = ResourceKind(
    kind="Namespace",
    short_names=("ns",),
    namespaced=False,
    subresources=("status", "finalize"),
    name_rule=dns_label,
    selectable=("status.phase",),
    rules=core.NAMESPACE_RULES,
)
NODES = ResourceKind(
    kind="Node",
    short_names=("no",),
    namespaced=False,
    subresources=("status",),
    keeps_status_on_create=True,
    selectable=("spec.unschedulable",),
)
_POD_SPEC = ("nodeName", "restartPolicy", "schedulerName", "serviceAccountName", "hostNetwork")
PODS = ResourceKind(
    kind="Pod",
    short_names=("po",),
    categories=("all",),
    subresources=("status", "log", "proxy", "binding", "eviction"),
    generation=True,
    selectable=(
        *(f"spec.{field}" for field in _POD_SPEC),
        *("status.phase", "status.podIP", "status.nominatedNodeName"),
    ),
    returns_deleted=True,
    rules=workloads.POD_RULES,
)
_INVOLVED = ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath")
EVENTS = ResourceKind(
    kind="Event",
    short_names=("ev",),
    create_on_update=True,
    selectable=(
        *(f"involvedObject.{field}" for field in _INVOLVED),
        *("reason", "reportingComponent", "source", "type"),
    ),
    rules=core.EVENT_RULES,
)
SERVICE_ACCOUNTS = ResourceKind(kind="ServiceAccount", short_names=("sa",), returns_deleted=True)
SECRETS = ResourceKind(kind="Secret", selectable=("type",), rules=core.SECRET_RULES)
CONFIG_MAPS = ResourceKind(kind="ConfigMap", short_names=("cm",))
SERVICES = ResourceKind(
    kind="Service",
    short_names=("svc",),
    categories=("all",),
    subresources=("status",),
    name_rule=dns_1035_label,
    create_on_update=True,
    selectable=("spec.clusterIP", "spec.type"),
    returns_deleted=True,
    rules=core.SERVICE_RULES,
)
DEPLOYMENTS = _apps(
    kind="Deployment", short_names=("deploy",), subresources=("status", "scale"), rules=workloads.DEPLOYMENT_RULES
)
REPLICA_SETS = _apps(
    kind="ReplicaSet",
    short_names=("rs",),
    subresources=("status", "scale"),
    selectable=("status.replicas",),
    rules=workloads.REPLICA_SET_RULES,
)
DAEMON_SETS = _apps(kind="DaemonSet", short_names=("ds",), subresources=("status",), rules=workloads.DAEMON_SET_RULES)
JOBS = ResourceKind(
    group="batch",
    kind="Job",
    categories=("all",),
    subresources=("status",),
    generation=True,
    selectable=("status.successful",),
    default_propagation="Orphan",
    rules=workloads.JOB_RULES,
)
RESOURCE_SLICES = _dra(
    kind="ResourceSlice",
    namespaced=False,
    generation=True,
    selectable=("spec.nodeName", "spec.driver"),
    rules=SLICE_RULES,
)
RESOURCE_CLAIMS = _dra(kind="ResourceClaim", subresources=("status",), rules=CLAIM_RULES)
RESOURCE_CLAIM_TEMPLATES = _dra(kind="ResourceClaimTemplate", rules=TEMPLATE_RULES)
DEVICE_CLASSES = _dra(kind="DeviceClass", namespaced=False, generation=True, rules=CLASS_RULES)
LEASES = ResourceKind(group="coordination.k8s.io", kind="Lease", needs_resource_version=True, create_on_update=True)
POD_DISRUPTION_BUDGETS = ResourceKind(
    group="policy",
    kind="PodDisruptionBudget",
    short_names=("pdb",),
    subresources=("status",),
    generation=True,
    rules=workloads.BUDGET_RULES,
)
ROLES = _rbac(kind="Role")
ROLE_BINDINGS = _rbac(kind="RoleBinding")
CLUSTER_ROLES = _rbac(kind="ClusterRole", namespaced=False)
CLUSTER_ROLE_BINDINGS = _rbac(kind="ClusterRoleBinding", namespaced=False)
VALIDATING_ADMISSION_POLICIES = _admission(kind="ValidatingAdmissionPolicy", subresources=("status",))
VALIDATING_ADMISSION_POLICY_BINDINGS = _admission(kind="ValidatingAdmissionPolicyBinding")
CUSTOM_RESOURCE_DEFINITIONS = ResourceKind(
    group="apiextensions.k8s.io",
    kind="CustomResourceDefinition",
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    namespaced=False,
    subresources=("status",),
    generation=True,
    needs_resource_version=True,
)
GPU_POLICIES = _own(kind="GpuPolicy", short_names=("gpupol",), rules=core.POLICY_OBJECT_RULES)
GPU_NODES = _own(kind="GpuNode", short_names=("gpuno",), rules=core.GPU_NODE_RULES)

ALL_KINDS: tuple[ResourceKind, ...] = tuple(
    sorted(
        (each for each in globals().values() if isinstance(each, ResourceKind)),
        key=lambda kind: (kind.group, kind.plural),
    )
)
