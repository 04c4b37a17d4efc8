"""Rules for fields of the GPU Operator's ClusterPolicy (nvidia.com/v1) and chart, and of the chart of NVIDIA's DRA
driver.

Source: NVIDIA/gpu-operator api/nvidia/v1/clusterpolicy_types.go and deployments/gpu-operator/values.yaml, v26.7. The
operator keeps running for everything but the allocation of GPUs, so most of its fields are not carried over.
"""

from typing import Final

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
from dra_driver.kubectl.migrate.plugin_config import (
    FLAGS,
    INLINE,
    MPS_FOLDER,
    NAMED,
    NFD,
    NOT_USED,
    OVERRIDES,
    SURGE,
    TOLERATED,
    environment,
    mig_strategy,
)

STAYS: Final = "the GPU Operator's own: it goes on with it beside this driver"
_VIRTUAL: Final = "GPUs are not given to virtual machines; it goes on for them on other nodes"
_VGPU: Final = "vGPU is not known to this driver; it goes on for it on other nodes"
_IMAGE: Final = "of the device plugin's image, which this driver does not use"
DEFAULT_INSTALL_DIR: Final = "/run/nvidia/driver"


def component(text: str) -> Act:
    """A part of the operator that is ``enabled`` or not, as a whole."""

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
    ledger.carried(path, "became driver.root and driver.hasDev of the chart's values; the driver's container stays")


