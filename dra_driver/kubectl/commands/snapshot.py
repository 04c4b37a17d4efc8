"""``kubectl dra snapshot``: write the cluster's state to a file, without secrets (see ``kube/state_parts.py``)."""

import argparse
import sys
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from dra_driver.kube.state import FILE_KINDS, GPU_NODES, QUOTAS, read_kind, shareable
from dra_driver.kube.state_file import dump, text_of
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of, live_state

DESCRIPTION: Final = """\
Write the cluster's nodes, pods, claims, classes, devices, GpuNodes and quotas to a file for `--cluster-state`. Omits
environment, arguments, commands, volumes and annotations of pods, and opaque parameters of drivers other than
`--driver`. Names and labels are kept, also the names of programs that use GPUs without a claim.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        metavar="FILE",
        help="output file; YAML if it ends in .yaml, else JSON; - for standard output",
    )
    add_kubeconfig(parser)
    parser.add_argument(
        "-n", "--namespace", metavar="NAME", help="templates, events and volume claims of this namespace only"
    )
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")


def run(args: argparse.Namespace) -> int:
    kubeconfig = kubeconfig_of(args)
    state, api, gaps = live_state(kubeconfig, args.namespace), client(kubeconfig), list[str]()
    more = {kind.field: read_kind(api, kind, args.namespace, gaps) for kind in (GPU_NODES, QUOTAS)}
    state = replace(shareable(state, (args.driver,)), **more)
    for gap in (*state.gaps, *gaps):
        print(f"skipped: {gap}", file=sys.stderr)
    if args.file == "-":
        print(text_of(state, as_yaml=True), end="")
        return 0
    dump(state, Path(args.file))
    counts = ", ".join(f"{len(items)} {kind.resource}" for kind in FILE_KINDS if (items := getattr(state, kind.field)))
    print(f"{args.file}: {counts}")
    return 0
