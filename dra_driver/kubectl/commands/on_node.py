"""``--on-node`` of ``kubectl dra doctor``: looks at the node itself, in a pod."""

import argparse
import sys
from typing import TYPE_CHECKING, Any

from dra_driver.core.errors import ConfigurationError, DraError
from dra_driver.core.signals import interrupt_once
from dra_driver.core.text import printable
from dra_driver.kubectl.commands.kubeconfig import kubeconfig_of

if TYPE_CHECKING:
    from dra_driver.diagnose.doctor.cluster import DoctorScope
    from dra_driver.diagnose.doctor.on_node import PodListApi
    from dra_driver.diagnose.doctor.report import DoctorReport


def add_on_node_flags(parser: argparse.ArgumentParser) -> None:
    """The flags. The driver's namespace is a flag of the command itself."""
    group = parser.add_argument_group(
        "on the node itself",
        "with node/NAME or pod/NAME: run `dra-driver doctor` in a pod with the DaemonSet's image and privileges, the "
        "host's folders read-only, and the container runtime's socket. Needs the rights to get daemonsets.apps, and to "
        "create, get and delete pods and get pods/log in the driver's namespace. The pod is deleted at the end",
    )
    group.add_argument("--on-node", action="store_true", help="look at the node itself, too")
    add_pod_flags(group)
    group.add_argument(
        "--cri-socket", metavar="FILE", help="the container runtime's socket on the host (default: search for it)"
    )


def add_pod_flags(parser: Any) -> None:
    """How the pod is made, and whether it stays."""
    parser.add_argument(
        "--daemonset", metavar="NAME", default="dra-driver-node", help="of the node process (default: dra-driver-node)"
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the pod")


def check_on_node(args: argparse.Namespace, scope: "DoctorScope") -> None:
    """Raises ConfigurationError where there is no node to look at."""
    if args.on_node and (args.snapshot or scope.kind not in ("node", "pod")):
        raise ConfigurationError("--on-node needs a cluster and node/NAME or pod/NAME")


def report_of_node(args: argparse.Namespace, scope: "DoctorScope") -> "DoctorReport":
    """What the node of the scope says of itself; with an unknown finding where it cannot be asked.

    Raises ConfigurationError where node, pod or DaemonSet do not exist.
    """
    from dra_driver.diagnose.doctor.on_node import unanswered
    from dra_driver.kubectl.commands.source import client

    api = client(kubeconfig_of(args))
    interrupt_once()  # so that the pod is deleted
    try:
        return _visited(args, scope, api)
    except ConfigurationError:
        raise
    except DraError as error:
        return unanswered(f"{scope.kind}/{scope.name}", str(error))


def _visited(args: argparse.Namespace, scope: "DoctorScope", api: "PodListApi") -> "DoctorReport":
    from dra_driver.diagnose.doctor.on_node import node_of_pod, visit_node
    from dra_driver.kube.pod_run import PodPlace

    is_pod = scope.kind == "pod"
    place = PodPlace(
        command="kubectl dra doctor --on-node",
        node=node_of_pod(api, scope.namespace, scope.name) if is_pod else scope.name,
        namespace=args.driver_namespace,
        daemon_set=args.daemonset,
        keep=args.keep,
        namespace_flag="--driver-namespace",
    )
    pods = (f"{scope.namespace}/{scope.name}",) if is_pod else ()
    return visit_node(api, place, _say, pods=pods, cri_socket=args.cri_socket)


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
