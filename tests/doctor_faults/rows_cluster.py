"""Broken set-ups of the API server, the installation and its rights."""

from dra_driver.core.errors import ApiUnreachableError, ServerBusyError, UnauthorizedError
from dra_driver.core.finding import Layer, Status
from dra_driver.diagnose.doctor.cluster import DoctorScope
from dra_driver.kube.status import error_from_response
from tests.doctor_faults.cluster import Cluster, daemonset, driver_pod, event, told, unready
from tests.doctor_faults.row import BrokenSetup


def api_server_down(cluster: Cluster) -> None:
    cluster.version = ApiUnreachableError("GET /version: no answer from the API server https://10.0.0.1:6443: refused")


def token_expired(cluster: Cluster) -> None:
    error = error_from_response("GET /version", 401, b'{"kind":"Status","message":"Unauthorized"}', {})
    assert isinstance(error, UnauthorizedError)
    cluster.version = error


def half_of_the_questions_fail(cluster: Cluster) -> None:
    for path in ("/api/v1/nodes", "/apis/resource.k8s.io/v1/resourceslices", "/metrics"):
        cluster.failing[path] = ServerBusyError(f"GET {path} failed: 503: etcdserver: request timed out", status=503)


def old_kubernetes(cluster: Cluster) -> None:
    cluster.version = {"gitVersion": "v1.33.4", "major": "1", "minor": "33"}
    cluster.resource_api, cluster.gates = ["v1beta2", "v1beta1"], {}


def old_kubelet(cluster: Cluster) -> None:
    cluster.nodes[0]["status"]["nodeInfo"]["kubeletVersion"] = "v1.33.1"


def allocation_gate_off(cluster: Cluster) -> None:
    cluster.gates["DynamicResourceAllocation"] = False
    cluster.resource_api = []


def runtime_config_off(cluster: Cluster) -> None:
    cluster.resource_api = ["v1beta1"]


def partition_gate_off(cluster: Cluster) -> None:
    cluster.gates["DRAPartitionableDevices"] = False
    for item in cluster.slices:
        item["spec"]["devices"] = [each for each in item["spec"]["devices"] if "mig" not in each["name"]]


def definitions_missing(cluster: Cluster) -> None:
    cluster.gpu_api, cluster.gpu_nodes = [], []


def definition_of_policies_missing(cluster: Cluster) -> None:
    cluster.gpu_api = ["gpunodes"]


def binding_removed(cluster: Cluster) -> None:
    cluster.denied_to_driver = {"create resourceslices", "list resourceslices", "update resourceslices"}
    cluster.slices = []


def not_installed(cluster: Cluster) -> None:
    cluster.daemonsets, cluster.pods, cluster.slices, cluster.gpu_nodes = [], [], [], []
    cluster.classes = []


def processes_without_daemonset(cluster: Cluster) -> None:
    cluster.daemonsets, cluster.pods = [], []


def image_missing(cluster: Cluster) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "registry.example/dra-driver:0.1.0"'}
    unready(cluster.pods[0], state={"waiting": waiting})


def image_never_pulled(cluster: Cluster) -> None:
    waiting = {"reason": "ErrImageNeverPull", "message": "Container image is not present with pull policy of Never"}
    unready(cluster.pods[1], state={"waiting": waiting})


def crash_loop(cluster: Cluster) -> None:
    last = {"exitCode": 2, "reason": "Error", "message": "dra-driver: CDI_DIR: /nowhere is not a directory"}
    waiting = {"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container"}
    unready(cluster.pods[0], restartCount=7, state={"waiting": waiting}, lastState={"terminated": last})


def crash_loop_without_message(cluster: Cluster) -> None:
    """The kubelet has no message of the container; the log of the run before has."""
    crash_loop(cluster)
    cluster.pods[0]["status"]["containerStatuses"][0]["lastState"]["terminated"].pop("message")
    cluster.logs[cluster.pods[0]["metadata"]["name"]] = "dra-driver: HTTP_ADDR: expected HOST:PORT, got 'nonsense'\n"


def controller_crashes(cluster: Cluster) -> None:
    pod = unready(driver_pod("cpu-a"), restartCount=4, state={"waiting": {"reason": "CrashLoopBackOff"}})
    pod["metadata"]["name"] = "dra-driver-controller-7d4f"
    pod["metadata"]["labels"]["app.kubernetes.io/component"] = "controller"
    cluster.pods.append(pod)
    cluster.logs["dra-driver-controller-7d4f"] = (
        "/opt/python: error while loading shared libraries: libpython3.11.so.1.0\n"
    )


def out_of_memory(cluster: Cluster) -> None:
    last = {"exitCode": 137, "reason": "OOMKilled"}
    unready(cluster.pods[0], restartCount=3, state={"running": {}}, lastState={"terminated": last})


def folder_missing(cluster: Cluster) -> None:
    waiting = {"reason": "CreateContainerError", "message": "failed to mkdir /var/lib/kubelet: read-only file system"}
    unready(cluster.pods[0], state={"waiting": waiting})


