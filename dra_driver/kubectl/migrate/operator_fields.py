"""Rules for fields of the GPU Operator's ClusterPolicy (nvidia.com/v1) and chart, and of the chart of NVIDIA's DRA
driver.

Source: NVIDIA/gpu-operator api/nvidia/v1/clusterpolicy_types.go and deployments/gpu-operator/values.yaml, v26.7. The
operator keeps running for all tasks except GPU allocation, so most of its fields are not carried over.
"""

from typing import Final

from dra_driver.kubectl.migrate import plugin_config
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    CHANGED,
    LOST,
    NOTHING,
    OFF,
    Act,
    Gathered,
    Ledger,
    Path,
    Rules,
    mapping_at,
    switch,
    to_value,
    unless_empty,
    use,
    when,
)

STAYS: Final = "the GPU Operator continues to use it"
_VIRTUAL: Final = "this driver does not support virtual machines; keep it for nodes with virtual machines"
_VGPU: Final = "this driver does not support vGPU; keep it for nodes with vGPU"
_IMAGE: Final = "applies to the device plugin's image"
DEFAULT_INSTALL_DIR: Final = "/run/nvidia/driver"


def component(text: str) -> Act:
    """Return the rule of an operator component with an ``enabled`` field."""

    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        fields = mapping_at(value)
        on = fields.get("enabled", bool(fields)) is True
        use((LOST, text) if on else OFF, value, path, ledger, gathered)

    return act


