"""``kubectl dra policy explain``: name the policy of each field of one GPU."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from dra_driver.config.status import node_status_of
from dra_driver.core.errors import ConfigurationError, ForbiddenError, NotFoundError
from dra_driver.core.model.gpu_node import NodeGpu, NodePolicy, PolicyOrigin
from dra_driver.kube import paths
from dra_driver.kube.devices import Wire
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of, print_table

_EXPLAIN: Final = """\
Show the policy that applies to a GPU, the value of each field, and why other matching policies do not apply.

With --policies and --gpus, applies files offline to GPUs of that kind, as `dra-driver policy check` does.
"""
_NO_POLICY: Final = "no policy applies: all fields have their defaults"


class ObjectReader(Protocol):
    """Subset of ``kube.rest.RestClient``."""

    def get(self, path: str) -> Wire: ...


def add_arguments(parser: argparse.ArgumentParser) -> None:
    explain = parser.add_subparsers(dest="action", metavar="ACTION", required=True).add_parser(
        "explain", help="explain which policy sets each field of a GPU", description=_EXPLAIN
    )
    explain.add_argument("gpu", metavar="NODE/GPU", help="such as gpu-a/gpu-0")
    add_kubeconfig(explain)
    explain.add_argument(
        "--policies",
        action="append",
        metavar="PATH",
        help="offline: files, or directories as for --policy-dir; repeatable",
    )
    explain.add_argument("--gpus", metavar="SPEC", help="offline: GPUs such as 8xh100-sxm5-80gb, or a YAML file")


def run(args: argparse.Namespace) -> int:
    node, slash, gpu = args.gpu.partition("/")
    if not (node and slash and gpu) or "/" in gpu:
        raise ConfigurationError(f"{args.gpu[:80]!r}: expected NODE/GPU, such as gpu-a/gpu-0")
    if bool(args.policies) != bool(args.gpus):
        raise ConfigurationError("--policies and --gpus need each other: give both, or none to read the cluster")
    if args.policies:
        return _offline(args.policies, args.gpus, node, gpu)
    return explain_gpu(client(kubeconfig_of(args)), node, gpu)


def explain_gpu(rest: ObjectReader, node: str, name: str) -> int:
    """Print the explanation from a cluster; 1 if no policy applies. Raises ConfigurationError for an unknown GPU."""
    try:
        written = rest.get(paths.gpu_nodes(node))
    except NotFoundError as error:
        raise ConfigurationError(
            f"GpuNode {node} does not exist: the node has no node process that writes one, or the cluster lacks the"
            f" CustomResourceDefinitions ({error})",
            reason="GpuNodeMissing",
        ) from error
    status = node_status_of(written)
    gpu = next((each for each in status.gpus if name in (each.name, each.uuid)), None) if status else None
    if status is None or gpu is None:
        known = ", ".join(each.name for each in status.gpus) if status else ""
        raise ConfigurationError(f"the GpuNode {node} has no GPU {name}; it has {known or 'none'}", reason="GpuMissing")
    print(f"{gpu.name} of node {node}: {gpu.product_name or 'unnamed'}, {gpu.uuid}")
    applied = next((each for each in status.policies if each.name == gpu.policy), None)
    source = f" ({applied.origin.value.lower()})" if applied is not None else ""
    print(f"policy {gpu.policy}{source} applies" if gpu.policy else _NO_POLICY)
    if gpu.waiting:
        print(f"a newer policy version is waiting: {gpu.waiting}")
    forms = ", ".join(form.value for form in gpu.offered_as) or "nothing"
    print(f"offered as {forms}; used as {gpu.used_as.value}")
    refused = _say_fields(rest, gpu, applied)
    others = [each for each in status.policies if gpu.name in each.gpus and each.name != gpu.policy]
    others += [each for each in status.policies if not each.gpus and each.message]  # refused as a whole
    _say_others([(each.name, each.origin.value, _state(each, gpu.name), each.message or "") for each in others])
    return 1 if refused else 0


def _say_fields(rest: ObjectReader, gpu: NodeGpu, applied: NodePolicy | None) -> bool:
    """Print the table; return whether the fields are unknown."""
    if not gpu.policy:
        _table({}, "")
        return False
    if applied is not None and applied.origin is PolicyOrigin.FILE:
        print("its fields are in a file on the node: copy the directory, and use --policies and --gpus")
        return False
    try:
        written = rest.get(paths.gpu_policies(gpu.policy))
    except (NotFoundError, ForbiddenError) as error:
        print(f"cannot read its fields: {error}")
        return True
    generation = (written.get("metadata") or {}).get("generation")
    if applied is not None and applied.generation is not None and applied.generation != generation:
        print(f"the node has generation {applied.generation} in force; the fields below are of {generation}")
    _table(written.get("spec") or {}, gpu.policy)
    return False


def _say_others(rows: Sequence[Sequence[str]]) -> None:
    if rows:
        print()
        print_table(("OTHER POLICY", "SOURCE", "STATE", "WHY"), rows)


def _state(policy: NodePolicy, gpu: str) -> str:
    """Return the state on this GPU; the policy has the worst of all."""
    for names, word in ((policy.conflicting, "Conflicting"), (policy.waiting, "Waiting"), (policy.in_force, "InForce")):
        if gpu in names:
            return word
    return "Refused" if policy.state.value == "Refused" else "Outranked"


def _table(spec: Mapping[str, object], policy: str) -> None:
    print()
    rows = [(name, value, f"policy {policy}" if given else "default") for name, value, given in field_values(spec)]
    print_table(("FIELD", "VALUE", "FROM"), rows)


def _offline(paths: Sequence[str], spec: str, node: str, name: str) -> int:
    from dra_driver.diagnose.policy_check import trial_on_gpu

    found = trial_on_gpu(paths, spec, node, name)
    if found.gpu is not None:
        print(f"{found.gpu.device_name} of node {node}: {found.gpu.product_name}")
    if found.problems:
        print("\n".join(found.problems))
        return 1
    print(f"policy {found.policy} applies" if found.policy else _NO_POLICY)
    _table(found.spec, found.policy)
    _say_others([(other, "File", "Outranked", f"priority {priority}") for other, priority in found.outranked])
    return 0


# --- The fields of a policy's spec. Only one policy applies to a GPU.

SPEC_FIELDS: Final = {
    "availability": "Open",
    "forms.whole": "true",
    "forms.migProfiles": "all",
    "forms.monitor": "false",
    "mig.mode": "Leave",
    "mig.layout": "any placement",
    "sharing.strategy": "Exclusive",
    "sharing.interval": "Default",
    "sharing.maxShares": "no limit",
    "sharing.defaultComputePercent": "100",
    "sharing.reservedMemory": "driver default",
    "sharing.defaultShare": "all of the GPU",
    "sharing.migDevices": "false",
    "hostMemoryPerPod": "none",
    "taints": "none",
    "attributes": "none",
    "health.taint": "default rules",
    "health.ignore": "nothing",
    "health.evict": "nothing",
    "health.reset": "Never",
    "health.calmSeconds": "by cause",
    "health.evictionGraceSeconds": "60",
    "usage.overGrant.action": "Report",
    "usage.overGrant.graceSeconds": "60",
    "usage.overGrant.overheadPerProcess": "512Mi",
    "usage.overGrant.podProtection": "Honor",
    "usage.idle.afterMinutes": "never",
    "usage.idle.action": "Report",
}
"""Fields below ``spec`` that affect a GPU, with their defaults."""
_OF_STRATEGY: Final = {
    "sharing.interval": {"TimeSlicing"},
    "sharing.maxShares": {"TimeSlicing", "MPS"},
    "sharing.defaultComputePercent": {"TimeSlicing", "MPS"},
    "sharing.reservedMemory": {"TimeSlicing", "MPS"},
    "sharing.defaultShare": {"TimeSlicing", "MPS"},
    "sharing.migDevices": {"TimeSlicing", "MPS"},
}


class FieldValue(NamedTuple):
    field: str
    value: str
    given: bool


def field_values(spec: Mapping[str, object]) -> list[FieldValue]:
    """Return all fields that apply to this spec, in the order of the documentation. Null is absent."""
    strategy = _field_value(spec, "sharing.strategy") or "Exclusive"
    found = []
    for name, default in SPEC_FIELDS.items():
        value = _field_value(spec, name)
        if value is None and strategy not in _OF_STRATEGY.get(name, {strategy}):
            continue
        text = default if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found.append(FieldValue(name, text, value is not None))
    return found


def _field_value(spec: Mapping[str, object], path: str) -> object:
    found: object = spec
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
