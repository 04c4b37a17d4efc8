"""Values of the device plugin's chart, and its DaemonSet as a manifest. Pure.

Source: NVIDIA/k8s-device-plugin deployments/helm/nvidia-device-plugin/values.yaml and deployments/static, v0.20.
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.kubectl.migrate.gathered import Gathered
from dra_driver.kubectl.migrate.input import InputDocument, Path, list_at, text_at
from dra_driver.kubectl.migrate.ledger import Ledger, MigrationNote
from dra_driver.kubectl.migrate.plugin_config import FLAGS, MIG_STRATEGIES, note_mig_strategy
from dra_driver.kubectl.migrate.plugin_environment import arguments, environment
from dra_driver.kubectl.migrate.rules import CARRIED, CHANGED, LOST, Rule, Rules, switch, to_value, unless_empty

_HELM: Final = "of the device plugin's release, which goes; this chart has fixed names in a namespace of your choice"
_GFD: Final = "GPU Feature Discovery's own; it may go on beside this driver"
_NFD: Final = "Node Feature Discovery goes on; nodes.gpuLabels of the chart accept its labels"
_GONE: Final = "the device plugin's DaemonSet goes; the chart's takes its place"
_PRESENT: Final = frozenset({"feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present",
                             "feature.node.kubernetes.io/cpu-model.vendor_id"})  # fmt: skip


def _mig_strategy(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value in MIG_STRATEGIES:
        gathered.mig_strategy = str(value)
        note_mig_strategy(str(value), path, ledger)
    else:
        ledger.carried(path, "empty: the default")


def _default(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.plugin_default = str(value or "")
    ledger.carried(path, "its policy is for every node without a label that chooses another one" if value else "empty")


def _affinity(value: Any, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    keys = {item for each in _expressions(value) for item in [str(each.get("key"))]}
    if keys <= _PRESENT:
        ledger.carried(path, "nodes.gpuLabels of the chart are these labels of nodes with GPUs")
    else:
        ledger.lost(path, "write its expressions into nodes.expressions of the chart's values, which all have to hold")


def _expressions(value: Any) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            if "key" in each and "operator" in each:
                found.append(each)
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
    return found


def _hook(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if isinstance(value, str) and value.endswith("nvidia-cdi-hook"):
        to_value("driver", "cdiHook")(value, path, ledger, gathered)
    else:
        ledger.note(CHANGED if value else CARRIED, path, "NVIDIA's CDI hook is searched on the host")


_BY_FLAG: Final[Mapping[str, Rule]] = {
    **{name: unless_empty(FLAGS[name]) for name in ("failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled")},
    **{name: FLAGS[name] for name in ("nvidiaDriverRoot", "deviceDiscoveryStrategy")},
    **{name: unless_empty(FLAGS[f"plugin.{name}"]) for name in ("deviceListStrategy", "deviceIDStrategy")},
}
VALUES: Final[Rules] = {
    "config.name": unless_empty((CARRIED, "read where this ConfigMap is among the inputs (--from-cluster reads it)")),
    "config.map": unless_empty((CARRIED, "read as if it were the ConfigMap")),
    "config.default": _default,
    "config.fallbackStrategies": (CHANGED, "a node without a label gets the default, or the config that is alone"),
    "compatWithCPUManager": (CARRIED, "the kubelet's CPU manager does not change the devices of claims"),
    "migStrategy": _mig_strategy,
    **_BY_FLAG,
    "nameOverride": unless_empty((LOST, _HELM)),
    "fullnameOverride": unless_empty((LOST, _HELM)),
    "namespaceOverride": unless_empty((LOST, _HELM)),
    "selectorLabelsOverride": unless_empty((LOST, _HELM)),
    "allowDefaultNamespace": (LOST, _HELM),
    "imagePullSecrets": unless_empty(
        (LOST, "of the registry of the device plugin's image; imagePullSecrets of the chart are for its own image")
    ),
    "image": (LOST, "the device plugin's image, which this driver does not use"),
    "updateStrategy": (CHANGED, "the new pod of a node registers before the old one stops (maxSurge: 1)"),
    "podAnnotations": to_value("node", "podAnnotations"),
    "podSecurityContext": unless_empty((LOST, "the security context of the chart's pods cannot be set")),
    "securityContext": unless_empty((LOST, "node.privileged of the chart is the choice; see the preset unprivileged")),
    "resources": unless_empty((LOST, "the chart's own are measured; node.resources changes them")),
    "nodeSelector.*": to_value("nodes", "selector", "{key}"),
    "nodeSelector": (CARRIED, "empty: there is nothing to carry over"),
    "affinity": _affinity,
    "tolerations": (CARRIED, "the chart's DaemonSets tolerate every taint"),
    "priorityClassName": to_value("node", "priorityClassName"),
    "runtimeClassName": unless_empty(
        (CHANGED, "not needed: the node process reads the driver's libraries on the host")
    ),
    "devicePlugin.enabled": switch(
        (CHANGED, "keep it off the nodes that are given to this driver, and uninstall it at the end"),
        (CARRIED, "it is off: there is nothing to carry over"),
    ),
    "devicePlugin.enableHostNetwork": switch((LOST, "the node process is in no host network")),
    "gfd": (LOST, _GFD),
    "nfd": (CARRIED, _NFD),
    "mps.root": (CHANGED, "the MPS host keeps its folders in /run/gpu.nvidia.com-mps (its setting MPS_RUN_DIR)"),
    "mps.enableHostPID": (CARRIED, "the MPS host has the host's process ids"),
    "mps.enableHostNetwork": switch((LOST, "the MPS host is in no host network")),
    "cdi.nvidiaHookPath": _hook,
    "cdi.featureFlags": unless_empty((LOST, "features of NVIDIA's CDI generator, which this driver does not use")),
    "global": (CARRIED, "the chart does not use it"),
}
VALUE_KEYS: Final = frozenset(key.partition(".")[0] for key in VALUES)
OWN_KEYS: Final = frozenset({"compatWithCPUManager", "migStrategy", "failOnInitError", "deviceListStrategy", "config",
                             "deviceIDStrategy", "nvidiaDriverRoot", "gfd", "mps", "runtimeClassName"})  # fmt: skip


def is_plugin_daemonset(value: Any) -> bool:
    """Whether an object is the DaemonSet of the device plugin, of GFD or of the plugin's MPS daemon."""
    return text_at(value, "kind") == "DaemonSet" and any(
        "k8s-device-plugin" in text_at(each, "image") or "gpu-feature-discovery" in text_at(each, "image")
        for each in list_at(value, "spec", "template", "spec", "containers")
    )


def translate_daemonset(document: InputDocument, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """Settings of the device plugin in its container's environment and arguments."""
    ledger = Ledger(document)
    base = ("spec", "template", "spec")
    for index, container in enumerate(list_at(document.value, *base, "containers")):
        path = (*base, "containers", index)
        if isinstance(container, Mapping) and "env" in container:
            environment(container["env"], (*path, "env"), ledger, gathered)
        arguments(container, path, ledger, gathered)
    ledger.changed(
        ("kind",),
        "remove it when every node is given to this driver; before, keep it off the nodes that are given to it",
    )
    return ledger.close(LOST, _GONE)
