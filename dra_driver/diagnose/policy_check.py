"""``dra-driver policy check``: check policy files and show published GPUs, with the code of the node process."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from dra_driver.core.errors import ConfigurationError

if TYPE_CHECKING:
    from dra_driver.config.policy import GpuPolicy
    from dra_driver.core.model.gpu import Gpu
    from dra_driver.core.model.health_rules import HealthRules
    from dra_driver.core.model.terms import GpuTerms
    from dra_driver.core.model.usage_rules import UsageRules
    from dra_driver.node.policy import PolicyFile

_CHECK: Final = """\
Check files or directories of GpuPolicy objects as the node process does (--policy-dir). With --gpus, apply the policies
to simulated GPUs, which also finds policies that contradict each other.
"""
_STATUSES: Final = "exit status: 0 no problems, 1 problems found, 2 wrong usage."
HEADINGS: Final = ("GPU", "PRODUCT", "POLICY", "OFFERED", "MIG PROFILES", "TAINTS", "ATTRIBUTES")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="check policy files",
        description=_CHECK,
        epilog=_STATUSES,
    )
    check.add_argument("paths", nargs="+", metavar="PATH", help="files, or directories as for --policy-dir")
    check.add_argument(
        "--gpus", metavar="SPEC", help="apply them to GPUs such as 8xh100-sxm5-80gb, or to the GPUs of a YAML file"
    )
    check.add_argument(
        "--node", metavar="NAME", default="node-1", help="name of the node with these GPUs (default: node-1)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the problems, or the published GPUs, and return the exit status."""
    from dra_driver.node.policy import examine

    found, wrong = examine(list(policy_files(args.paths)))
    for complaint in wrong:
        print(complaint)
    if wrong:
        print(f"{len(wrong)} {'problem' if len(wrong) == 1 else 'problems'}")
        return 1
    count = len(found.policies)
    print(f"{count} {'policy' if count == 1 else 'policies'}, no problems")
    return _try(found.policies, args.gpus, args.node) if args.gpus else 0


def policy_files(paths: Sequence[str]) -> Iterator["PolicyFile"]:
    from dra_driver.node.policy import read_file, read_folder

    for path in map(Path, paths):
        if path.is_dir():
            yield from read_folder(path)
            continue
        try:
            yield read_file(path)
        except OSError as error:
            raise ConfigurationError(f"cannot read {path}: {error.strerror}", reason="Unreadable", path=path) from error


class GpuTrial(Struct, frozen=True, kw_only=True):
    """Policy files applied to one simulated GPU, None while the files have problems. ``policy`` is the policy that
    applies, "" without one, with ``spec``; ``outranked`` are other matches, with their priorities."""

    gpu: "Gpu | None" = None
    problems: Sequence[str] = ()
    policy: str = ""
    spec: Mapping[str, object] = field(default_factory=dict)
    outranked: Sequence[tuple[str, int]] = ()


def trial_on_gpu(paths: Sequence[str], spec: str, node_name: str, name: str) -> GpuTrial:
    """Apply the policies to the GPU of that name or UUID. Raises ConfigurationError if ``spec`` has none."""
    from dra_driver.core.model.terms import terms_of
    from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
    from dra_driver.node.policy import examine, survey

    found, wrong = examine(list(policy_files(paths)))
    if wrong:
        return GpuTrial(problems=list(map(str, wrong)))
    snapshot = SimulatedBackend.from_spec(spec, node_name).snapshot()
    gpu = next((each for each in snapshot.gpus if name in (each.device_name, each.uuid)), None)
    if gpu is None:
        raise ConfigurationError(
            f"{spec} has no GPU {name}; its GPUs are gpu-0 to gpu-{len(snapshot.gpus) - 1}",
            reason="GpuNotFound",
            gpu=name,
        )
    terms, conflicts = survey(found.policies, snapshot, (), node_name)
    if mine := [conflict for conflict in conflicts if gpu.uuid in conflict]:
        return GpuTrial(gpu=gpu, problems=mine)
    applied = terms_of(terms, gpu.uuid).policy
    written = {item["metadata"]["name"]: item["spec"] for item in found.written}
    # A policy matches if it applies without other policies.
    alone = [each for each in found.policies if terms_of(survey([each], snapshot, (), node_name)[0], gpu.uuid).policy]
    others = [(each.name, each.priority) for each in alone if each.name != applied]
    outranked = sorted(others, key=lambda each: (-each[1], each[0]))
    return GpuTrial(gpu=gpu, policy=applied, spec=written[applied] if applied else {}, outranked=outranked)


