"""The config file of NVIDIA's device plugin (api/config/v1, version v1). Pure.

Source: NVIDIA/k8s-device-plugin api/config/v1 (config.go, flags.go, sharing.go, replicas.go, resources.go), v0.20. The
plugin ignores ``resources``, ``rename`` and ``devices`` with a warning (DisableResourceNamingInConfig).
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    CHANGED,
    LOST,
    Gathered,
    InputDocument,
    Ledger,
    MigrationNote,
    Path,
    PluginConfig,
    ReplicatedResource,
    Rule,
    Rules,
    apply,
    at,
    list_at,
    mapping_at,
    path_text,
    switch,
    text_at,
    to_value,
    unless_empty,
    use,
)
from dra_driver.kubectl.migrate.resources import GPU, SHARED

KEYS: Final = frozenset({"version", "flags", "resources", "sharing", "imex"})
MIG_STRATEGIES: Final = ("none", "single", "mixed")
MOST_REPLICAS: Final = 1024
_IGNORED: Final = "the device plugin ignores it and logs a warning, so nothing changes"
_GFD: Final = "GPU Feature Discovery's own; it may go on beside this driver"


def _driver_root(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value in {None, "", "/"}:
        ledger.carried(path, "the NVIDIA driver is searched below the host's /")
        return
    to_value("driver", "root")(value, path, ledger, gathered)
    gathered.set_value(("driver", "hasDev"), True)


def _dev_root(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value in {None, "", "/"}:
        ledger.carried(path, "device nodes are those of the host's /dev")
    elif value == at(gathered.values, "driver", "root"):
        ledger.carried(path, "the driver's folder has device nodes: driver.hasDev of the chart's values")
    else:
        ledger.lost(path, "device nodes are in the host's /dev or in the driver's folder; another folder cannot be set")


def _discovery(value: Any, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    if value == "tegra":
        ledger.lost(path, "Tegra boards are not supported: they have no NVML with the calls that this driver needs")
    else:
        ledger.carried(path, "GPUs are found through NVML")


def _channels(value: Any, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    if value in (None, []):
        ledger.carried(path, "none: there is nothing to carry over")
    else:
        ledger.lost(path, "this driver gives no IMEX channels; NVIDIA's DRA driver does, for ComputeDomains")


FLAGS: Final[Rules] = {
    "failOnInitError": (CHANGED, "the node process never ends for lack of a driver: it waits, and says so in /readyz"),
    "mpsRoot": (CHANGED, "the MPS host keeps its folders in /run/gpu.nvidia.com-mps (its setting MPS_RUN_DIR)"),
    "nvidiaDriverRoot": _driver_root,
    "nvidiaDevRoot": _dev_root,
    "gdrcopyEnabled": switch((LOST, "GDRCopy's device is not given to containers")),
    "gdsEnabled": switch((LOST, "GPUDirect Storage's devices are not given to containers")),
    "mofedEnabled": switch((LOST, "the devices of MOFED are not given to containers")),
    "useNodeFeatureAPI": (LOST, _GFD),
    "deviceDiscoveryStrategy": _discovery,
    "plugin.passDeviceSpecs": (CARRIED, "device nodes are always in the container's specification, through CDI"),
    "plugin.deviceListStrategy": (CHANGED, "devices come to containers by CDI alone, through the kubelet"),
    "plugin.deviceIDStrategy": (CHANGED, "claims name devices (gpu-0); containers do not see ids of them"),
    "plugin.cdiAnnotationPrefix": (CHANGED, "CDI names go through the kubelet, not through annotations"),
    "plugin.nvidiaCTKPath": (CHANGED, "NVIDIA's CDI hook is searched on the host; driver.cdiHook of the chart sets it"),
    "plugin.containerDriverRoot": (CHANGED, "the chart mounts the driver's folder"),
    "plugin.sharedDevicesAllocationPolicy": (
        CHANGED,
        "the scheduler takes the first GPU with room, so GPUs are packed",
    ),
    "gfd": (LOST, _GFD),
}

_OTHERS: Final[Rules] = {
    "version": (CARRIED, "the version of the format"),
    **{f"flags.{name}": rule for name, rule in FLAGS.items()},
    "resources.*.*.pattern": (CHANGED, "the device plugin ignores it and logs a warning; here the class selects by it"),
    "resources.*.*.name": (CHANGED, "the device plugin ignores it and logs a warning; here a class has this resource"),
    "resources.*": unless_empty((LOST, _IGNORED)),
    "imex.channelIDs": _channels,
    "imex.required": (CARRIED, "concerns IMEX channels alone"),
}


def is_plugin_config(value: Any) -> bool:
    """Whether a document is a config of the device plugin rather than another file with a version."""
    return isinstance(value, Mapping) and "kind" not in value and "mig-configs" not in value and (
        bool({"flags", "sharing", "imex"} & set(value)) or set(value) == {"version"}
    )  # fmt: skip


def translate(document: InputDocument, name: str, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """Adds what the config ``name`` says to ``gathered``. Raises ConfigurationError."""
    value = document.value
    version = value.get("version", "v1")
    if version != "v1":
        raise ConfigurationError(f"{document.place}: version {str(version)[:40]!r} of the device plugin's config is not"
                                 " known; expected v1")  # fmt: skip
    ledger = Ledger(document)
    strategy, replicated, refused = _sharing(document, ledger, gathered, name)
    mig = at(value, "flags", "migStrategy")
    if mig is not None:
        _mig_strategy(document, str(mig), ("flags", "migStrategy"), ledger)
    _renamed(document, gathered)
    apply({key: item for key, item in value.items() if key != "sharing"}, _OTHERS, ledger, gathered)
    gathered.plugin_configs[name] = PluginConfig(
        name=name,
        mig_strategy=str(mig or ""),
        strategy=strategy,
        several_refused=refused,
        replicated=replicated,
    )
    return ledger.close()


def note_mig_strategy(value: str, path: Path, ledger: Ledger) -> None:
    if value == "none":
        ledger.carried(path, "became a policy that offers no MIG devices (forms.migProfiles: [])")
    elif value == "mixed":
        ledger.carried(path, "claims choose the profile by its DeviceClass")
    else:
        ledger.changed(path, "nvidia.com/gpu is always a whole GPU here; pods whose labels say that they had a MIG"
                             " device get one by its profile")  # fmt: skip


def _mig_strategy(document: InputDocument, value: str, path: Path, ledger: Ledger) -> None:
    if value not in MIG_STRATEGIES:
        place = f"{document.source}:{document.line_of(path)}: document {document.number}"
        raise ConfigurationError(f"{place}: {path_text(path)}: expected none, single or mixed, got {value[:40]!r}")
    note_mig_strategy(value, path, ledger)


def _sharing(
    document: InputDocument, ledger: Ledger, gathered: Gathered, name: str
) -> tuple[str, list[ReplicatedResource], bool]:
    """Strategy, replicated resources, and whether more than one replica is refused. MPS wins, as in sharing.go."""
    value = document.value
    parts = {key: at(value, "sharing", key) for key in ("timeSlicing", "mps")}
    used = "mps" if parts["mps"] is not None else "timeSlicing" if parts["timeSlicing"] else ""
    for key, part in parts.items():
        if part is not None and key != used:
            ledger.carried(("sharing", key), "has no effect beside mps" if part else "empty: nothing is shared")
    if not used:
        if at(value, "sharing") is not None:
            ledger.carried(("sharing",), "nothing is shared")
        return "", [], False
    part, path = parts[used], ("sharing", used)
    strategy = "MPS" if used == "mps" else "TimeSlicing"
    if strategy == "MPS":
        gathered.set_value(("mpsHost", "enabled"), True)
    renames = at(part, "renameByDefault") is True
    refused = at(part, "failRequestsGreaterThanOne")
    if "renameByDefault" in mapping_at(part):
        text = (
            "pods that ask for the resource with .shared get a share" if renames else "shares keep the resource's name"
        )
        ledger.carried((*path, "renameByDefault"), text)
    if refused is not None:
        text = "pods that ask for more than one replica are not translated" if refused else (
            "several replicas become one claim for several shares of one GPU")  # fmt: skip
        ledger.note(CARRIED if refused else CHANGED, (*path, "failRequestsGreaterThanOne"), text)
    found = [
        _replicated(document, (*path, "resources", index), ledger, renames=renames, name=name, strategy=strategy)
        for index in range(len(list_at(part, "resources")))
    ]
    if not found:
        raise ConfigurationError(f"{document.place}: {path_text(path)}.resources: expected at least one resource")
    return strategy, found, bool(refused if refused is not None else strategy == "MPS")


def _replicated(
    document: InputDocument, path: Path, ledger: Ledger, *, renames: bool, name: str, strategy: str
) -> ReplicatedResource:
    entry = at(document.value, *path)
    resource, replicas = at(entry, "name"), at(entry, "replicas")
    line = document.line_of(path)
    if not isinstance(resource, str) or not isinstance(replicas, int) or replicas < 2:
        raise ConfigurationError(
            f"{document.source}:{line}: document {document.number}: {path_text(path)}: expected name and replicas, 2 or"
            f" more, got {str(entry)[:80]}"
        )
    resource = resource if resource.startswith("nvidia.com/") else f"nvidia.com/{resource}"
    renamed = f"{resource}{SHARED}" if renames else ""
    if "rename" in entry:
        ledger.lost((*path, "rename"), _IGNORED)
    if "devices" in entry:
        ledger.note(
            CARRIED if entry["devices"] == "all" else LOST,
            (*path, "devices"),
            "all GPUs"
            if entry["devices"] == "all"
            else f"{_IGNORED}; select.minors or select.uuids of a GpuPolicy do it",
        )
    if resource != GPU:
        text = "this driver shares whole GPUs among claims and no MIG devices"
        ledger.lost((*path, "name"), text)
        ledger.lost((*path, "replicas"), text)
        return ReplicatedResource(name=resource, replicas=0, renamed=renamed)
    most = min(replicas, MOST_REPLICAS)
    ledger.carried((*path, "name"), f"became policy {policy_name(name)}: whole GPUs are shared by {strategy}")
    text = f"became sharing.maxShares {most} of policy {policy_name(name)}"
    if strategy == "MPS":
        ledger.changed((*path, "replicas"), f"{text}; each claim says how much memory and compute it wants, where each"
                                            " replica had an equal part")  # fmt: skip
    elif most != replicas:
        ledger.changed((*path, "replicas"), f"{text}, the most that a policy allows")
    else:
        ledger.carried((*path, "replicas"), text)
    return ReplicatedResource(name=resource, replicas=most, renamed=renamed)


def _renamed(document: InputDocument, gathered: Gathered) -> None:
    """Custom resource names: a class of its own for each pattern of product names."""
    for index in range(len(list_at(document.value, "resources", "gpus"))):
        pattern, name = (at(document.value, "resources", "gpus", index, key) for key in ("pattern", "name"))
        if isinstance(pattern, str) and isinstance(name, str):
            resource = name if name.startswith("nvidia.com/") else f"nvidia.com/{name}"
            if resource != GPU:
                gathered.renamed[resource] = pattern


def policy_name(config: str) -> str:
    return dns_name(f"device-plugin-{config}" if config else "device-plugin")


def dns_name(text: str) -> str:
    """``text`` as a DNS label of at most 63 characters."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in text.lower())
    return "-".join(part for part in kept.split("-") if part)[:63].rstrip("-") or "policy"


