"""Translate the config file of NVIDIA's device plugin (api/config/v1, version v1), its chart's values and its
DaemonSet.

Source: NVIDIA/k8s-device-plugin api/config/v1 (config.go, flags.go, sharing.go, replicas.go, resources.go), v0.20. The
plugin ignores ``resources``, ``rename`` and ``devices`` with a warning (DisableResourceNamingInConfig).
"""

import re
from typing import Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kube.published.names import ALL_PERCENT
from dra_driver.kubectl.migrate.ledger import (
    CARRIED,
    CHANGED,
    LOST,
    NOTHING,
    OFF,
    Act,
    FieldNote,
    Gathered,
    InputDocument,
    Ledger,
    Path,
    PluginConfig,
    ReplicatedResource,
    Rule,
    Rules,
    apply,
    at,
    children,
    list_at,
    mapping_at,
    path_text,
    switch,
    text_at,
    to_value,
    unless_empty,
    use,
    when,
)
from dra_driver.kubectl.migrate.resources import GPU, SHARED, share_percent

MIG_STRATEGIES: Final = ("none", "single", "mixed")
MOST_REPLICAS: Final = 1024
_IGNORED: Final = "the device plugin ignores it and logs a warning"
NAMED: Final = unless_empty((CARRIED, "read from this ConfigMap if it is an input (--from-cluster reads it)"))
INLINE: Final = unless_empty((CARRIED, "read like the ConfigMap"))
SURGE: Final[Rule] = (CHANGED, "the new pod of a node registers before the old one stops (maxSurge: 1)")
TOLERATED: Final[Rule] = (CARRIED, "the chart's DaemonSets tolerate all taints")
MPS_FOLDER: Final = (CHANGED, "the MPS host uses /run/gpu.nvidia.com-mps (setting MPS_RUN_DIR)")
NOT_USED: Final[Rule] = (CARRIED, "the chart does not use it")
_HOST: Final = (None, "", "/")
_GFD: Final = "applies to GPU Feature Discovery, which can keep running"


