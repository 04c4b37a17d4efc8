"""``dra-driver doctor``: report the broken layer between a GPU and a container on this node."""

import argparse
import json
import logging
import sys
from typing import Final

from dra_driver.core.errors import ConfigurationError
from dra_driver.diagnose.node_settings import add_flags, load_settings

DESCRIPTION: Final = """\
Check this node from the kernel's driver to the containers and name the first broken layer: kubelet, NVIDIA driver and
its root, kernel module, NVML, UVM, device nodes, CDI hook, container runtime and its CDI setting (by CRI), sockets,
registration, device plugins, the driver's records, CDI files. It changes nothing, needs no API server, and works
on a node without an installation. Some checks need root.
"""
EPILOG: Final = """\
examples:
  dra-driver doctor                              on the node, as root
  dra-driver doctor --pod default/train-0        also the devices in the containers of a pod
  dra-driver doctor --output json | jq .firstBroken
  kubectl dra doctor node/NAME --on-node         the same from a workstation, in a pod

exit status: 0 nothing is broken, 1 something is, 2 wrong usage, or a check got no answer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--pod",
        metavar="NAMESPACE/NAME",
        action="append",
        default=[],
        help="check its containers, too; may be repeated",
    )
    parser.add_argument("--host", metavar="DIR", help="the mount point of the host's / (default: that of --host-root)")
    parser.add_argument(
        "--cri-socket", metavar="FILE", help="the container runtime's socket on the host (default: search for it)"
    )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="format (default: text)")
    parser.add_argument("--verbose", action="store_true", help="show passed checks, too")
    add_flags(parser)


def run(args: argparse.Namespace) -> int:
    from dra_driver.core.document import to_wire
    from dra_driver.diagnose.doctor.node import examine
    from dra_driver.diagnose.doctor.node_view import HostView
    from dra_driver.diagnose.doctor.report import document_of, render

    logging.basicConfig(level=logging.CRITICAL, format="%(message)s", stream=sys.stderr)
    settings, places = load_settings(args)
    pods = tuple(_pod(each) for each in args.pod)
    view = HostView(settings=settings, host=args.host or settings.host_root, cri_socket=args.cri_socket)
    report = examine(settings.node_name, view, pods=pods, places=places)
    if args.output == "json":
        print(json.dumps(to_wire(document_of(report))))
    else:
        print(render(report, verbose=args.verbose), end="")
    return report.exit_status


def _pod(text: str) -> str:
    namespace, slash, name = text.partition("/")
    if not (namespace and slash and name) or "/" in name:
        raise ConfigurationError(f"--pod {text!r}: expected NAMESPACE/NAME, such as default/train-0")
    return text
