"""Broken set-ups of the API server, the installation and its rights."""

from dra_driver.core.errors import ApiUnreachableError, ServerBusyError, UnauthorizedError
from dra_driver.core.finding import Layer
from dra_driver.diagnose.doctor.cluster import DoctorScope
from dra_driver.kube.status import error_from_response
from tests.doctor_faults.cluster import Cluster, daemonset, driver_pod, event, told, unready
from tests.doctor_faults.row import UNKNOWN, WARN, broken


@broken("API server down", Layer.API_SERVER, "no answer", "10.0.0.1")
def api_server_down(cluster: Cluster) -> None:
    cluster.version = ApiUnreachableError("GET /version: no answer from the API server https://10.0.0.1:6443: refused")


@broken("token expired", Layer.API_SERVER, "401", "credentials")
def token_expired(cluster: Cluster) -> None:
    error = error_from_response("GET /version", 401, b'{"kind":"Status","message":"Unauthorized"}', {})
    assert isinstance(error, UnauthorizedError)
    cluster.version = error


@broken("API server fails on some questions", Layer.KUBERNETES, "503", status=UNKNOWN)
def half_of_the_questions_fail(cluster: Cluster) -> None:
    for path in ("/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices", "/metrics"):
        cluster.failing[path] = ServerBusyError(f"GET {path} failed: 503: etcdserver: request timed out", status=503)


@broken("Kubernetes 1.33", Layer.KUBERNETES, "v1.33.4", "1.34 or newer")
def old_kubernetes(cluster: Cluster) -> None:
    cluster.version = {"gitVersion": "v1.33.4", "major": "1", "minor": "33"}
    cluster.resource_api, cluster.gates = ["v1beta2", "v1beta1"], {}


