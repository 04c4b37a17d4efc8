"""The kubectl plugin ``kubectl dra``: commands that access a cluster, not a node."""

import sys
from collections.abc import Sequence
from typing import Final

from dra_driver.core.command_line.main import execute

ABOUT: Final = "Inspect and drain devices that are allocated by Dynamic Resource Allocation."
_HERE: Final = "dra_driver.kubectl.commands"
SUBCOMMANDS: Final = {
    "devices": (f"{_HERE}.devices", "list published devices and their claims"),
    "claims": (f"{_HERE}.claims", "list claims, their devices and their pods"),
    "capacity": (f"{_HERE}.capacity", "count free devices and the claims that fit"),
    "topology": (f"{_HERE}.topology", "show which GPUs are linked or near each other"),
    "ui": (f"{_HERE}.ui", "show GPUs, claims and waiting pods in a browser"),
    "usage": (f"{_HERE}.usage", "show GPU use of claims"),
    "idle": (f"{_HERE}.idle", "list idle and oversized claims"),
    "quota": (f"{_HERE}.quota", "compare quotas with the GPUs that namespaces use"),
    "classes": (f"{_HERE}.classes", "maintain device classes for MIG profiles and shared GPUs"),
    "policy": (f"{_HERE}.policy_explain", "explain which policy sets each field of a GPU"),
    "lint": (f"{_HERE}.lint", "check manifests, device classes and claims"),
    "migrate": (f"{_HERE}.migrate", "translate device plugin and GPU Operator configurations"),
    "explain": (f"{_HERE}.explain", "explain why a pod or claim has no devices"),
    "doctor": (f"{_HERE}.doctor", "find the failing layer between GPUs and containers"),
    "kueue": (f"{_HERE}.kueue", "print Kueue's configuration and queues for the published devices"),
    "node-template": (f"{_HERE}.node_template", "print the ResourceSlices that a kind of node publishes"),
    "snapshot": (f"{_HERE}.snapshot", "write the cluster's state to a file for offline use"),
    "support-bundle": (f"{_HERE}.support_bundle", "write a support bundle for a bug report"),
    "drain": (f"{_HERE}.drain", "free a node's GPUs, or one, for maintenance"),
    "undrain": (f"{_HERE}.undrain", "undrain a node's GPUs"),
    "gpu": (f"{_HERE}.gpu", "switch a GPU's MIG mode, or reset it"),
    "smoke": (f"{_HERE}.smoke", "test each kind of device with a pod"),
    "hardware-check": (f"{_HERE}.node_hardware_check", "compare a node's GPUs with the driver's assumptions"),
    "top": (f"{_HERE}.top", "show the devices in use now, the busiest first"),
    "version": ("dra_driver.core.command_line.version", "print the version"),
}
GROUPS: Final = {
    "Look": ("devices", "claims", "usage", "top", "idle", "quota", "capacity", "topology", "ui"),
    "Explain": ("explain", "doctor", "lint", "policy", "snapshot", "support-bundle"),
    "Act": ("drain", "undrain", "gpu", "classes", "kueue", "migrate", "smoke", "hardware-check"),
    "Try (`dra-driver sim up` runs a cluster with simulated GPUs on this machine)": ("node-template", "version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    return execute("kubectl dra", ABOUT, SUBCOMMANDS, list(sys.argv[1:] if argv is None else argv), GROUPS)


if __name__ == "__main__":
    sys.exit(main())
