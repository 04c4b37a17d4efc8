"""``kubectl dra policy explain``: name the policy of each field of one GPU."""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from msgspec import Struct

from dra_driver.config.status import node_status_of
from dra_driver.core.document import JsonDocument, camel
from dra_driver.core.errors import ConfigurationError, ForbiddenError, NotFoundError
from dra_driver.core.model.gpu_node import NodeGpu, NodePolicy, PolicyOrigin
from dra_driver.core.text import printable
from dra_driver.kube import paths
from dra_driver.kube.devices import Wire
from dra_driver.kubectl.commands.listing import add_output, print_document, print_table, print_text
from dra_driver.kubectl.commands.source import add_kubeconfig, client, kubeconfig_of

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
    add_output(explain, "json", "yaml", default="text")
    explain.add_argument("--gpus", metavar="SPEC", help="offline: GPUs such as 8xh100-sxm5-80gb, or a YAML file")


class PolicyField(Struct, frozen=True, kw_only=True, rename=camel):
    """One field below ``spec``; ``value`` is text or JSON. ``policy`` is "" for a default."""

    field: str
    value: str
    policy: str = ""


class OtherPolicy(Struct, frozen=True, kw_only=True, rename=camel):
    """A policy that matches the GPU and is not in force there."""

    policy: str
    source: str
    state: str
    reason: str = ""


class PolicyExplanation(JsonDocument, frozen=True, kw_only=True):
    """The policy in force on one GPU; ``policy`` is "" without one. ``waiting`` is a newer version that waits until the
    GPU is free. ``fields`` is empty where ``notes`` explain why."""

    node: str
    device: str
    uuid: str = ""
    product: str = ""
    policy: str = ""
    source: str = ""
    waiting: str = ""
    offered_as: Sequence[str] = ()
    used_as: str = ""
    fields: Sequence[PolicyField] = ()
    other_policies: Sequence[OtherPolicy] = ()
    notes: Sequence[str] = ()


def run(args: argparse.Namespace) -> int:
    node, slash, gpu = args.gpu.partition("/")
    if not (node and slash and gpu) or "/" in gpu:
        raise ConfigurationError(f"{args.gpu[:80]!r}: expected NODE/GPU, such as gpu-a/gpu-0")
    if bool(args.policies) != bool(args.gpus):
        raise ConfigurationError("--policies and --gpus need each other: give both, or none to read the cluster")
    if args.policies:
        found, status = _offline(args.policies, args.gpus, node, gpu)
    else:
        found, status = explain_gpu(client(kubeconfig_of(args)), node, gpu)
    if args.output == "text":
        _print(found, full=args.policies is None)
    else:
        print_document(args.output, found)
    return status


def explain_gpu(rest: ObjectReader, node: str, name: str) -> tuple[PolicyExplanation, int]:
    """Return the explanation and the exit status: 1 if the fields are unknown. Raises ConfigurationError for an unknown
    GPU."""
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
    applied = next((each for each in status.policies if each.name == gpu.policy), None)
    fields, notes, unknown = _fields_of(rest, gpu, applied)
    others = [each for each in status.policies if gpu.name in each.gpus and each.name != gpu.policy]
    others += [each for each in status.policies if not each.gpus and each.message]  # refused as a whole
    found = PolicyExplanation(
        node=node,
        device=gpu.name,
        uuid=gpu.uuid,
        product=gpu.product_name or "",
        policy=gpu.policy or "",
        source=applied.origin.value if applied is not None else "",
        waiting=gpu.waiting or "",
        offered_as=[form.value for form in gpu.offered_as],
        used_as=gpu.used_as.value,
        fields=fields,
        other_policies=[
            OtherPolicy(
                policy=each.name, source=each.origin.value, state=_state(each, gpu.name), reason=each.message or ""
            )
            for each in others
        ],
        notes=notes,
    )
    return found, 1 if unknown else 0


