"""From a joined look to what the watchdog, the search for foreign processes and that for idle claims take. Pure."""

from collections.abc import Iterable, Mapping, Sequence

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import ProcessUsage
from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.core.model.usage_rules import DEFAULT_USAGE, UsageRules
from dra_driver.node.usage.foreign import ForeignProcess, ForeignUse
from dra_driver.node.usage.idle import ClaimUse, is_used, used_any
from dra_driver.node.usage.values import DeviceUse, JoinedUsage, SeenProcess
from dra_driver.node.usage.watchdog import ShareUse


def share_uses(joined: JoinedUsage) -> list[ShareUse]:
    """Each claim's shares of each GPU together; shares without a grant of memory are not judged."""
    rules = _rules(joined)
    shares: dict[tuple[str, str], list[DeviceUse]] = {}
    for use in joined.devices:
        if use.assigned.form is Form.SHARE and not use.assigned.admin_access:
            shares.setdefault((use.claim.uid, use.assigned.device), []).append(use)
    return [_share(uses, rules) for uses in shares.values() if all(use.assigned.memory_bytes for use in uses)]


def claim_uses(joined: JoinedUsage) -> list[ClaimUse]:
    """Each claim, and whether it used any of its devices. Claims with admin access alone watch and use nothing."""
    rules = _rules(joined)
    claims: dict[ClaimRef, list[DeviceUse]] = {}
    for use in joined.devices:
        if not use.assigned.admin_access:
            claims.setdefault(use.claim, []).append(use)
    return [
        ClaimUse(
            claim=claim,
            used=used_any(device_used(use) for use in uses),
            after_min=_after_min([rules.get(use.assigned.gpu_uuid, DEFAULT_USAGE) for use in uses]),
        )
        for claim, uses in claims.items()
    ]


def foreign_uses(joined: JoinedUsage) -> list[ForeignUse]:
    """The processes of each GPU that belong to no claim, where processes are known."""
    return [
        ForeignUse(
            gpu_uuid=gpu.gpu_uuid,
            device=gpu.device,
            processes=[
                ForeignProcess(pid=each.pid, command=each.command, memory_bytes=each.memory_bytes)
                for each in gpu.unattributed
            ],
        )
        for gpu in joined.gpus
        if gpu.unattributed is not None and gpu.device
    ]


def device_used(use: DeviceUse) -> bool | None:
    """Whether the claim used the device since the last look; None where that is not known."""
    if use.shared_processes:
        return None
    alone = use.sm_percent if use.assigned.form is not Form.SHARE else None
    if use.processes is None:
        return True if alone else None
    return is_used([_process(each) for each in use.processes], alone)


def _process(seen: SeenProcess) -> ProcessUsage:
    return ProcessUsage(pid=seen.pid, sm_percent=seen.sm_percent)


def _share(uses: Sequence[DeviceUse], rules: Mapping[str, UsageRules]) -> ShareUse:
    first = uses[0]
    known = [use.used_bytes for use in uses if use.used_bytes is not None]
    processes = [process for use in uses for process in use.processes or ()]
    return ShareUse(
        claim=first.claim,
        device=first.assigned.device,
        grant_bytes=sum(use.assigned.memory_bytes or 0 for use in uses),
        used_bytes=sum(known) if len(known) == len(uses) else None,
        processes=len(processes),
        pods=_pods(processes),
        rules=rules.get(first.assigned.gpu_uuid, DEFAULT_USAGE),
    )


def _pods(processes: Iterable[SeenProcess]) -> tuple[UsingPod, ...]:
    """The one with most memory first."""
    memory: dict[UsingPod, int] = {}
    for each in processes:
        if each.container is not None:
            pod = each.container.pod
            memory[pod] = memory.get(pod, 0) + (each.memory_bytes or 0)
    return tuple(sorted(memory, key=lambda pod: (-memory[pod], pod.namespace, pod.name)))


def _rules(joined: JoinedUsage) -> dict[str, UsageRules]:
    return {gpu.gpu_uuid: gpu.rules for gpu in joined.gpus}


def _after_min(rules: Sequence[UsageRules]) -> int | None:
    """The longest of its GPUs, and None if one of them says never."""
    minutes = [each.idle_after_min for each in rules if each.idle_after_min is not None]
    return max(minutes) if minutes and len(minutes) == len(rules) else None
