"""Flags that select the cluster and namespace of a command: a kubeconfig or a state file."""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dra_driver.core.errors import ConfigurationError
from dra_driver.core.text import printable
from dra_driver.kube.kubeconfig import Kubeconfig
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.commands.kubeconfig import add_kubeconfig, kubeconfig_of
from dra_driver.kubectl.commands.progress import Progress


def add_source(
    parser: argparse.ArgumentParser, namespace_help: str = "default: that of the kubeconfig's context, else default"
) -> None:
    """Adds ``--kubeconfig``, ``--context``, ``--cluster-state`` and, unless its help is empty, ``-n``."""
    if namespace_help:
        parser.add_argument("-n", "--namespace", metavar="NAME", help=namespace_help)
    source = parser.add_mutually_exclusive_group()
    add_kubeconfig(parser, source)
    source.add_argument(
        "--cluster-state",
        metavar="FILE",
        help="offline: a file of `kubectl dra snapshot` or `kubectl dra support-bundle`, or objects as "
        "`kubectl get -o yaml` prints them",
    )


def state_of(args: argparse.Namespace, *, namespace: str | None = None, only: Sequence[str] = ()) -> ClusterState:
    """Returns the state that the flags select; of a live cluster ``only`` these fields.

    Raises ConfigurationError and KubernetesApiError.
    """
    # The process runs for a few seconds and keeps all objects to its end: garbage collection would take a third of it.
    gc.disable()
    if args.cluster_state:
        return state_in_file(args.cluster_state)
    return live_state(kubeconfig_of(args), namespace, only=only)


def live_state(kubeconfig: Kubeconfig, namespace: str | None, *, only: Sequence[str] = ()) -> ClusterState:
    """The state of the cluster; on a terminal with what is being read. Raises as `state_of`."""
    from dra_driver.kube.state import read_cluster

    with Progress("reading the cluster") as progress:
        return read_cluster(client(kubeconfig), namespace, only=only, told=lambda kind: progress.say(f"reading {kind}"))


def state_in_file(path: str) -> ClusterState:
    """The state in a file of `kubectl dra snapshot` or `kubectl dra support-bundle`. Raises ConfigurationError."""
    from dra_driver.diagnose.doctor import bundle
    from dra_driver.kube.state_file import load

    with Progress(f"reading {path}"):
        return bundle.read(path).state() if bundle.is_bundle(path) else load(path)


def tell_gaps(state: ClusterState) -> None:
    """Says on standard error what could not be read: a table that lacks it would look complete."""
    for gap in state.gaps:
        print(f"not read: {printable(gap)}", file=sys.stderr)


def client(kubeconfig: Kubeconfig) -> Any:
    """Returns a client of the API server; the library logs errors only, so its log does not mix with the output."""
    from dra_driver.core.telemetry import logs
    from dra_driver.kube.connection import Connection
    from dra_driver.kube.rest import RestClient

    logs.configure("text", "error")
    return RestClient(Connection.load(kubeconfig.path, context=kubeconfig.context))


def split_target(target: str) -> tuple[str, str]:
    """Splits ``pod/train`` into (pod, train). A name without a kind is a pod. Raises ConfigurationError."""
    kinds = {"pod": "pod", "pods": "pod", "po": "pod", "claim": "claim", "resourceclaim": "claim"}
    kinds["resourceclaims"] = "claim"
    kind, slash, name = target.partition("/")
    if not slash:
        kind, name = "pod", target
    if kind.lower() not in kinds or not name or "/" in name:
        raise ConfigurationError(f"{target[:80]!r}: expected pod/NAME or claim/NAME")
    return kinds[kind.lower()], name


def text_of(path: str) -> str | None:
    """Returns the text of standard input for ``-``, of limited size; None for a file, which its reader opens."""
    if path != "-":
        return None
    text = sys.stdin.read(_MAX_STDIN + 1)
    if len(text) > _MAX_STDIN:
        raise ConfigurationError(f"standard input has more than {_MAX_STDIN >> 20} MiB")
    return text


_MAX_STDIN = 16 << 20


def wants_colour() -> bool:
    """Whether output is a terminal and NO_COLOR (https://no-color.org) is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def files_in(path: str) -> list[Path]:
    """Returns the manifests of a file, a folder (without subfolders) or standard input. Raises ConfigurationError."""
    place = Path(path)
    if path == "-" or not place.is_dir():
        return [place]
    found = sorted(item for item in place.iterdir() if item.suffix in (".yaml", ".yml", ".json") and item.is_file())
    if not found:
        raise ConfigurationError(f"no .yaml, .yml or .json file in {place}")
    return found