def _unknown_strategy(value: object, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    ledger.lost(path, f"expected none, single or mixed, got {str(value)[:40]!r}")


def _driver(_value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.values.setdefault(("driver", "root"), DEFAULT_INSTALL_DIR)
    gathered.set_value(("driver", "hasDev"), True)
    ledger.carried(path, "became driver.root and driver.hasDev of the chart's values; keep the driver container")


def _install_dir(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.values["driver", "root"] = value
    ledger.carried(path, "became driver.root of the chart's values")


def _default_config(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if path[-3] == "devicePlugin":
        gathered.plugin_default = str(value)
    else:
        gathered.mig_default = str(value)
    ledger.carried(path, "its policy applies to nodes without a label")


_DEFAULT: Final = when(("", None, {}), (CARRIED, "empty: nodes without a label have no configuration"), _default_config)
SPEC: Final[Rules] = {
    "operator": (LOST, STAYS),
    "daemonsets.tolerations": when(([], None), (CARRIED, "empty"), plugin_config.TOLERATED),
    "daemonsets.priorityClassName": to_value("node", "priorityClassName"),
    "daemonsets.annotations": to_value("node", "podAnnotations"),
    "daemonsets.labels": unless_empty((LOST, "labels of the chart's pods cannot be set")),
    "daemonsets.updateStrategy": plugin_config.SURGE,
    "daemonsets.rollingUpdate": plugin_config.SURGE,
    "daemonsets.podSecurityContext": unless_empty((LOST, "the security context of the chart's pods cannot be set")),
    "driver.enabled": when((False,), (CARRIED, "the driver is on the host: searched automatically"), _driver),
    "driver.*": (LOST, STAYS),
    "toolkit": (LOST, f"{STAYS}; claims do not need it: the container runtime applies CDI"),
    "devicePlugin.enabled": switch(
        (
            CHANGED,
            "label nodes of this driver nvidia.com/gpu.deploy.device-plugin=false; set it to false when all nodes"
            " are migrated",
        ),
        OFF,
    ),
    "devicePlugin.config.name": plugin_config.NAMED,
    "devicePlugin.config.default": _DEFAULT,
    "devicePlugin.config.create": (CARRIED, "only the ConfigMap's content matters"),
    "devicePlugin.config.data": plugin_config.INLINE,
    "devicePlugin.mps": plugin_config.MPS_FOLDER,
    "devicePlugin.env": plugin_config.environment,
    "devicePlugin.args": unless_empty((LOST, "arguments of the device plugin; pass them as its config")),
    "devicePlugin.hostNetwork": switch((LOST, "the node process does not use the host network")),
    "devicePlugin.resources": unless_empty((LOST, "the chart has measured defaults; override with node.resources")),
    "devicePlugin.*": unless_empty((LOST, _IMAGE)),
    "dcgmExporter": (LOST, f"{STAYS}; version 4.6 and later report the pods of this driver's claims"),
    "dcgm": (LOST, STAYS),
    "nodeStatusExporter": component(STAYS),
    "gfd": (LOST, f"{STAYS}; claim selectors replace its labels"),
    "mig.strategy": plugin_config.mig_strategy(_unknown_strategy),
    "migManager.enabled": switch(
        (
            CHANGED,
            "it must not partition this driver's GPUs: label nodes of this driver"
            " nvidia.com/gpu.deploy.mig-manager=false; set it to false when all nodes are migrated",
        ),
        OFF,
    ),
    "migManager.config.name": plugin_config.NAMED,
    "migManager.config.default": _DEFAULT,
    "migManager.config.create": (CARRIED, "only the ConfigMap's content matters"),
    "migManager.config.data": plugin_config.INLINE,
    "migManager.gpuClientsConfig": unless_empty(
        (LOST, "this driver does not stop GPU clients; it reports processes that use a GPU")
    ),
    "migManager.*": unless_empty((LOST, "applies to the MIG manager, which this driver does not use")),
    "psp": component("Kubernetes 1.25 removed pod security policies"),
    "psa": component("label this driver's namespace pod-security.kubernetes.io/enforce=privileged"),
    "validator": (LOST, f"{STAYS}; its device plugin pod requests nvidia.com/gpu"),
    "gds": component("GPUDirect Storage devices are not supported"),
    "gdrcopy": component("GDRCopy devices are not supported"),
    "sandboxWorkloads": component("virtual machines (VFIO, vGPU) are not supported"),
    **dict.fromkeys(("vfioManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin"), component(_VIRTUAL)),
    **dict.fromkeys(("vgpuManager", "vgpuDeviceManager"), component(_VGPU)),
    "kataManager": component("Kata containers are not supported"),
    "ccManager": component(f"{STAYS} for the confidential computing mode"),
    "cdi": (CHANGED, "claims always use CDI; containerd 1.7 needs enable_cdi, newer versions enable it"),
    **dict.fromkeys(("daemonsets", "driver", "devicePlugin", "mig", "migManager", "hostPaths"), NOTHING),
    **{f"{name}.config": NOTHING for name in ("devicePlugin", "migManager")},
    "hostPaths.rootFS": (CARRIED, "the chart mounts the host's /"),
    "hostPaths.driverInstallDir": unless_empty(_install_dir),
    "hostPaths.kubeletRootDir": to_value("kubelet", "rootDir"),
}

VALUES: Final[Rules] = {
    "platform.openshift": to_value("openshift", "enabled"),
    **dict.fromkeys(("nfd", "node-feature-discovery"), plugin_config.NFD),
    "clusterPolicy": (LOST, STAYS),
    "gpuCluster": (LOST, "NVIDIA's DRA driver in the operator has the same driver name: keep it disabled"),
    "draDriver": (LOST, "NVIDIA's DRA driver has the same driver name: keep its GPU part disabled"),
    "extraObjects": unless_empty((LOST, "additional objects of the chart; pass them to this command as manifests")),
    "global": plugin_config.NOT_USED,
    **SPEC,
}
VALUE_KEYS: Final = frozenset(key.partition(".")[0] for key in VALUES)
OWN_KEYS: Final = frozenset(
    {"migManager", "toolkit", "dcgmExporter", "vgpuManager", "sandboxWorkloads", "ccManager", "driver", "operator"}
)
"""Keys of this chart only."""


# --- Values of the chart of NVIDIA's DRA driver.
#
# Source: kubernetes-sigs/dra-driver-nvidia-gpu deployments/helm/dra-driver-nvidia-gpu/values.yaml, v0.5. It has
# the same driver name and classes, so claims, templates and pods need no change.

_HELM: Final = "applies to NVIDIA's release; this chart has fixed names in any namespace"
_DOMAINS: Final = "keep NVIDIA's driver with resources.gpus.enabled=false for ComputeDomains"
_WEBHOOK: Final = "a ValidatingAdmissionPolicy checks claim parameters (parameterChecks.enabled)"
_TEMPLATE: Final = "fixed in this chart"


def _kubelet_folder(suffix: str) -> Act:
    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        root = str(value).removesuffix(suffix)
        if not str(value).endswith(suffix):
            text = f"expected a directory that ends with {suffix}; its parent is kubelet.rootDir of the chart"
            ledger.lost(path, text)
        elif root == "/var/lib/kubelet":
            ledger.carried(path, "the chart's default")
        else:
            gathered.set_value(("kubelet", "rootDir"), root)
            ledger.carried(path, "became kubelet.rootDir of the chart's values")

    return act


DRA_DRIVER_VALUES: Final[Rules] = {
    "nvidiaDriverRoot": plugin_config.FLAGS["nvidiaDriverRoot"],
    "nvidiaCDIHookPath": to_value("driver", "cdiHook"),
    "altProcDevices": unless_empty((LOST, "the host's /proc/devices is read")),
    **dict.fromkeys(plugin_config.OVERRIDES, unless_empty((LOST, _HELM))),
    "gpuResourcesEnabledOverride": (CARRIED, "not needed: this chart is for GPUs"),
    "allowDefaultNamespace": (LOST, _HELM),
    "resourceApiVersion": unless_empty((CHANGED, "resource.k8s.io/v1 is used")),
    "imagePullSecrets": unless_empty((LOST, "applies to the registry of NVIDIA's image")),
    "image": (LOST, "NVIDIA's image"),
    "serviceAccount": (LOST, _TEMPLATE),
    "resources.gpus.enabled": (CHANGED, "set it to false in NVIDIA's release for migrated nodes"),
    "resources.computeDomains.enabled": switch((LOST, _DOMAINS)),
    "resources.computeDomains.*": (LOST, _DOMAINS),
    "featureGates": unless_empty((LOST, "NVIDIA's gates; this driver needs none for partitions, shares and health")),
    "logVerbosity": (CHANGED, "LOG_LEVEL in node.settings of the chart"),
    "consumableShares": unless_empty((CHANGED, "set sharing in a GpuPolicy")),
    "webhook": (CHANGED, _WEBHOOK),
    "controller": (LOST, _DOMAINS),
    "kubeletPlugin.metrics": (CHANGED, "metrics are at port 8080, /metrics"),
    "kubeletPlugin.priorityClassName": to_value("node", "priorityClassName"),
    "kubeletPlugin.updateStrategy": plugin_config.SURGE,
    "kubeletPlugin.podAnnotations": to_value("node", "podAnnotations"),
    "kubeletPlugin.podSecurityContext": unless_empty((LOST, _TEMPLATE)),
    "kubeletPlugin.nodeSelector": unless_empty((LOST, "copy its labels to nodes.selector of the chart's values")),
    "kubeletPlugin.tolerations": plugin_config.TOLERATED,
    "kubeletPlugin.kubeletRegistrarDirectoryPath": _kubelet_folder("/plugins_registry"),
    "kubeletPlugin.kubeletPluginsDirectoryPath": _kubelet_folder("/plugins"),
    "kubeletPlugin.containers.computeDomains": (LOST, _DOMAINS),
    "kubeletPlugin.containers.*": (LOST, _TEMPLATE),
    "kubeletPlugin.affinity": (CHANGED, "nodes.gpuLabels of the chart lists the labels of GPU nodes"),
    "kubeletPlugin.networkPolicy.enabled": to_value("networkPolicy", "enabled"),
    "maskNvidiaDriverParams": (CARRIED, "NVIDIA's CDI hook masks the driver's parameters in containers"),
    "global": plugin_config.NOT_USED,
}
DRA_DRIVER_KEYS: Final = {"gpuResourcesEnabledOverride", "kubeletPlugin", "nvidiaCDIHookPath", "altProcDevices"}
