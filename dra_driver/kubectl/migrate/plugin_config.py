"""The config file of NVIDIA's device plugin (api/config/v1, version v1). Pure.

Source: NVIDIA/k8s-device-plugin api/config/v1 (config.go, flags.go, sharing.go, replicas.go, resources.go), v0.20. The
plugin ignores ``resources``, ``rename`` and ``devices`` with a warning (DisableResourceNamingInConfig).
"""

from collections.abc import Mapping
from typing import Any, Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.kubectl.migrate.gathered import Gathered, PluginConfig, ReplicatedResource
from dra_driver.kubectl.migrate.input import InputDocument, Path, at, list_at, mapping_at, path_text
from dra_driver.kubectl.migrate.ledger import Ledger, MigrationNote
from dra_driver.kubectl.migrate.resources import GPU, SHARED
from dra_driver.kubectl.migrate.rules import CARRIED, CHANGED, LOST, Rules, apply, switch, to_value, unless_empty

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
    """What becomes of a MIG strategy."""
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
    """The name of the policy that a config becomes."""
    return dns_name(f"device-plugin-{config}" if config else "device-plugin")


def dns_name(text: str) -> str:
    """``text`` as a DNS label of at most 63 characters."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char == "-") else "-" for char in text.lower())
    return "-".join(part for part in kept.split("-") if part)[:63].rstrip("-") or "policy"