@broken("a kubelet of 1.33", Layer.KUBERNETES, "gpu-a", "v1.33.1")
def old_kubelet(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.1"


@broken("feature gate DynamicResourceAllocation off", Layer.KUBERNETES, "DynamicResourceAllocation", "off")
def allocation_gate_off(cluster: Cluster) -> None:
    cluster.gates["DynamicResourceAllocation"] = False
    cluster.resource_api = []


@broken("resource.k8s.io/v1 switched off", Layer.API, "v1beta1 alone", "--runtime-config")
def runtime_config_off(cluster: Cluster) -> None:
    cluster.resource_api = ["v1beta1"]


@broken(
    "feature gate DRAPartitionableDevices off",
    Layer.KUBERNETES,
    "DRAPartitionableDevices",
    "MIG partitions",
    status=WARN,
)
def partition_gate_off(cluster: Cluster) -> None:
    cluster.gates["DRAPartitionableDevices"] = False
    for item in cluster.slices:
        item["spec"]["devices"] = [each for each in item["spec"]["devices"] if "mig" not in each["name"]]


@broken("CustomResourceDefinitions missing", Layer.CRDS, "gpupolicies, gpunodes", "crds.yaml")
def definitions_missing(cluster: Cluster) -> None:
    cluster.gpu_api, cluster.gpu_nodes = [], []


@broken("one CustomResourceDefinition missing", Layer.CRDS, "does not serve gpupolicies")
def definition_of_policies_missing(cluster: Cluster) -> None:
    cluster.gpu_api = ["gpunodes"]


@broken(
    "ClusterRoleBinding of the driver removed",
    Layer.RIGHTS,
    "dra-driver/dra-driver-node",
    "create resourceslices.resource.k8s.io",
)
def binding_removed(cluster: Cluster) -> None:
    cluster.denied_to_driver = {"create resourceslices", "list resourceslices", "update resourceslices"}
    cluster.slices = []


@broken("user with a token of one namespace", Layer.KUBERNETES, "list", "403", "kubectl auth can-i", status=UNKNOWN)
def user_without_rights(cluster: Cluster) -> None:
    """A token of a namespace: pods and claims there, and nothing of the cluster."""
    local = ("pods", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "events")
    cluster.refuses_all_but = {f"list {what} in namespace team-a" for what in local}


@broken("user may not review rights", Layer.RIGHTS, "subjectaccessreviews", status=UNKNOWN)
def cannot_review_rights(cluster: Cluster) -> None:
    cluster.refused = {"create subjectaccessreviews.authorization.k8s.io"}


@broken("driver not installed", Layer.DAEMONSET, "not installed", "helm")
def not_installed(cluster: Cluster) -> None:
    cluster.daemonsets, cluster.pods, cluster.slices, cluster.gpu_nodes = [], [], [], []
    cluster.classes = []


@broken("node processes without a DaemonSet", Layer.DAEMONSET, "no namespace has a DaemonSet", "sim up", status=WARN)
def processes_without_daemonset(cluster: Cluster) -> None:
    cluster.daemonsets, cluster.pods = [], []


@broken("image cannot be pulled", Layer.DAEMONSET, "ImagePullBackOff", "node/gpu-a", "imagePullSecrets")
def image_missing(cluster: Cluster) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/dra-driver:0.1.0"'}
    unready(cluster.pods[0], state={"waiting": waiting})


@broken("image not imported on a node", Layer.DAEMONSET, "ErrImageNeverPull")
def image_never_pulled(cluster: Cluster) -> None:
    waiting = {"reason": "ErrImageNeverPull", "message": "Container image is not present with pull policy of Never"}
    unready(cluster.pods[1], state={"waiting": waiting})


@broken("wrong setting, crash loop", Layer.DAEMONSET, "7 times", "exit status 2", "CDI_DIR")
def crash_loop(cluster: Cluster) -> None:
    last = {"exitCode": 2, "reason": "Error", "message": "dra-driver: CDI_DIR: /nowhere is not a directory"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    unready(cluster.pods[0], restartCount=7, state={"waiting": waiting}, lastState={"terminated": last})


@broken("wrong setting, told by the log alone", Layer.DAEMONSET, "7 times", "HTTP_ADDR", "--previous")
def crash_loop_without_message(cluster: Cluster) -> None:
    """The kubelet has no message of the container; the log of the run before has."""
    crash_loop(cluster)
    cluster.pods[0]["status"]["containerStatuses"][0]["lastState"]["terminated"].pop("message")
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = "dra-driver: HTTP_ADDR: expected HOST:PORT, got 'nonsense'\n"


@broken(
    "controller crashes",
    Layer.DAEMONSET,
    "dra-driver-controller-7d4f",
    "4 restarts",
    "libpython3.11.so.1.0",
    "no status",
    status=WARN,
)
def controller_crashes(cluster: Cluster) -> None:
    pod = unready(driver_pod("cpu-a"), restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}})
    pod["metadata"]["name"] = "dra-driver-controller-7d4f"
    pod["metadata"]["labels"]["app.kubernetes.io/component"] = "controller"
    cluster.pods.append(pod)
    cluster.logs["dra-driver-controller-7d4f"] = (
        "/opt/python: error while loading shared libraries: libpython3.11.so.1.0\n"
    )


@broken("node process out of memory", Layer.DAEMONSET, "OOMKilled", "137")
def out_of_memory(cluster: Cluster) -> None:
    last = {"exitCode": 137, "reason": "OOMKilled"}
    unready(cluster.pods[0], restartCount=3, state={"running": {}}, lastState={"terminated": last})


@broken("host folder cannot be mounted", Layer.DAEMONSET, "CreateContainerError", "read-only file system")
def folder_missing(cluster: Cluster) -> None:
    waiting = {"reason": "CreateContainerError", "message": "failed to mkdir /var/lib/kubelet: read-only file system"}
    unready(cluster.pods[0], state={"waiting": waiting})


