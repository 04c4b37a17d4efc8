"""The kubectl plugin ``kubectl dra``: commands that need access to a cluster, not to a node."""

import sys
from collections.abc import Sequence
from typing import Final

from dra_driver.core.command_line.main import execute

ABOUT: Final = "Inspect and drain devices that are allocated by Dynamic Resource Allocation."
SUBCOMMANDS: Final = {
    "devices": ("dra_driver.kubectl.commands.devices", "list published devices and the claims that hold them"),
    "claims": ("dra_driver.kubectl.commands.claims", "list claims, their devices and their pods"),
    "capacity": ("dra_driver.kubectl.commands.capacity", "count free devices and the claims that would still fit"),
    "topology": ("dra_driver.kubectl.commands.topology", "show which GPUs are linked or near each other"),
    "ui": ("dra_driver.kubectl.commands.ui", "show GPUs, claims and waiting pods in a browser"),
    "usage": ("dra_driver.kubectl.commands.usage", "show what claims use of their GPUs"),
    "idle": ("dra_driver.kubectl.commands.idle", "list claims that are idle or larger than they need to be"),
    "quota": ("dra_driver.kubectl.commands.quota", "compare quotas of namespaces with what they have and use"),
    "classes": ("dra_driver.kubectl.commands.classes", "keep device classes for MIG profiles and shared GPUs"),
    "policy": ("dra_driver.kubectl.commands.policy_explain", "explain which policy gives which field of a GPU"),
    "lint": ("dra_driver.kubectl.commands.lint", "check manifests, device classes and claims"),
    "migrate": ("dra_driver.kubectl.commands.migrate", "translate set-ups of the device plugin and the GPU Operator"),
    "explain": ("dra_driver.kubectl.commands.explain", "explain why a pod or claim has no devices"),
    "doctor": ("dra_driver.kubectl.commands.doctor", "say which layer between GPUs and containers is broken"),
    "snapshot": ("dra_driver.kubectl.commands.snapshot", "write the cluster's state to a file for offline use"),
    "support-bundle": (
        "dra_driver.kubectl.commands.support_bundle",
        "write all that help from others needs to one file",
    ),
    "drain": ("dra_driver.kubectl.commands.drain", "free a node's GPUs for maintenance"),
    "undrain": ("dra_driver.kubectl.commands.undrain", "give a node's drained GPUs back"),
    "smoke": ("dra_driver.kubectl.commands.smoke", "run a pod for each kind of device and check what it sees"),
    "hardware-check": (
        "dra_driver.kubectl.commands.node_hardware_check",
        "compare a node's GPUs with what the driver assumes",
    ),
    "version": ("dra_driver.core.command_line.version", "print the version"),
}


def main(argv: Sequence[str] | None = None) -> int:
    return execute("kubectl dra", ABOUT, SUBCOMMANDS, list(sys.argv[1:] if argv is None else argv))


if __name__ == "__main__":
    sys.exit(main())
