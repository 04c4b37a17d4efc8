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
_IGNORED: Final = "the device plugin ignores it and logs a warning, so nothing changes"
NAMED: Final = unless_empty((CARRIED, "read where this ConfigMap is among the inputs (--from-cluster reads it)"))
INLINE: Final = unless_empty((CARRIED, "read as if it were the ConfigMap"))
SURGE: Final[Rule] = (CHANGED, "the new pod of a node registers before the old one stops (maxSurge: 1)")
TOLERATED: Final[Rule] = (CARRIED, "the chart's DaemonSets tolerate every taint")
MPS_FOLDER: Final = (CHANGED, "the MPS host keeps its folders in /run/gpu.nvidia.com-mps (its setting MPS_RUN_DIR)")
NOT_USED: Final[Rule] = (CARRIED, "the chart does not use it")
_HOST: Final = (None, "", "/")
_GFD: Final = "GPU Feature Discovery's own; it may go on beside this driver"


def _driver_root(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    to_value("driver", "root")(value, path, ledger, gathered)
    gathered.set_value(("driver", "hasDev"), True)


def _dev_root(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if value == gathered.values.get(("driver", "root")):
        ledger.carried(path, "the driver's folder has device nodes: driver.hasDev of the chart's values")
    else:
        ledger.lost(path, "device nodes are in the host's /dev or in the driver's folder; another folder cannot be set")


_IMEX: Final[Rule] = (LOST, "this driver gives no IMEX channels; NVIDIA's DRA driver does, for ComputeDomains")
FLAGS: Final[Rules] = {
    "failOnInitError": (CHANGED, "the node process never ends for lack of a driver: it waits, and says so in /readyz"),
    "mpsRoot": MPS_FOLDER,
    "nvidiaDriverRoot": when(_HOST, (CARRIED, "the NVIDIA driver is searched below the host's /"), _driver_root),
    "nvidiaDevRoot": when(_HOST, (CARRIED, "device nodes are those of the host's /dev"), _dev_root),
    "gdrcopyEnabled": switch((LOST, "GDRCopy's device is not given to containers")),
    "gdsEnabled": switch((LOST, "GPUDirect Storage's devices are not given to containers")),
    "mofedEnabled": switch((LOST, "the devices of MOFED are not given to containers")),
    "useNodeFeatureAPI": (LOST, _GFD),
    "deviceDiscoveryStrategy": when(
        ("tegra",),
        (LOST, "Tegra boards are not supported: they have no NVML with the calls that this driver needs"),
        (CARRIED, "GPUs are found through NVML"),
    ),
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
    "imex.channelIDs": when((None, []), (CARRIED, "none: there is nothing to carry over"), _IMEX),
    "imex.required": (CARRIED, "concerns IMEX channels alone"),
}


def is_plugin_config(value: object) -> bool:
    keys = set(mapping_at(value))
    return not {"kind", "mig-configs"} & keys and (bool({"flags", "sharing", "imex"} & keys) or keys == {"version"})


def translate(document: InputDocument, name: str, gathered: Gathered) -> tuple[MigrationNote, ...]:
    """Add the content of config ``name`` to ``gathered``. Raises ConfigurationError."""
    value = mapping_at(document.value)
    version = value.get("version", "v1")
    if version != "v1":
        raise ConfigurationError(f"{document.place}: version {str(version)[:40]!r} of the device plugin's config is not"
                                 " known; expected v1")  # fmt: skip
    ledger = Ledger(document)
    strategy, replicated, refused = _sharing(document, ledger, gathered, name)
    mig = at(value, "flags", "migStrategy")
    if mig is not None:
        if mig not in MIG_STRATEGIES:
            raise document.error(("flags", "migStrategy"), f"expected none, single or mixed, got {str(mig)[:40]!r}")
        _note_mig_strategy(mig, ("flags", "migStrategy"), ledger)
    # Custom resource names: a class of its own for each pattern of product names.
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
        ledger.carried(path, "claims choose the profile by its DeviceClass")
    else:
        ledger.changed(path, "nvidia.com/gpu is always a whole GPU here; pods whose labels say that they had a MIG"
                             " device get one by its profile")  # fmt: skip


def _qualified(resource: str) -> str:
    return resource if resource.startswith("nvidia.com/") else f"nvidia.com/{resource}"


def _sharing(
    document: InputDocument, ledger: Ledger, gathered: Gathered, name: str
) -> tuple[str, list[ReplicatedResource], bool]:
    """Return strategy, replicated resources, and whether several replicas are refused. MPS wins, as in sharing.go."""
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
        with_suffix = "pods that ask for the resource with .shared get a share"
        ledger.carried((*path, "renameByDefault"), with_suffix if renames else "shares keep the resource's name")
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
        ledger.lost((*path, "devices"), f"{_IGNORED}; select.minors or select.uuids of a GpuPolicy do it")
    if resource != GPU:
        text = "this driver shares whole GPUs among claims and no MIG devices"
        ledger.lost((*path, "name"), text)
        ledger.lost((*path, "replicas"), text)
        return ReplicatedResource(name=resource, replicas=0, renamed=renamed)
    most = min(replicas, MOST_REPLICAS)
    ledger.carried((*path, "name"), f"became policy {policy_name(name)}: whole GPUs are shared by {strategy}")
    text = f"became sharing.maxShares {most} of policy {policy_name(name)}"
    if strategy == "MPS":
        percent = share_percent(most)
        few = f". Compute has whole percents: {ALL_PERCENT} such claims fit" if most > ALL_PERCENT else ""
        ledger.changed(
            (*path, "replicas"),
            f"{text}. Each replica had 1/{replicas} of memory and compute: translated workloads request it, and a claim"
            f" that requests no compute gets {percent} percent; one that requests no memory gets all of it{few}",
        )
    else:
        limit = ", the most that a policy allows" if most != replicas else ""
        ledger.note(
            CHANGED if limit else CARRIED,
            (*path, "replicas"),
            f"{text}{limit}. Replicas had no limit of memory, and time-sliced shares have none either",
        )
    return ReplicatedResource(name=resource, replicas=most, renamed=renamed)


def policy_name(config: str) -> str:
    return dns_name(f"device-plugin-{config}" if config else "device-plugin")


def dns_name(text: str) -> str:
    """Return ``text`` as a DNS label of at most 63 characters."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in text.lower())
    return "-".join(part for part in kept.split("-") if part)[:63].rstrip("-") or "policy"


# --- Environment variables and arguments of the device plugin's container, which stand for flags of its config.
#
# Source: NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin/main.go, v0.20: flag ``--mig-strategy`` and MIG_STRATEGY.

_UNKNOWN: Final[Rule] = (LOST, "a setting of the device plugin that this driver does not have")
_WORD: Final = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_VARIABLES: Final[Rules] = {  # failOnInitError: FAIL_ON_INIT_ERROR
    **{_WORD.sub("_", key.rpartition(".")[2]).upper(): rule for key, rule in FLAGS.items() if key != "gfd"},
    "NVIDIA_CDI_HOOK_PATH": FLAGS["plugin.nvidiaCTKPath"],
    "MIG_STRATEGY": mig_strategy(_UNKNOWN),
    "CONFIG_FILE": (CARRIED, "read where its ConfigMap is among the inputs"),
    "IMEX_CHANNEL_IDS": _IMEX,
    "IMEX_REQUIRED": (CARRIED, "concerns IMEX channels alone"),
    "NVIDIA_MIG_MONITOR_DEVICES": (CHANGED, "the node process reads MIG devices through the host's /dev"),
    "NVIDIA_VISIBLE_DEVICES": (CHANGED, "the node process sees every GPU of its node"),
    "NVIDIA_DRIVER_CAPABILITIES": (CHANGED, "the node process loads the driver's libraries from the host"),
}


def environment(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    if not value:
        ledger.carried(path, "empty: there is nothing to carry over")
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

_HELM: Final = "of the device plugin's release, which goes; this chart has fixed names in a namespace of your choice"
OVERRIDES: Final = ("nameOverride", "fullnameOverride", "namespaceOverride", "selectorLabelsOverride")
NFD: Final[Rule] = (CARRIED, "Node Feature Discovery goes on; nodes.gpuLabels of the chart accept its labels")
_GONE: Final = "the device plugin's DaemonSet goes; the chart's takes its place"
_PRESENT: Final = frozenset({"feature.node.kubernetes.io/pci-10de.present", "nvidia.com/gpu.present",
                             "feature.node.kubernetes.io/cpu-model.vendor_id"})  # fmt: skip


def _default(value: object, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    gathered.plugin_default = str(value or "")
    ledger.carried(path, "its policy is for every node without a label that chooses another one" if value else "empty")


def _affinity(value: object, path: Path, ledger: Ledger, _gathered: Gathered) -> None:
    if _keys(value) <= _PRESENT:
        ledger.carried(path, "nodes.gpuLabels of the chart are these labels of nodes with GPUs")
    else:
        ledger.lost(path, "write its expressions into nodes.expressions of the chart's values, which all have to hold")


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
    "config.fallbackStrategies": (CHANGED, "a node without a label gets the default, or the config that is alone"),
    "compatWithCPUManager": (CARRIED, "the kubelet's CPU manager does not change the devices of claims"),
    "migStrategy": mig_strategy((CARRIED, "empty: the default")),
    **{name: unless_empty(FLAGS[name]) for name in ("failOnInitError", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled")},
    **{name: FLAGS[name] for name in ("nvidiaDriverRoot", "deviceDiscoveryStrategy")},
    **{name: unless_empty(FLAGS[f"plugin.{name}"]) for name in ("deviceListStrategy", "deviceIDStrategy")},
    **dict.fromkeys(OVERRIDES, unless_empty((LOST, _HELM))),
    "allowDefaultNamespace": (LOST, _HELM),
    "imagePullSecrets": unless_empty(
        (LOST, "of the registry of the device plugin's image; imagePullSecrets of the chart are for its own image")
    ),
    "image": (LOST, "the device plugin's image, which this driver does not use"),
    "updateStrategy": SURGE,
    "podAnnotations": to_value("node", "podAnnotations"),
    "podSecurityContext": unless_empty((LOST, "the security context of the chart's pods cannot be set")),
    "securityContext": unless_empty((LOST, "node.privileged of the chart is the choice; see the preset unprivileged")),
    "resources": unless_empty((LOST, "the chart's own are measured; node.resources changes them")),
    "nodeSelector.*": to_value("nodes", "selector", "{key}"),
    "nodeSelector": NOTHING,
    "affinity": _affinity,
    "tolerations": TOLERATED,
    "priorityClassName": to_value("node", "priorityClassName"),
    "runtimeClassName": unless_empty(
        (CHANGED, "not needed: the node process reads the driver's libraries on the host")
    ),
    "devicePlugin.enabled": switch(
        (CHANGED, "keep it off the nodes that are given to this driver, and uninstall it at the end"), OFF
    ),
    "devicePlugin.enableHostNetwork": switch((LOST, "the node process is in no host network")),
    "gfd": (LOST, _GFD),
    "nfd": NFD,
    "mps.root": MPS_FOLDER,
    "mps.enableHostPID": (CARRIED, "the MPS host has the host's process ids"),
    "mps.enableHostNetwork": switch((LOST, "the MPS host is in no host network")),
    "cdi.nvidiaHookPath": _hook,
    "cdi.featureFlags": unless_empty((LOST, "features of NVIDIA's CDI generator, which this driver does not use")),
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


def translate_daemonset(document: InputDocument, gathered: Gathered) -> tuple[MigrationNote, ...]:
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
        "remove it when every node is given to this driver; before, keep it off the nodes that are given to it",
    )
    return ledger.close(LOST, _GONE)