def _install_dir(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.values["driver", "root"] = value
    ledger.carried(path, "became driver.root of the chart's values")


def _default_config(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if path[-3] == "devicePlugin":
        gathered.plugin_default = str(value)
    else:
        gathered.mig_default = str(value)
    ledger.carried(path, "its policy is for every node without a label that chooses another one")


_DEFAULT: Final = when(("", None, {}), (CARRIED, "empty: nodes without a label have no configuration"), _default_config)
SPEC: Final[Rules] = {
    "operator": (LOST, STAYS),
    "daemonsets.tolerations": when(([], None), (CARRIED, "empty"), TOLERATED),
    "daemonsets.priorityClassName": to_value("node", "priorityClassName"),
    "daemonsets.annotations": to_value("node", "podAnnotations"),
    "daemonsets.labels": unless_empty((LOST, "labels of the chart's pods cannot be set")),
    "daemonsets.updateStrategy": SURGE,
    "daemonsets.rollingUpdate": SURGE,
    "daemonsets.podSecurityContext": unless_empty((LOST, "the security context of the chart's pods cannot be set")),
    "driver.enabled": when((False,), (CARRIED, "the driver is on the host: it is searched there"), _driver),
    "driver.*": (LOST, STAYS),
    "toolkit": (LOST, f"{STAYS}; claims do not need it, because the container runtime itself applies CDI"),
    "devicePlugin.enabled": switch(
        (
            CHANGED,
            "set it to false when every node is given to this driver; before, label nodes that are given to it"
            " nvidia.com/gpu.deploy.device-plugin=false",
        ),
        OFF,
    ),
    "devicePlugin.config.name": NAMED,
    "devicePlugin.config.default": _DEFAULT,
    "devicePlugin.config.create": (CARRIED, "whether the chart makes the ConfigMap; its content counts"),
    "devicePlugin.config.data": INLINE,
    "devicePlugin.mps": MPS_FOLDER,
    "devicePlugin.env": environment,
    "devicePlugin.args": unless_empty((LOST, "arguments of the device plugin; give them as its config")),
    "devicePlugin.hostNetwork": switch((LOST, "the node process is in no host network")),
    "devicePlugin.resources": unless_empty((LOST, "the chart's own are measured; node.resources changes them")),
    "devicePlugin.*": unless_empty((LOST, _IMAGE)),
    "dcgmExporter": (LOST, f"{STAYS}; from 4.6 on it names the pods of this driver's claims"),
    "dcgm": (LOST, STAYS),
    "nodeStatusExporter": component(STAYS),
    "gfd": (LOST, f"{STAYS}; selectors of claims take the place of its labels, other tools may need them"),
    "mig.strategy": mig_strategy(_unknown_strategy),
    "migManager.enabled": switch(
        (
            CHANGED,
            "it must not cut GPUs that this driver cuts: label nodes that are given to this driver"
            " nvidia.com/gpu.deploy.mig-manager=false, and set it to false at the end",
        ),
        OFF,
    ),
    "migManager.config.name": NAMED,
    "migManager.config.default": _DEFAULT,
    "migManager.config.create": (CARRIED, "whether the chart makes the ConfigMap; its content counts"),
    "migManager.config.data": INLINE,
    "migManager.gpuClientsConfig": unless_empty(
        (LOST, "this driver stops no clients of GPUs; it says which process has a GPU open")
    ),
    "migManager.*": unless_empty((LOST, "of the MIG manager, which this driver does not use")),
    "psp": component("pod security policies are gone since Kubernetes 1.25"),
    "psa": component("label the namespace of this driver pod-security.kubernetes.io/enforce=privileged"),
    "validator": (LOST, f"{STAYS}; its pod for the device plugin asks for nvidia.com/gpu"),
    "gds": component("GPUDirect Storage's devices are not given to containers"),
    "gdrcopy": component("GDRCopy's device is not given to containers"),
    "sandboxWorkloads": component("GPUs are not given to virtual machines (VFIO, vGPU)"),
    **dict.fromkeys(("vfioManager", "sandboxDevicePlugin", "kataSandboxDevicePlugin"), component(_VIRTUAL)),
    **dict.fromkeys(("vgpuManager", "vgpuDeviceManager"), component(_VGPU)),
    "kataManager": component("Kata containers are not known to this driver"),
    "ccManager": component(f"{STAYS}: it sets the confidential computing mode"),
    "cdi": (CHANGED, "claims always come by CDI; containerd 1.7 needs enable_cdi, newer ones have it on"),
    **dict.fromkeys(("daemonsets", "driver", "devicePlugin", "mig", "migManager", "hostPaths"), NOTHING),
    **{f"{name}.config": NOTHING for name in ("devicePlugin", "migManager")},
    "hostPaths.rootFS": (CARRIED, "the chart mounts the host's /"),
    "hostPaths.driverInstallDir": unless_empty(_install_dir),
    "hostPaths.kubeletRootDir": to_value("kubelet", "rootDir"),
}

VALUES: Final[Rules] = {
    "platform.openshift": to_value("openshift", "enabled"),
    **dict.fromkeys(("nfd", "node-feature-discovery"), NFD),
    "clusterPolicy": (LOST, STAYS),
    "gpuCluster": (LOST, "NVIDIA's own DRA driver in the operator has this driver's name: it must stay off"),
    "draDriver": (LOST, "NVIDIA's own DRA driver has this driver's name: its GPU part must stay off"),
    "extraObjects": unless_empty((LOST, "objects that the chart makes beside; give them to this command as manifests")),
    "global": NOT_USED,
    **SPEC,
}
VALUE_KEYS: Final = frozenset(key.partition(".")[0] for key in VALUES)
OWN_KEYS: Final = frozenset(
    {"migManager", "toolkit", "dcgmExporter", "vgpuManager", "sandboxWorkloads", "ccManager", "driver", "operator"}
)
"""Keys that no other chart of this command has."""


# --- Values of the chart of NVIDIA's own DRA driver.
#
# Source: kubernetes-sigs/dra-driver-nvidia-gpu deployments/helm/dra-driver-nvidia-gpu/values.yaml, v0.5. Its driver
# name and classes are this driver's, so claims, templates and pods need no change.

_HELM: Final = "of the other driver's release; this chart has fixed names in a namespace of your choice"
_DOMAINS: Final = "ComputeDomains stay with NVIDIA's driver, installed with resources.gpus.enabled=false"
_WEBHOOK: Final = "parameters of claims are checked by a ValidatingAdmissionPolicy (parameterChecks.enabled)"
_TEMPLATE: Final = "the chart has this setting fixed"


def _kubelet_folder(suffix: str) -> Act:
    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        root = str(value).removesuffix(suffix)
        if not str(value).endswith(suffix):
            text = f"expected a folder that ends with {suffix}; kubelet.rootDir of the chart is the one above"
            ledger.lost(path, text)
        elif root == "/var/lib/kubelet":
            ledger.carried(path, "the chart's default")
        else:
            gathered.set_value(("kubelet", "rootDir"), root)
            ledger.carried(path, "became kubelet.rootDir of the chart's values")

    return act


DRA_DRIVER_VALUES: Final[Rules] = {
    "nvidiaDriverRoot": FLAGS["nvidiaDriverRoot"],
    "nvidiaCDIHookPath": to_value("driver", "cdiHook"),
    "altProcDevices": unless_empty((LOST, "device numbers are read from the host's /proc/devices")),
    **dict.fromkeys(OVERRIDES, unless_empty((LOST, _HELM))),
    "gpuResourcesEnabledOverride": (CARRIED, "not needed: this chart is for GPUs"),
    "allowDefaultNamespace": (LOST, _HELM),
    "resourceApiVersion": unless_empty((CHANGED, "resource.k8s.io/v1 is used")),
    "imagePullSecrets": unless_empty((LOST, "of the registry of the other driver's image")),
    "image": (LOST, "the other driver's image"),
    "serviceAccount": (LOST, _TEMPLATE),
    "resources.gpus.enabled": (CHANGED, "set it to false in the other driver's release for the nodes that change over"),
    "resources.computeDomains.enabled": switch((LOST, _DOMAINS)),
    "resources.computeDomains.*": (LOST, _DOMAINS),
    "featureGates": unless_empty((LOST, "gates of the other driver; partitions, shares and health need none here")),
    "logVerbosity": (CHANGED, "LOG_LEVEL in node.settings of the chart"),
    "consumableShares": unless_empty((CHANGED, "a GpuPolicy with sharing says it for each GPU")),
    "webhook": (CHANGED, _WEBHOOK),
    "controller": (LOST, _DOMAINS),
    "kubeletPlugin.metrics": (CHANGED, "metrics are at port 8080 of the pod, /metrics"),
    "kubeletPlugin.priorityClassName": to_value("node", "priorityClassName"),
    "kubeletPlugin.updateStrategy": SURGE,
    "kubeletPlugin.podAnnotations": to_value("node", "podAnnotations"),
    "kubeletPlugin.podSecurityContext": unless_empty((LOST, _TEMPLATE)),
    "kubeletPlugin.nodeSelector": unless_empty((LOST, "write its labels into nodes.selector of the chart's values")),
    "kubeletPlugin.tolerations": TOLERATED,
    "kubeletPlugin.kubeletRegistrarDirectoryPath": _kubelet_folder("/plugins_registry"),
    "kubeletPlugin.kubeletPluginsDirectoryPath": _kubelet_folder("/plugins"),
    "kubeletPlugin.containers.computeDomains": (LOST, _DOMAINS),
    "kubeletPlugin.containers.*": (LOST, _TEMPLATE),
    "kubeletPlugin.affinity": (CHANGED, "nodes.gpuLabels of the chart are the labels of nodes with GPUs"),
    "kubeletPlugin.networkPolicy.enabled": to_value("networkPolicy", "enabled"),
    "maskNvidiaDriverParams": (CARRIED, "containers always see the driver's parameters as the node process makes them"),
    "global": NOT_USED,
}
DRA_DRIVER_KEYS: Final = {"gpuResourcesEnabledOverride", "kubeletPlugin", "nvidiaCDIHookPath", "altProcDevices"}