@broken("quota of the namespace", Layer.DAEMONSET, "exceeded quota")
def quota_exceeded(cluster: Cluster) -> None:
    cluster.daemonsets = [daemonset()]
    cluster.daemonsets[0]["status"].update(currentNumberScheduled=0, numberReady=0)
    cluster.pods = []
    message = 'Error creating: pods "dra-driver-node-" is forbidden: exceeded quota: gke-resource-quotas'
    cluster.events = [event("FailedCreate", cluster.daemonsets[0], message, kind="DaemonSet", component="daemonset")]


@broken("namespace forbids privileged pods", Layer.DAEMONSET, "PodSecurity", "enforce=privileged")
def namespace_is_restricted(cluster: Cluster) -> None:
    quota_exceeded(cluster)
    cluster.events[0]["message"] = 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest"'


@broken("no room for the node process", Layer.DAEMONSET, "not scheduled", "Insufficient memory")
def no_room_on_the_node(cluster: Cluster) -> None:
    pod = unready(cluster.pods[0])
    pod["spec"].pop("nodeName")
    pod["status"].update(phase="Pending", containerStatuses=[])
    said = "0/3 nodes are available: 1 Insufficient memory."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]


@broken("two images on the nodes", Layer.DAEMONSET, "0.0.9 on gpu-b", status=WARN)
def two_images(cluster: Cluster) -> None:
    cluster.pods[1]["spec"]["containers"][0]["image"] = "localhost/dra-driver:0.0.9"


@broken("no node has a GPU label", Layer.NODE, "selects none of 3 nodes", "kubectl label node")
def labels_do_not_match(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node["metadata"]["labels"].pop("nvidia.com/gpu.present", None)
    cluster.daemonsets[0]["status"] = {"desiredNumberScheduled": 0, "currentNumberScheduled": 0}
    cluster.pods, cluster.slices, cluster.gpu_nodes = [], [], []


@broken("a GPU node outside the node affinity", Layer.NODE, "node/gpu-b", "pool=gpu")
def one_node_left_out(cluster: Cluster) -> None:
    """The affinity of the chart has another label than this node."""
    terms = cluster.daemonsets[0]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    expressions = [{"key": "pool", "operator": "In", "values": ["gpu"]}]
    terms["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    cluster.nodes[0]["metadata"]["labels"]["pool"] = "gpu"
    cluster.pods, cluster.slices = cluster.pods[:1], cluster.slices[:1]
    cluster.gpu_nodes = cluster.gpu_nodes[:1]


@broken("a taint that is not tolerated", Layer.NODE, "node/gpu-b", "taint team (NoExecute)")
def taint_not_tolerated(cluster: Cluster) -> None:
    cluster.daemonsets[0]["spec"]["template"]["spec"]["tolerations"] = []
    one_node = cluster.nodes[1]
    cluster.nodes[0]["spec"]["taints"] = []
    cluster.pods, cluster.slices, cluster.gpu_nodes = cluster.pods[:1], cluster.slices[:1], cluster.gpu_nodes[:1]
    one_node["spec"]["taints"] = [{"key": "team", "value": "research", "effect": "NoExecute"}]


@broken("node not ready", Layer.NODE, "node/gpu-a", "stopped posting")
def node_not_ready(cluster: Cluster) -> None:
    said = "Kubelet stopped posting node status."
    cluster.nodes[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": said}]


@broken("node cordoned", Layer.NODE, "cordoned", "kubectl uncordon gpu-a", status=WARN)
def node_cordoned(cluster: Cluster) -> None:
    cluster.nodes[0]["spec"]["unschedulable"] = True


@broken(
    "node process that tells nothing",
    Layer.GPUS,
    "node/gpu-b",
    "no GpuNode",
    status=WARN,
    scope=DoctorScope(kind="node", name="gpu-b"),
)
def silent_node(cluster: Cluster) -> None:
    cluster.gpu_nodes = [told("gpu-a")]