def _try(policies: "Sequence[GpuPolicy]", spec: str, node_name: str) -> int:
    from dra_driver.core.command_line.table import render
    from dra_driver.core.model.terms import terms_of
    from dra_driver.hardware.gpu.simulated.backend import SimulatedBackend
    from dra_driver.node.policy import survey

    snapshot = SimulatedBackend.from_spec(spec, node_name).snapshot()
    terms, conflicts = survey(policies, snapshot, (), node_name)
    print()
    print(render(HEADINGS, [_row(gpu, terms_of(terms, gpu.uuid)) for gpu in snapshot.gpus]))
    for gpu in snapshot.gpus:
        if health := _health(terms_of(terms, gpu.uuid).health):
            print(f"\nerrors of {gpu.device_name}: {health}")
        if usage := _usage(terms_of(terms, gpu.uuid).usage):
            print(f"\nuse of {gpu.device_name}: {usage}")
    places = {place for gpu in snapshot.gpus for place in (gpu.pci_bus_id, gpu.pcie_root)}
    for policy in policies:
        if absent := sorted(policy.rails.keys() - places):
            print(f"\nrails of policy {policy.name} without a GPU here: {', '.join(absent)}")
    for conflict in conflicts:
        print(f"\n{conflict}")
    return 1 if conflicts else 0


def _row(gpu: "Gpu", terms: "GpuTerms") -> Sequence[str]:
    return (
        gpu.device_name,
        gpu.product_name or "",
        terms.policy,
        _offer(gpu, terms),
        _profiles(gpu, terms) if terms.offered else "-",
        ", ".join(f"{taint.key}={taint.value}:{taint.effect}" for taint in terms.taints),
        ", ".join(f"{name}={value}" for name, value in terms.attributes.items()),
    )


def _health(rules: "HealthRules") -> str:
    """The differences from the default rules, "" without any."""
    parts = {
        "also taints": _errors(rules.taint_xids, ()),
        "ignores": _errors(rules.ignored_xids, rules.ignored_causes),
        "evicts on": _errors(rules.evicting_xids, rules.evicting_causes),
        "calm for": f"{rules.calm_s:g} s" if rules.calm_s is not None else "",
    }
    return "; ".join(f"{name} {errors}" for name, errors in parts.items() if errors)


def _usage(rules: "UsageRules") -> str:
    """The actions on claims beyond events, "" without any."""
    evicts = f"over their grant are evicted after {rules.grace_s} s" if rules.over_grant == "Evict" else ""
    minutes = rules.idle_after_min
    idle = (
        f"without use for {minutes} min are {'reclaimed' if rules.idle == 'Reclaim' else 'reported'}" if minutes else ""
    )
    return "; ".join(f"claims {what}" for what in (evicts, idle) if what)


def _errors(xids: Iterable[int], causes: Iterable[str]) -> str:
    return ", ".join([*sorted(causes), *(f"XID {number}" for number in sorted(xids))])


def _offer(gpu: "Gpu", terms: "GpuTerms") -> str:
    from dra_driver.kube.published import MEMORY, amount_text, default_memory, default_percent, shareable_memory

    if not terms.offered:
        return "no"
    if not terms.whole:
        return "partitions"
    sharing = terms.sharing
    if sharing is None:
        return "exclusive"
    at_most = f", at most {sharing.max_shares}" if sharing.max_shares else ""
    interval = f" {sharing.interval}" if sharing.strategy == "TimeSlicing" else ""
    percent = f", {sharing.default_percent} % each" if sharing.default_percent != 100 else ""
    memory, each = shareable_memory(gpu, sharing), default_memory(gpu, sharing)
    if sharing.default_share is not None:
        size = f"{amount_text(MEMORY, each)} and " if each is not None else ""
        percent = f", {size}{default_percent(gpu, sharing)} % by default"
    in_all = f", {amount_text(MEMORY, memory)} in all" if memory is not None else ""
    return f"shared by {sharing.strategy}{interval}{at_most}{percent}{in_all}"


def _profiles(gpu: "Gpu", terms: "GpuTerms") -> str:
    if not gpu.mig_profiles:
        return "-"
    if terms.profiles is None:
        return "all"
    names = [profile.name for profile in gpu.mig_profiles if profile.profile_id in terms.profiles]
    return ", ".join(names) or "none"
