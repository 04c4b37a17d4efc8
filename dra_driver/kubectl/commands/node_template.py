"""``kubectl dra node-template``: print the ResourceSlices that a node with given GPUs and policies publishes."""

import argparse
import json
import sys
from typing import Final

import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.diagnose.policy_check import policy_files
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.node.policy import examine, survey
from dra_driver.node.process.operation_rules import wanted_by_policy
from dra_driver.node.slices import (
    ApiServerFeatures,
    PoolIdentity,
    SliceBody,
    build_devices,
    compute_writes,
    pool_name,
    split,
)

DESCRIPTION: Final = """\
Print the ResourceSlices that a node with these GPUs publishes to Kubernetes 1.36, built by the node process's code.
Autoscalers and simulators need them before such a node exists. The output assumes that the node has applied the
MIG mode of the policies. UUIDs, PCI addresses and NVLink islands are invented.
"""
EPILOG: Final = "exit status: 0 printed, 1 the policies have problems, 2 wrong usage."
_NAME: Final = "template"
V1_36: Final = ApiServerFeatures(counters=True, taints=True, taints_1_35=True, multi_allocation=True)
"""The features of Kubernetes 1.36 with its default feature gates."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "gpus", metavar="GPUS", help="such as 8xh100-sxm5-80gb, or a YAML file (docs/simulated-gpus.md)"
    )
    parser.add_argument(
        "--policy", metavar="PATH", action="append", default=[], help="GpuPolicy file or directory; repeatable"
    )
    parser.add_argument("--node", metavar="NAME", default=_NAME, help=f"name of the node (default: {_NAME})")
    parser.add_argument("--driver", metavar="NAME", default="gpu.nvidia.com", help="default: gpu.nvidia.com")
    parser.add_argument("-o", "--output", choices=("yaml", "json"), default="yaml", help="default: yaml")


def run(args: argparse.Namespace) -> int:
    """Print the resource slices. Raises ConfigurationError for unknown GPUs, unreadable files and invalid names."""
    identity = PoolIdentity(driver=args.driver, node=args.node, node_uid="", pool=pool_name(args.node, args.driver))
    found, wrong = examine(list(policy_files(args.policy)))
    snapshot = SimulatedBackend.from_spec(args.gpus, args.node).snapshot()
    terms, conflicts = survey(found.policies, snapshot, (), args.node)
    for problem in (*wrong, *conflicts):
        print(problem, file=sys.stderr)
    if wrong or conflicts:
        return 1
    built = build_devices(in_wanted_mig_mode(snapshot, terms), terms, V1_36)
    for gpu in built.left_out:
        print(f"{gpu.label}: {gpu.reason}", file=sys.stderr)
    slices = [resource_slice(body) for body in compute_writes(split(built), (), identity).creates]
    if args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": slices}, indent=2))
    else:
        print(yaml.safe_dump_all(slices, sort_keys=False), end="")
    return 0


def in_wanted_mig_mode(snapshot: Snapshot, terms: Terms) -> Snapshot:
    """The node after the operations that its policies require."""
    wanted = {gpu.uuid: wanted_by_policy(gpu, terms_of(terms, gpu.uuid), None) for gpu in snapshot.gpus}
    modes = {uuid: operation.mig_mode for uuid, operation in wanted.items() if operation is not None}
    gpus = (replace(gpu, mig_enabled=modes[gpu.uuid]) if gpu.uuid in modes else gpu for gpu in snapshot.gpus)
    return replace(snapshot, gpus=tuple(gpus))


def resource_slice(body: SliceBody) -> dict[str, object]:
    """The object without an owner: the Node does not exist yet. Its name keeps the order of the pool's slices."""
    name = str(body.metadata["generateName"]).rstrip("-")
    return {**to_builtins(body), "metadata": {"name": name}}