def _fields_of(
    rest: ObjectReader, gpu: NodeGpu, applied: NodePolicy | None
) -> tuple[Sequence[PolicyField], Sequence[str], bool]:
    """Return the fields, notes about them, and whether they are unknown."""
    if not gpu.policy:
        return _fields({}, ""), (), False
    if applied is not None and applied.origin is PolicyOrigin.FILE:
        return (), ["its fields are in a file on the node: copy the directory, and use --policies and --gpus"], False
    try:
        written = rest.get(paths.gpu_policies(gpu.policy))
    except (NotFoundError, ForbiddenError) as error:
        return (), [f"cannot read its fields: {error}"], True
    generation, notes = (written.get("metadata") or {}).get("generation"), []
    if applied is not None and applied.generation is not None and applied.generation != generation:
        notes = [f"the node has generation {applied.generation} in force; the fields below are of {generation}"]
    return _fields(written.get("spec") or {}, gpu.policy), notes, False


def _state(policy: NodePolicy, gpu: str) -> str:
    """Return the state on this GPU; the policy has the worst of all."""
    for names, word in ((policy.conflicting, "Conflicting"), (policy.waiting, "Waiting"), (policy.in_force, "InForce")):
        if gpu in names:
            return word
    return "Refused" if policy.state.value == "Refused" else "Outranked"


def _offline(paths: Sequence[str], spec: str, node: str, name: str) -> tuple[PolicyExplanation, int]:
    from dra_driver.diagnose.policy_check import trial_on_gpu

    found = trial_on_gpu(paths, spec, node, name)
    outranked = [
        OtherPolicy(policy=other, source="File", state="Outranked", reason=f"priority {priority}")
        for other, priority in found.outranked
    ]
    explanation = PolicyExplanation(
        node=node,
        device=found.gpu.device_name if found.gpu is not None else name,
        product=found.gpu.product_name or "" if found.gpu is not None else "",
        policy=found.policy,
        fields=() if found.problems else _fields(found.spec, found.policy),
        other_policies=() if found.problems else outranked,
        notes=found.problems,
    )
    return explanation, 1 if found.problems else 0


def _print(found: PolicyExplanation, *, full: bool) -> None:
    """Print the explanation; ``full`` one of a cluster, with the GPU's state."""
    about = f": {found.product or 'unnamed'}{f', {found.uuid}' if found.uuid else ''}"
    print_text(printable(f"{found.device} of node {found.node}{about if full or found.product else ''}"))
    if found.fields or full:
        source = f" ({found.source.lower()})" if found.source else ""
        print(f"policy {found.policy}{source} applies" if found.policy else _NO_POLICY)
    if found.waiting:
        print_text(f"a newer policy version is waiting: {found.waiting}")
    if full:
        print_text(f"offered as {', '.join(found.offered_as) or 'nothing'}; used as {found.used_as}")
    for note in found.notes:
        print_text(printable(note))
    if found.fields:
        print()
        rows = [
            (each.field, each.value, f"policy {each.policy}" if each.policy else "default") for each in found.fields
        ]
        print_table(("FIELD", "VALUE", "FROM"), rows)
    if found.other_policies:
        print()
        others = [(each.policy, each.source, each.state, each.reason) for each in found.other_policies]
        print_table(("OTHER POLICY", "SOURCE", "STATE", "WHY"), others)


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
    "rails": "none",
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
    **{name: {"TimeSlicing", "MPS"} for name in SPEC_FIELDS if name.startswith("sharing.")},
    "sharing.interval": {"TimeSlicing"},
    "sharing.strategy": {"Exclusive", "TimeSlicing", "MPS"},
}


def _fields(spec: Mapping[str, object], policy: str) -> list[PolicyField]:
    """Return all fields that apply to this spec, in the order of the documentation. Null is absent."""
    strategy = _field_value(spec, "sharing.strategy") or "Exclusive"
    found = []
    for name, default in SPEC_FIELDS.items():
        value = _field_value(spec, name)
        if value is None and strategy not in _OF_STRATEGY.get(name, {strategy}):
            continue
        text = default if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        found.append(PolicyField(field=name, value=text, policy="" if value is None else policy))
    return found


def _field_value(spec: Mapping[str, object], path: str) -> object:
    found: object = spec
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found
