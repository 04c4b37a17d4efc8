"""``kubectl dra node-template``: print the ResourceSlices that a node with given GPUs and policies publishes."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

import yaml
from msgspec import to_builtins
from msgspec.structs import replace

from dra_driver.core.errors import ConfigurationError, KubernetesApiError, NotFoundError
from dra_driver.core.model.gpu import Snapshot
from dra_driver.core.model.terms import Terms, terms_of
from dra_driver.core.text import counted, listed
from dra_driver.diagnose.policy_check import policy_files
from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
from dra_driver.kube import paths
from dra_driver.kube.state import ClusterState
from dra_driver.kubectl.commands.source import client, kubeconfig_of
from dra_driver.kubectl.explain import NodeTemplate, Wire, scheduler_for
from dra_driver.node.policy import MAX_POLICIES, PolicyFile, examine, kept, survey
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
_ADDED: Final = "added-node"
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
    files = list(policy_files(args.policy))
    found, left_out, problems = slices_of(args.gpus, files, args.node, args.driver)
    for line in (*problems, *left_out):
        print(line, file=sys.stderr)
    if problems:
        return 1
    if args.output == "json":
        print(json.dumps({"apiVersion": "v1", "kind": "List", "items": found}, indent=2))
    else:
        print(yaml.safe_dump_all(found, sort_keys=False), end="")
    return 0


def slices_of(
    gpus: str, files: Sequence[PolicyFile], node: str, driver: str, features: ApiServerFeatures = V1_36
) -> tuple[list[Wire], list[str], list[str]]:
    """Return the slices of a node with these GPUs, its unpublished GPUs, and the problems of the policies.

    Raises ConfigurationError for unknown GPUs, with the nearest names.
    """
    found, wrong = examine(files)
    snapshot = SimulatedBackend.from_spec(gpus, node).snapshot()
    terms, conflicts = survey(found.policies, snapshot, (), node)
    built = build_devices(in_wanted_mig_mode(snapshot, terms), terms, features)
    identity = PoolIdentity(driver=driver, node=node, node_uid="", pool=pool_name(node, driver))
    bodies = compute_writes(split(built), (), identity).creates
    left_out = [f"{gpu.label}: {gpu.reason}" for gpu in built.left_out]
    return [resource_slice(body) for body in bodies], left_out, [*map(str, wrong), *conflicts]


def added_node(args: argparse.Namespace, state: ClusterState) -> NodeTemplate:
    """Return the node of ``--with-node``. Raises ConfigurationError as `slices_of`, and with all policy problems."""
    if not args.with_node:
        raise ConfigurationError("--with-policy: needs --with-node")
    given = args.with_policy
    files, gaps = (list(policy_files(given)), []) if given else _policies_of_cluster(args)
    scheduler = scheduler_for(state, args.feature_gates)
    on = scheduler.features
    features = replace(
        V1_36, counters=on.partitionable_devices, taints=on.device_taints, multi_allocation=on.consumable_capacity
    )
    driver = getattr(args, "driver", "") or "gpu.nvidia.com"
    slices, left_out, problems = slices_of(args.with_node, files, _ADDED, driver, features)
    if problems:
        raise ConfigurationError("\n".join([f"the policies have {counted(len(problems), 'problem')}:", *problems]))
    return NodeTemplate(gpus=args.with_node, name=_ADDED, slices=slices, scheduler=scheduler, gaps=[*gaps, *left_out])


def _policies_of_cluster(args: argparse.Namespace) -> tuple[list[PolicyFile], list[str]]:
    """Return the cluster's policies, and a note about omitted ones: policies of single nodes, or unreadable ones."""
    if args.cluster_state:
        return [], ["GpuPolicies: a state file has none; see --with-policy"]
    try:
        items = client(kubeconfig_of(args)).list(paths.gpu_policies())["items"]
    except NotFoundError:  # the cluster has no such objects
        return [], []
    except KubernetesApiError as error:
        return [], [f"GpuPolicies: {error}; see --with-policy"]
    objects = {item["metadata"]["name"]: kept(item, _ADDED, (), MAX_POLICIES) for item in items}
    named = sorted(name for name, found in objects.items() if found is None or found.data is None)
    files = [PolicyFile(f"GpuPolicy {found.name}", found.data) for found in objects.values() if found and found.data]
    return files, [f"GpuPolicies that select nodes by name: {listed(named)}"] if named else []


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
