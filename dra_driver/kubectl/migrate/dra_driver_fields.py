"""Values of the chart of NVIDIA's own DRA driver. Pure.

Source: kubernetes-sigs/dra-driver-nvidia-gpu deployments/helm/dra-driver-nvidia-gpu/values.yaml, v0.5. Its driver name
and classes are this driver's, so claims, templates and pods need no change.
"""

from typing import Any, Final

from dra_driver.kubectl.migrate.gathered import Gathered
from dra_driver.kubectl.migrate.input import Path
from dra_driver.kubectl.migrate.ledger import Ledger
from dra_driver.kubectl.migrate.rules import CARRIED, CHANGED, LOST, Rules, switch, to_value, unless_empty

_HELM: Final = "of the other driver's release; this chart has fixed names in a namespace of your choice"
_DOMAINS: Final = "ComputeDomains stay with NVIDIA's driver, installed with resources.gpus.enabled=false"
_WEBHOOK: Final = "parameters of claims are checked by a ValidatingAdmissionPolicy (parameterChecks.enabled)"
_TEMPLATE: Final = "the chart has this setting fixed"


def _root(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value in {None, "", "/"}:
        ledger.carried(path, "the NVIDIA driver is searched below the host's /")
        return
    to_value("driver", "root")(value, path, ledger, gathered)
    gathered.set_value(("driver", "hasDev"), True)


def _folder(suffix: str, *keys: str) -> Any:
    def act(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        root = str(value).removesuffix(suffix)
        if not str(value).endswith(suffix):
            ledger.lost(
                path, f"expected a folder that ends with {suffix}; kubelet.rootDir of the chart is the one above"
            )
        elif root == "/var/lib/kubelet":
            ledger.carried(path, "the chart's default")
        else:
            gathered.set_value(keys, root)
            ledger.carried(path, f"became {'.'.join(keys)} of the chart's values")

    return act


VALUES: Final[Rules] = {
    "nvidiaDriverRoot": _root,
    "nvidiaCDIHookPath": to_value("driver", "cdiHook"),
    "altProcDevices": unless_empty((LOST, "device numbers are read from the host's /proc/devices")),
    "nameOverride": unless_empty((LOST, _HELM)),
    "fullnameOverride": unless_empty((LOST, _HELM)),
    "namespaceOverride": unless_empty((LOST, _HELM)),
    "selectorLabelsOverride": unless_empty((LOST, _HELM)),
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
    "kubeletPlugin.updateStrategy": (CHANGED, "the new pod of a node registers before the old one stops (maxSurge: 1)"),
    "kubeletPlugin.podAnnotations": to_value("node", "podAnnotations"),
    "kubeletPlugin.podSecurityContext": unless_empty((LOST, _TEMPLATE)),
    "kubeletPlugin.nodeSelector": unless_empty((LOST, "write its labels into nodes.selector of the chart's values")),
    "kubeletPlugin.tolerations": (CARRIED, "the chart's DaemonSets tolerate every taint"),
    "kubeletPlugin.kubeletRegistrarDirectoryPath": _folder("/plugins_registry", "kubelet", "rootDir"),
    "kubeletPlugin.kubeletPluginsDirectoryPath": _folder("/plugins", "kubelet", "rootDir"),
    "kubeletPlugin.containers.computeDomains": (LOST, _DOMAINS),
    "kubeletPlugin.containers.*": (LOST, _TEMPLATE),
    "kubeletPlugin.affinity": (CHANGED, "nodes.gpuLabels of the chart are the labels of nodes with GPUs"),
    "kubeletPlugin.networkPolicy.enabled": to_value("networkPolicy", "enabled"),
    "maskNvidiaDriverParams": (CARRIED, "containers always see the driver's parameters as the node process makes them"),
    "global": (CARRIED, "the chart does not use it"),
}
OWN_KEYS: Final = frozenset({"gpuResourcesEnabledOverride", "kubeletPlugin", "nvidiaCDIHookPath", "altProcDevices"})