# --- Environment variables and arguments of the device plugin's container, which stand for flags of its config.
#
# Source: NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin/main.go, v0.20: flag ``--mig-strategy`` and MIG_STRATEGY.

_VARIABLES: Final = {
    "FAIL_ON_INIT_ERROR": "failOnInitError",
    "MPS_ROOT": "mpsRoot",
    "NVIDIA_DRIVER_ROOT": "nvidiaDriverRoot",
    "NVIDIA_DEV_ROOT": "nvidiaDevRoot",
    "GDRCOPY_ENABLED": "gdrcopyEnabled",
    "GDS_ENABLED": "gdsEnabled",
    "MOFED_ENABLED": "mofedEnabled",
    "USE_NODE_FEATURE_API": "useNodeFeatureAPI",
    "DEVICE_DISCOVERY_STRATEGY": "deviceDiscoveryStrategy",
    "PASS_DEVICE_SPECS": "plugin.passDeviceSpecs",
    "DEVICE_LIST_STRATEGY": "plugin.deviceListStrategy",
    "DEVICE_ID_STRATEGY": "plugin.deviceIDStrategy",
    "CDI_ANNOTATION_PREFIX": "plugin.cdiAnnotationPrefix",
    "NVIDIA_CTK_PATH": "plugin.nvidiaCTKPath",
    "NVIDIA_CDI_HOOK_PATH": "plugin.nvidiaCTKPath",
    "CONTAINER_DRIVER_ROOT": "plugin.containerDriverRoot",
    "SHARED_DEVICES_ALLOCATION_POLICY": "plugin.sharedDevicesAllocationPolicy",
}
_NOT_FLAGS: Final[dict[str, Rule]] = {
    "CONFIG_FILE": (CARRIED, "read where its ConfigMap is among the inputs"),
    "IMEX_CHANNEL_IDS": (LOST, "this driver gives no IMEX channels; NVIDIA's DRA driver does, for ComputeDomains"),
    "IMEX_REQUIRED": (CARRIED, "concerns IMEX channels alone"),
    "NVIDIA_MIG_MONITOR_DEVICES": (CHANGED, "the node process reads MIG devices through the host's /dev"),
    "NVIDIA_VISIBLE_DEVICES": (CHANGED, "the node process sees every GPU of its node"),
    "NVIDIA_DRIVER_CAPABILITIES": (CHANGED, "the node process loads the driver's libraries from the host"),
}
_UNKNOWN: Final[Rule] = (LOST, "a setting of the device plugin that this driver does not have")