def _driver_root(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    to_value("driver", "root")(value, path, ledger, gathered)
    gathered.set_value(("driver", "hasDev"), True)


def _dev_root(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value == gathered.values.get(("driver", "root")):
        ledger.carried(path, "the driver's directory has device nodes: driver.hasDev of the chart's values")
    else:
        ledger.lost(path, "device nodes must be in the host's /dev or in the driver's directory")


_IMEX: Final[Rule] = (LOST, "IMEX channels are not supported; NVIDIA's DRA driver provides them for ComputeDomains")
FLAGS: Final[Rules] = {
    "failOnInitError": (CHANGED, "without a driver, the node process waits and reports it in /readyz"),
    "mpsRoot": MPS_FOLDER,
    "nvidiaDriverRoot": when(_HOST, (CARRIED, "the NVIDIA driver is searched in the host's /"), _driver_root),
    "nvidiaDevRoot": when(_HOST, (CARRIED, "the host's /dev is used"), _dev_root),
    "gdrcopyEnabled": switch((LOST, "GDRCopy devices are not supported")),
    "gdsEnabled": switch((LOST, "GPUDirect Storage devices are not supported")),
    "mofedEnabled": switch((LOST, "MOFED devices are not supported")),
    "useNodeFeatureAPI": (LOST, _GFD),
    "deviceDiscoveryStrategy": when(
        ("tegra",),
        (LOST, "Tegra boards are not supported: their NVML lacks required calls"),
        (CARRIED, "NVML discovers the GPUs"),
    ),
    "plugin.passDeviceSpecs": (CARRIED, "CDI always adds device nodes to the container's specification"),
    "plugin.deviceListStrategy": (CHANGED, "the kubelet always injects devices by CDI"),
    "plugin.deviceIDStrategy": (CHANGED, "claims name devices (gpu-0); containers do not see their ids"),
    "plugin.cdiAnnotationPrefix": (CHANGED, "the kubelet passes CDI names, without annotations"),
    "plugin.nvidiaCTKPath": (
        CHANGED,
        "NVIDIA's CDI hook is searched on the host; override with driver.cdiHook of the chart",
    ),
    "plugin.containerDriverRoot": (CHANGED, "the chart mounts the driver's directory"),
    "plugin.sharedDevicesAllocationPolicy": (
        CHANGED,
        "the scheduler packs GPUs: it takes the first GPU with room",
    ),
    "gfd": (LOST, _GFD),
}

_OTHERS: Final[Rules] = {
    "version": (CARRIED, "the version of the format"),
    **{f"flags.{name}": rule for name, rule in FLAGS.items()},
    "resources.*.*.pattern": (
        CHANGED,
        "the device plugin ignores it and logs a warning; here the class selects GPUs by it",
    ),
    "resources.*.*.name": (CHANGED, "the device plugin ignores it and logs a warning; here a class has this resource"),
    "resources.*": unless_empty((LOST, _IGNORED)),
    "imex.channelIDs": when((None, []), (CARRIED, "none"), _IMEX),
    "imex.required": (CARRIED, "only for IMEX channels"),
}


def is_plugin_config(value: object) -> bool:
    keys = set(mapping_at(value))
    return not {"kind", "mig-configs"} & keys and (bool({"flags", "sharing", "imex"} & keys) or keys == {"version"})


def translate(document: InputDocument, name: str, gathered: Gathered) -> tuple[FieldNote, ...]:
    """Add the content of config ``name`` to ``gathered``. Raises ConfigurationError."""
    value = mapping_at(document.value)
    version = value.get("version", "v1")
    if version != "v1":
        raise ConfigurationError(f"{document.place}: unknown version {str(version)[:40]!r} of the device plugin's"
                                 " config; expected v1")  # fmt: skip
    ledger = Ledger(document)
    strategy, replicated, refused = _sharing(document, ledger, gathered, name)
    mig = at(value, "flags", "migStrategy")
    if mig is not None:
        if mig not in MIG_STRATEGIES:
            raise document.error(("flags", "migStrategy"), f"expected none, single or mixed, got {str(mig)[:40]!r}")
        _note_mig_strategy(mig, ("flags", "migStrategy"), ledger)
    # Custom resource names: one class for each pattern of product names.
    for each in list_at(value, "resources", "gpus"):
        pattern, renamed = at(each, "pattern"), at(each, "name")
        if isinstance(pattern, str) and isinstance(renamed, str) and _qualified(renamed) != GPU:
            gathered.renamed[_qualified(renamed)] = pattern
    apply({key: item for key, item in value.items() if key != "sharing"}, _OTHERS, ledger, gathered)
    gathered.plugin_configs[name] = PluginConfig(
        name=name, mig_strategy=str(mig or ""), strategy=strategy, several_refused=refused, replicated=replicated
    )
    return ledger.close()


def mig_strategy(otherwise: Rule) -> Act:
    """Return a rule for the strategy of nodes without a config; ``otherwise`` is for an unknown value."""

    def act(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
        gathered.mig_strategy = str(value)
        _note_mig_strategy(value, path, ledger)

    return when(MIG_STRATEGIES, act, otherwise)


def _note_mig_strategy(value: object, path: Path, ledger: Ledger) -> None:
    if value == "none":
        ledger.carried(path, "became a policy that offers no MIG devices (forms.migProfiles: [])")
    elif value == "mixed":
        ledger.carried(path, "claims select the profile by its DeviceClass")
    else:
        ledger.changed(path, "nvidia.com/gpu is always a whole GPU; pods with a label of a MIG product request"
                             " its profile")  # fmt: skip


def _qualified(resource: str) -> str:
    return resource if resource.startswith("nvidia.com/") else f"nvidia.com/{resource}"


def _sharing(
    document: InputDocument, ledger: Ledger, gathered: Gathered, name: str
) -> tuple[str, list[ReplicatedResource], bool]:
    """Return strategy, replicated resources, and whether several replicas are rejected. MPS wins, see sharing.go."""
    value = document.value
    parts = {key: at(value, "sharing", key) for key in ("timeSlicing", "mps")}
    used = "mps" if parts["mps"] is not None else "timeSlicing" if parts["timeSlicing"] else ""
    for key, part in parts.items():
        if part is not None and key != used:
            ledger.carried(("sharing", key), "has no effect with mps" if part else "empty: no sharing")
    if not used:
        if at(value, "sharing") is not None:
            ledger.carried(("sharing",), "no sharing")
        return "", [], False
    part, path = parts[used], ("sharing", used)
    strategy = "MPS" if used == "mps" else "TimeSlicing"
    if strategy == "MPS":
        gathered.set_value(("mpsHost", "enabled"), True)
    renames = at(part, "renameByDefault") is True
    refused = at(part, "failRequestsGreaterThanOne")
    if "renameByDefault" in mapping_at(part):
        with_suffix = "pods that request the resource with .shared get a share: deviceClasses.shared of the chart"
        ledger.carried((*path, "renameByDefault"), with_suffix if renames else "shares keep the resource's name")
    if refused is not None:
        text = (
            "pods that request several replicas are not translated; the API server refuses them" if refused else
            "several replicas become one claim for several shares of one GPU; in pods that stay unchanged, they are"
            " shares of different GPUs"
        ) + f" (deviceClasses.shared.oneEach: {str(bool(refused)).lower()})"  # fmt: skip
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
    entry = mapping_at(document.value, *path)
    resource, replicas = entry.get("name"), entry.get("replicas")
    if not isinstance(resource, str) or not isinstance(replicas, int) or replicas < 2:
        seen = str(at(document.value, *path))[:80]
        raise document.error(path, f"expected name and replicas, 2 or more, got {seen}")
    resource = _qualified(resource)
    renamed = f"{resource}{SHARED}" if renames else ""
    if "rename" in entry:
        ledger.lost((*path, "rename"), _IGNORED)
    if "devices" in entry and entry["devices"] == "all":
        ledger.carried((*path, "devices"), "all GPUs")
    elif "devices" in entry:
        ledger.lost((*path, "devices"), f"{_IGNORED}; use select.minors or select.uuids of a GpuPolicy")
    if resource != GPU:
        text = "MIG devices keep one claim each; share them with sharing.migDevices of a GpuPolicy"
        ledger.lost((*path, "name"), text)
        ledger.lost((*path, "replicas"), text)
        return ReplicatedResource(name=resource, replicas=0, renamed=renamed)
    most = min(replicas, MOST_REPLICAS)
    ledger.carried((*path, "name"), f"became policy {policy_name(name)}: whole GPUs are shared by {strategy}")
    text = f"became sharing.maxShares {most} of policy {policy_name(name)}"
    if strategy == "MPS":
        percent = share_percent(most)
        default = "a claim without amounts gets it (sharing.defaultShare)"
        if most > ALL_PERCENT:
            default = f"a claim that requests no compute gets {percent} percent; one that requests no memory gets all"
            default += f" of it. Compute is in whole percents: {ALL_PERCENT} such claims fit"
        ledger.changed(
            (*path, "replicas"),
            f"{text}. Each replica had 1/{replicas} of memory and compute: translated workloads request it, and"
            f" {default}",
        )
    else:
        limit = ", the maximum of a policy" if most != replicas else ""
        ledger.note(
            CHANGED if limit else CARRIED,
            (*path, "replicas"),
            f"{text}{limit}. Neither replicas nor time-sliced shares limit memory",
        )
    return ReplicatedResource(name=resource, replicas=most, renamed=renamed)


def policy_name(config: str) -> str:
    return dns_name(f"device-plugin-{config}" if config else "device-plugin")


def dns_name(text: str) -> str:
    """Return ``text`` as a DNS label of at most 63 characters."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in text.lower())
    return "-".join(part for part in kept.split("-") if part)[:63].rstrip("-") or "policy"


# --- Environment variables and arguments of the device plugin's container, equivalent to flags of its config.
#
# Source: NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin/main.go, v0.20: flag ``--mig-strategy`` and MIG_STRATEGY.

_UNKNOWN: Final[Rule] = (LOST, "this driver has no such setting")
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_VARIABLES: Final[Rules] = {  # failOnInitError: FAIL_ON_INIT_ERROR
    **{_WORD.sub("_", key.rpartition(".")[2]).upper(): rule for key, rule in FLAGS.items() if key != "gfd"},
    "NVIDIA_CDI_HOOK_PATH": FLAGS["plugin.nvidiaCTKPath"],
    "MIG_STRATEGY": mig_strategy(_UNKNOWN),
    "CONFIG_FILE": (CARRIED, "read from its ConfigMap if it is an input"),
    "IMEX_CHANNEL_IDS": _IMEX,
    "IMEX_REQUIRED": (CARRIED, "only for IMEX channels"),
    "NVIDIA_MIG_MONITOR_DEVICES": (CHANGED, "the node process reads MIG devices through the host's /dev"),
    "NVIDIA_VISIBLE_DEVICES": (CHANGED, "the node process sees every GPU of its node"),
    "NVIDIA_DRIVER_CAPABILITIES": (CHANGED, "the node process loads the driver's libraries from the host"),
}


def environment(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if not value:
        ledger.carried(path, "empty")
    for index, each in enumerate(list_at(value)):
        rule = _VARIABLES.get(str(at(each, "name")), _UNKNOWN)
        use(rule, at(each, "value"), (*path, index), ledger, gathered)


def arguments(container: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    """Apply the rule of each ``--flag=value`` in a container's command and args."""
    for key in ("command", "args"):
        for index, each in enumerate(list_at(container, key)):
            flag, equals, value = str(each).partition("=")
            if flag.startswith("--"):
                rule = _VARIABLES.get(flag.removeprefix("--").replace("-", "_").upper(), _UNKNOWN)
                use(rule, value if equals else True, (*path, key, index), ledger, gathered)


# --- Values of the device plugin's chart, and its DaemonSet as a manifest.
#
# Source: NVIDIA/k8s-device-plugin deployments/helm/nvidia-device-plugin/values.yaml and deployments/static, v0.20.

_HELM: Final = "applies to the device plugin's release; this chart has fixed names in any namespace"
OVERRIDES: Final = ("nameOverride", "fullnameOverride", "namespaceOverride", "selectorLabelsOverride")
NFD: Final[Rule] = (CARRIED, "keep Node Feature Discovery; nodes.gpuLabels of the chart accepts its labels")
_GONE: Final = "this driver's chart replaces the device plugin's DaemonSet"
_PRESENT: Final = frozenset({"feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present",
                             "feature.node.kubernetes.io/cpu-model.vendor_id"})  # fmt: skip


def _default(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.plugin_default = str(value or "")
    ledger.carried(path, "its policy applies to nodes without a label" if value else "empty")


def _affinity(value: object, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    if _keys(value) <= _PRESENT:
        ledger.carried(path, "nodes.gpuLabels of the chart contains these labels")
    else:
        ledger.lost(
            path, "copy its expressions to nodes.expressions of the chart's values, which are combined with AND"
        )


def _keys(value: object) -> set[str]:
    keys = {str(at(value, "key"))} if {"key", "operator"} <= mapping_at(value).keys() else set()
    return keys.union(*(_keys(item) for _, item in children(value)))


def _hook(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if isinstance(value, str) and value.endswith("nvidia-cdi-hook"):
        to_value("driver", "cdiHook")(value, path, ledger, gathered)
    else:
        ledger.note(CHANGED if value else CARRIED, path, "NVIDIA's CDI hook is searched on the host")


CHART_VALUES: Final[Rules] = {
    "config.name": NAMED,
    "config.map": INLINE,
    "config.default": _default,
    "config.fallbackStrategies": (CHANGED, "a node without a label gets the default or the only config"),
    "compatWithCPUManager": (CARRIED, "the kubelet's CPU manager does not change the devices of claims"),
    "migStrategy": mig_strategy((CARRIED, "empty: the default")),
    **{name: unless_empty(FLAGS[name]) for name in ("failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled")},
    **{name: FLAGS[name] for name in ("nvidiaDriverRoot", "deviceDiscoveryStrategy")},
    **{name: unless_empty(FLAGS[f"plugin.{name}"]) for name in ("deviceListStrategy", "deviceIDStrategy")},
    **dict.fromkeys(OVERRIDES, unless_empty((LOST, _HELM))),
    "allowDefaultNamespace": (LOST, _HELM),
    "imagePullSecrets": unless_empty((LOST, "applies to the registry of the device plugin's image")),
    "image": (LOST, "the device plugin's image"),
    "updateStrategy": SURGE,
    "podAnnotations": to_value("node", "podAnnotations"),
    "podSecurityContext": unless_empty((LOST, "the security context of the chart's pods cannot be set")),
    "securityContext": unless_empty((LOST, "use node.privileged of the chart; see the preset unprivileged")),
    "resources": unless_empty((LOST, "the chart has measured defaults; override with node.resources")),
    "nodeSelector.*": to_value("nodes", "selector", "{key}"),
    "nodeSelector": NOTHING,
    "affinity": _affinity,
    "tolerations": TOLERATED,
    "priorityClassName": to_value("node", "priorityClassName"),
    "runtimeClassName": unless_empty(
        (CHANGED, "not needed: the node process reads the driver's libraries on the host")
    ),
    "devicePlugin.enabled": switch(
        (CHANGED, "keep it off nodes of this driver; uninstall it when all nodes are migrated"), OFF
    ),
    "devicePlugin.enableHostNetwork": switch((LOST, "the node process does not use the host network")),
    "gfd": (LOST, _GFD),
    "nfd": NFD,
    "mps.root": MPS_FOLDER,
    "mps.enableHostPID": (CARRIED, "the MPS host uses the host's PID namespace"),
    "mps.enableHostNetwork": switch((LOST, "the MPS host does not use the host network")),
    "cdi.nvidiaHookPath": _hook,
    "cdi.featureFlags": unless_empty((LOST, "applies to NVIDIA's CDI generator, which this driver does not use")),
    "global": NOT_USED,
}
CHART_VALUE_KEYS: Final = frozenset(key.partition(".")[0] for key in CHART_VALUES)
CHART_OWN_KEYS: Final = frozenset(
    {"compatWithCPUManager", "migStrategy", "failOnInitError", "deviceListStrategy", "config", "deviceIDStrategy"}
    | {"nvidiaDriverRoot", "gfd", "mps", "runtimeClassName"}
)


def is_plugin_daemonset(value: object) -> bool:
    """Return whether an object is the DaemonSet of the device plugin, of GFD or of the plugin's MPS daemon."""
    return text_at(value, "kind") == "DaemonSet" and any(
        "k8s-device-plugin" in text_at(each, "image") or "gpu-feature-discovery" in text_at(each, "image")
        for each in list_at(value, "spec", "template", "spec", "containers")
    )


def translate_daemonset(document: InputDocument, gathered: Gathered) -> tuple[FieldNote, ...]:
    """Translate settings of the device plugin in its container's environment and arguments."""
    ledger = Ledger(document)
    base = ("spec", "template", "spec")
    for index, container in enumerate(list_at(document.value, *base, "containers")):
        path = (*base, "containers", index)
        if "env" in mapping_at(container):
            environment(at(container, "env"), (*path, "env"), ledger, gathered)
        arguments(container, path, ledger, gathered)
    ledger.changed(
        ("kind",),
        "keep it off nodes of this driver; remove it when all nodes are migrated",
    )
    return ledger.close(LOST, _GONE)
