"""The kubectl plugin ``kubectl dra``: commands that need access to a cluster, not to a node."""

import sys
from collections.abc import Sequence
from typing import Final

from dra_driver.core.command_line.main import execute

ABOUT: Final = "Inspect and drain devices that are allocated by Dynamic Resource Allocation."
_HERE: Final = "dra_driver.kubectl.commands"
SUBCOMMANDS: Final = {
    "devices": (f"{_HERE}.devices", "list published devices and the claims that hold them"),
    "claims": (f"{_HERE}.claims", "list claims, their devices and their pods"),
    "capacity": (f"{_HERE}.capacity", "count free devices and the claims that would still fit"),
    "topology": (f"{_HERE}.topology", "show which GPUs are linked or near each other"),
    "ui": (f"{_HERE}.ui", "show GPUs, claims and waiting pods in a browser"),
    "usage": (f"{_HERE}.usage", "show what claims use of their GPUs"),
    "idle": (f"{_HERE}.idle", "list claims that are idle or larger than they need to be"),
    "quota": (f"{_HERE}.quota", "compare quotas of namespaces with what they have and use"),
    "classes": (f"{_HERE}.classes", "keep device classes for MIG profiles and shared GPUs"),
    "policy": (f"{_HERE}.policy_explain", "explain which policy gives which field of a GPU"),
    "lint": (f"{_HERE}.lint", "check manifests, device classes and claims"),
    "migrate": (f"{_HERE}.migrate", "translate set-ups of the device plugin and the GPU Operator"),
    "explain": (f"{_HERE}.explain", "explain why a pod or claim has no devices"),
    "doctor": (f"{_HERE}.doctor", "say which layer between GPUs and containers is broken"),
    "snapshot": (f"{_HERE}.snapshot", "write the cluster's state to a file for offline use"),
    "support-bundle": (f"{_HERE}.support_bundle", "write all that help from others needs to one file"),
    "drain": (f"{_HERE}.drain", "free a node's GPUs for maintenance"),
    "undrain": (f"{_HERE}.undrain", "give a node's drained GPUs back"),
    "smoke": (f"{_HERE}.smoke", "run a pod for each kind of device and check what it sees"),
    "hardware-check": (f"{_HERE}.node_hardware_check", "compare a node's GPUs with what the driver assumes"),
    "version": ("dra_driver.core.command_line.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    return execute("kubectl dra", ABOUT, SUBCOMMANDS, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
