"""Environment variables and arguments of the device plugin's container, which stand for flags of its config. Pure.

Source: NVIDIA/k8s-device-plugin cmd/nvidia-device-plugin/main.go, v0.20: flag ``--mig-strategy`` and MIG_STRATEGY.
"""

from typing import Any, Final

from dra_driver.kubectl.migrate.gathered import Gathered
from dra_driver.kubectl.migrate.input import Path, at, list_at
from dra_driver.kubectl.migrate.ledger import Ledger
from dra_driver.kubectl.migrate.plugin_config import FLAGS, MIG_STRATEGIES, note_mig_strategy
from dra_driver.kubectl.migrate.rules import CARRIED, CHANGED, LOST, Rule, use

_NAMES: Final = {
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
_OTHERS: Final[dict[str, Rule]] = {
    "CONFIG_FILE": (CARRIED, "read where its ConfigMap is among the inputs"),
    "IMEX_CHANNEL_IDS": (LOST, "this driver gives no IMEX channels; NVIDIA's DRA driver does, for ComputeDomains"),
    "IMEX_REQUIRED": (CARRIED, "concerns IMEX channels alone"),
    "NVIDIA_MIG_MONITOR_DEVICES": (CHANGED, "the node process reads MIG devices through the host's /dev"),
    "NVIDIA_VISIBLE_DEVICES": (CHANGED, "the node process sees every GPU of its node"),
    "NVIDIA_DRIVER_CAPABILITIES": (CHANGED, "the node process loads the driver's libraries from the host"),
}
_UNKNOWN: Final[Rule] = (LOST, "a setting of the device plugin that this driver does not have")


def environment(value: Any, path: Path, ledger: Ledger, gathered: Gathered) -> None:
    """Each variable of a container's list ``env``."""
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
    """One setting by the name of its environment variable."""
    if name == "MIG_STRATEGY" and value in MIG_STRATEGIES:
        gathered.mig_strategy = str(value)
        note_mig_strategy(str(value), path, ledger)
        return
    rule = FLAGS[_NAMES[name]] if name in _NAMES else _OTHERS.get(name, _UNKNOWN)
    use(rule, value, path, ledger, gathered)