def quota_exceeded(cluster: Cluster) -> None:
    cluster.daemonsets = [daemonset()]
    cluster.daemonsets[0]["status"].update(currentNumberScheduled=0, numberReady=0)
    cluster.pods = []
    message = 'Error creating: pods "dra-driver-node-" is forbidden: exceeded quota: gke-resource-quotas'
    cluster.events = [event("FailedCreate", cluster.daemonsets[0], message, kind="DaemonSet", component="daemonset")]


def namespace_is_restricted(cluster: Cluster) -> None:
    quota_exceeded(cluster)
    cluster.events[0]["message"] = 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest"'


def no_room_on_the_node(cluster: Cluster) -> None:
    pod = unready(cluster.pods[0])
    pod["spec"].pop("nodeName")
    pod["status"].update(phase="Pending", containerStatuses=[])
    said = "0/3 nodes are available: 1 Insufficient memory."
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", "message": said}]


def labels_do_not_match(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node["metadata"]["labels"].pop("nvidia.com/gpu.present", None)
    cluster.daemonsets[0]["status"] = {"desiredNumberScheduled": 0, "currentNumberScheduled": 0}
    cluster.pods, cluster.slices, cluster.gpu_nodes = [], [], []


def one_node_left_out(cluster: Cluster) -> None:
    """The affinity of the chart has another label than this node."""
    terms = cluster.daemonsets[0]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    expressions = [{"key": "pool", "operator": "In", "values": ["gpu"]}]
    terms["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    cluster.nodes[0]["metadata"]["labels"]["pool"] = "gpu"
    cluster.pods, cluster.slices = cluster.pods[:1], cluster.slices[:1]
    cluster.gpu_nodes = cluster.gpu_nodes[:1]


def taint_not_tolerated(cluster: Cluster) -> None:
    cluster.daemonsets[0]["spec"]["template"]["spec"]["tolerations"] = []
    one_node = cluster.nodes[1]
    cluster.nodes[0]["spec"]["taints"] = []
    cluster.pods, cluster.slices, cluster.gpu_nodes = cluster.pods[:1], cluster.slices[:1], cluster.gpu_nodes[:1]
    one_node["spec"]["taints"] = [{"key": "team", "value": "research", "effect": "NoExecute"}]


def node_not_ready(cluster: Cluster) -> None:
    said = "Kubelet stopped posting node status."
    cluster.nodes[0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "message": said}]


def node_cordoned(cluster: Cluster) -> None:
    cluster.nodes[0]["spec"]["unschedulable"] = True


def user_without_rights(cluster: Cluster) -> None:
    """A token of a namespace: pods and claims there, and nothing of the cluster."""
    local = ("pods", "resourceclaims.resource.k8s.io", "resourceclaimtemplates.resource.k8s.io", "events")
    cluster.refuses_all_but = {f"list {what} in namespace team-a" for what in local}


def cannot_review_rights(cluster: Cluster) -> None:
    cluster.refused = {"create subjectaccessreviews.authorization.k8s.io"}


def two_images(cluster: Cluster) -> None:
    cluster.pods[1]["spec"]["containers"][0]["image"] = "localhost/dra-driver:0.0.9"


def silent_node(cluster: Cluster) -> None:
    cluster.gpu_nodes = [told("gpu-a")]


ROWS = (
    BrokenSetup(
        name="API server down",
        breaks=api_server_down,
        layer=Layer.API_SERVER,
        says=("no answer", "10.0.0.1"),
    ),
    BrokenSetup(name="token expired", breaks=token_expired, layer=Layer.API_SERVER, says=("401", "credentials")),
    BrokenSetup(
        name="API server fails on some questions",
        breaks=half_of_the_questions_fail,
        layer=Layer.KUBERNETES,
        status=Status.UNKNOWN,
        says=("503",),
    ),
    BrokenSetup(
        name="Kubernetes 1.33", breaks=old_kubernetes, layer=Layer.KUBERNETES, says=("v1.33.4", "1.34 or newer")
    ),
    BrokenSetup(name="a kubelet of 1.33", breaks=old_kubelet, layer=Layer.KUBERNETES, says=("gpu-a", "v1.33.1")),
    BrokenSetup(
        name="feature gate DynamicResourceAllocation off",
        breaks=allocation_gate_off,
        layer=Layer.KUBERNETES,
        says=("DynamicResourceAllocation", "off"),
    ),
    BrokenSetup(
        name="resource.k8s.io/v1 switched off",
        breaks=runtime_config_off,
        layer=Layer.API,
        says=("v1beta1 alone", "--runtime-config"),
    ),
    BrokenSetup(
        name="feature gate DRAPartitionableDevices off",
        breaks=partition_gate_off,
        layer=Layer.KUBERNETES,
        status=Status.WARN,
        says=("DRAPartitionableDevices", "MIG partitions"),
    ),
    BrokenSetup(
        name="CustomResourceDefinitions missing",
        breaks=definitions_missing,
        layer=Layer.CRDS,
        says=("gpupolicies, gpunodes", "crds.yaml"),
    ),
    BrokenSetup(
        name="one CustomResourceDefinition missing",
        breaks=definition_of_policies_missing,
        layer=Layer.CRDS,
        says=("does not serve gpupolicies",),
    ),
    BrokenSetup(
        name="ClusterRoleBinding of the driver removed",
        breaks=binding_removed,
        layer=Layer.RIGHTS,
        says=("dra-driver/dra-driver-node", "create resourceslices.resource.k8s.io"),
    ),
    BrokenSetup(
        name="user with a token of one namespace",
        breaks=user_without_rights,
        layer=Layer.KUBERNETES,
        status=Status.UNKNOWN,
        says=("list", "403", "kubectl auth can-i"),
    ),
    BrokenSetup(
        name="user may not review rights",
        breaks=cannot_review_rights,
        layer=Layer.RIGHTS,
        status=Status.UNKNOWN,
        says=("subjectaccessreviews",),
    ),
    BrokenSetup(
        name="driver not installed", breaks=not_installed, layer=Layer.DAEMONSET, says=("not installed", "helm")
    ),
    BrokenSetup(
        name="node processes without a DaemonSet",
        breaks=processes_without_daemonset,
        layer=Layer.DAEMONSET,
        status=Status.WARN,
        says=("no namespace has a DaemonSet", "sim up"),
    ),
    BrokenSetup(
        name="image cannot be pulled",
        breaks=image_missing,
        layer=Layer.DAEMONSET,
        says=("ImagePullBackOff", "node/gpu-a", "imagePullSecrets"),
    ),
    BrokenSetup(
        name="image not imported on a node",
        breaks=image_never_pulled,
        layer=Layer.DAEMONSET,
        says=("ErrImageNeverPull",),
    ),
    BrokenSetup(
        name="wrong setting, crash loop",
        breaks=crash_loop,
        layer=Layer.DAEMONSET,
        says=("7 times", "exit status 2", "CDI_DIR"),
    ),
    BrokenSetup(
        name="wrong setting, told by the log alone",
        breaks=crash_loop_without_message,
        layer=Layer.DAEMONSET,
        says=("7 times", "HTTP_ADDR", "--previous"),
    ),
    BrokenSetup(
        name="controller crashes",
        breaks=controller_crashes,
        layer=Layer.DAEMONSET,
        status=Status.WARN,
        says=("dra-driver-controller-7d4f", "4 restarts", "libpython3.11.so.1.0", "no status"),
    ),
    BrokenSetup(
        name="node process out of memory", breaks=out_of_memory, layer=Layer.DAEMONSET, says=("OOMKilled", "137")
    ),
    BrokenSetup(
        name="host folder cannot be mounted",
        breaks=folder_missing,
        layer=Layer.DAEMONSET,
        says=("CreateContainerError", "read-only file system"),
    ),
    BrokenSetup(name="quota of the namespace", breaks=quota_exceeded, layer=Layer.DAEMONSET, says=("exceeded quota",)),
    BrokenSetup(
        name="namespace forbids privileged pods",
        breaks=namespace_is_restricted,
        layer=Layer.DAEMONSET,
        says=("PodSecurity", "enforce=privileged"),
    ),
    BrokenSetup(
        name="no room for the node process",
        breaks=no_room_on_the_node,
        layer=Layer.DAEMONSET,
        says=("not scheduled", "Insufficient memory"),
    ),
    BrokenSetup(
        name="two images on the nodes",
        breaks=two_images,
        layer=Layer.DAEMONSET,
        status=Status.WARN,
        says=("0.0.9 on gpu-b",),
    ),
    BrokenSetup(
        name="no node has a GPU label",
        breaks=labels_do_not_match,
        layer=Layer.NODE,
        says=("selects none of 3 nodes", "kubectl label node"),
    ),
    BrokenSetup(
        name="a GPU node outside the node affinity",
        breaks=one_node_left_out,
        layer=Layer.NODE,
        says=("node/gpu-b", "pool=gpu"),
    ),
    BrokenSetup(
        name="a taint that is not tolerated",
        breaks=taint_not_tolerated,
        layer=Layer.NODE,
        says=("node/gpu-b", "taint team (NoExecute)"),
    ),
    BrokenSetup(name="node not ready", breaks=node_not_ready, layer=Layer.NODE, says=("node/gpu-a", "stopped posting")),
    BrokenSetup(
        name="node cordoned",
        breaks=node_cordoned,
        layer=Layer.NODE,
        status=Status.WARN,
        says=("cordoned", "kubectl uncordon gpu-a"),
    ),
    BrokenSetup(
        name="node process that tells nothing",
        breaks=silent_node,
        layer=Layer.GPUS,
        status=Status.WARN,
        says=("node/gpu-b", "no GpuNode"),
        scope=DoctorScope(kind="node", name="gpu-b"),
    ),
)