def environment(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if not value:
        ledger.carried(path, "empty: there is nothing to carry over")
    for index, each in enumerate(value if isinstance(value, list) else ()):
        setting(str(at(each, "name") or ""), at(each, "value"), (*path, index), ledger, gathered)


def arguments(container: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    """Each ``--flag=value`` of a container's command and args."""
    for key in ("command", "args"):
        for index, each in enumerate(list_at(container, key)):
            flag, equals, value = str(each).partition("=")
            if flag.startswith("--"):
                name = flag.removeprefix("--").replace("-", "_").upper()
                setting(name, value if equals else True, (*path, key, index), ledger, gathered)


def setting(name: str, value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if name == "MIG_STRATEGY" and value in MIG_STRATEGIES:
        gathered.mig_strategy = str(value)
        note_mig_strategy(str(value), path, ledger)
        return
    rule = FLAGS[_VARIABLES[name]] if name in _VARIABLES else _NOT_FLAGS.get(name, _UNKNOWN)
    use(rule, value, path, ledger, gathered)


# --- Values of the device plugin's chart, and its DaemonSet as a manifest.
#
# Source: NVIDIA/k8s-device-plugin deployments/helm/nvidia-device-plugin/values.yaml and deployments/static, v0.20.

_HELM: Final = "of the device plugin's release, which goes; this chart has fixed names in a namespace of your choice"
_NFD: Final = "Node Feature Discovery goes on; nodes.gpuLabels of the chart accept its labels"
_GONE: Final = "the device plugin's DaemonSet goes; the chart's takes its place"
_PRESENT: Final = frozenset({"feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present",
                             "feature.node.kubernetes.io/cpu-model.vendor_id"})  # fmt: skip


def _chart_mig_strategy(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
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
CHART_VALUES: Final[Rules] = {
    "config.name": unless_empty((CARRIED, "read where this ConfigMap is among the inputs (--from-cluster reads it)")),
    "config.map": unless_empty((CARRIED, "read as if it were the ConfigMap")),
    "config.default": _default,
    "config.fallbackStrategies": (CHANGED, "a node without a label gets the default, or the config that is alone"),
    "compatWithCPUManager": (CARRIED, "the kubelet's CPU manager does not change the devices of claims"),
    "migStrategy": _chart_mig_strategy,
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
CHART_VALUE_KEYS: Final = frozenset(key.partition(".")[0] for key in CHART_VALUES)
CHART_OWN_KEYS: Final = frozenset(
    {"compatWithCPUManager", "migStrategy", "failOnInitError", "deviceListStrategy", "config", "deviceIDStrategy"}
    | {"nvidiaDriverRoot", "gfd", "mps", "runtimeClassName"}
)


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
