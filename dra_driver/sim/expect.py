"""What an example states about itself, read from its comments and checked against a cluster.

Owns the grammar of ``# expect:`` lines and what each means. Works on any cluster through `client.Client`, so the same
statements are checked in the embedded cluster and on a real one.

    # expect: pod/NAME Running sees N GPU(s)        every container ready; its log lists exactly the GPUs granted
    # expect: pod/NAME Pending                      unschedulable, and said so
    # expect: job/NAME Complete
    # expect: deployment/NAME Available             every replica available
    # expect: pods A B same GPU                     and: different GPUs
    # expect: containers POD/C1 POD/C2 same GPU     and: different GPUs
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dra_driver.errors import ConfigurationError, DraError
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.client import Client
from dra_driver.sim.objects import claim_names, condition, is_ready

_LINE: Final = re.compile(r"^#\s*expect:\s*(.+?)\s*$", re.MULTILINE)
_GPU: Final = re.compile(r"^GPU (\d+): .+ \(UUID: (GPU-[0-9a-f-]+)\)$", re.MULTILINE)
_NAME: Final = r"[a-z0-9][a-z0-9.-]*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """One statement. ``pod``, ``job`` and ``deployment`` name one object; ``pods`` and ``containers`` several."""

    text: str
    kind: str
    names: Sequence[str]
    state: str
    gpus: int = 0


_FORMS: Final = (
    (re.compile(rf"pod/({_NAME}) Running sees (\d+) GPUs?"), "pod", "Running"),
    (re.compile(rf"pod/({_NAME}) Pending"), "pod", "Pending"),
    (re.compile(rf"job/({_NAME}) Complete"), "job", "Complete"),
    (re.compile(rf"deployment/({_NAME}) Available"), "deployment", "Available"),
)
_SEVERAL: Final = re.compile(r"(pods|containers) (\S+(?: \S+)+) (same GPU|different GPUs)")


def parse(text: str) -> Expectation:
    """One statement. Raises ConfigurationError when it has none of the known forms."""
    for form, kind, state in _FORMS:
        if match := form.fullmatch(text):
            gpus = int(match[2]) if form.groups > 1 else 0
            return Expectation(text=text, kind=kind, names=(match[1],), state=state, gpus=gpus)
    if match := _SEVERAL.fullmatch(text):
        return Expectation(text=text, kind=match[1], names=tuple(match[2].split()), state=match[3])
    raise ConfigurationError(f"cannot read the expectation {text!r}")


def read(path: Path) -> list[Expectation]:
    """All statements of a file. Raises ConfigurationError when there is none: an example has to say what it shows."""
    lines = _LINE.findall(path.read_text(encoding="utf-8"))
    if not lines:
        raise ConfigurationError(f"{path} has no '# expect:' line")
    return [parse(line) for line in lines]


def unmet(expectations: Iterable[Expectation], client: Client, namespace: str) -> str | None:
    """What is not as stated yet, the first such thing; None when everything is."""
    for expectation in expectations:
        try:
            complaint = _CHECKS[expectation.kind](expectation, client, namespace)
        except DraError as error:
            complaint = str(error)
        if complaint is not None:
            return f"expected {expectation.text}: {complaint}"
    return None


def seen_gpus(log: str) -> tuple[str, ...]:
    """UUIDs of the GPUs that a log lists in the format of ``nvidia-smi -L``, in order, each once."""
    return tuple(dict.fromkeys(uuid for _, uuid in _GPU.findall(log)))


def granted_gpus(pod: Obj, client: Client) -> tuple[str, ...]:
    """UUIDs of the GPUs that the pod's claims were allocated, as their ResourceSlices name them."""
    slices = client.list(RESOURCE_SLICES, "")
    uuids = {
        (item["spec"]["driver"], item["spec"]["pool"]["name"], device["name"]): dig(
            device, "attributes", "uuid", "string"
        )
        for item in slices
        for device in entries(item, "spec", "devices")
    }
    namespace = pod["metadata"]["namespace"]
    granted = []
    for _, name in claim_names(pod):
        claim = client.find(RESOURCE_CLAIMS, name, namespace) if name else None
        for result in entries(claim, "status", "allocation", "devices", "results"):
            granted.append(uuids.get((result["driver"], result["pool"], result["device"])) or "(unknown)")
    return tuple(granted)


def containers_gpus(pod: Obj, client: Client) -> dict[str, tuple[str, ...]]:
    """What each container's log lists."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    containers = [container["name"] for container in entries(pod, "spec", "containers")]
    return {container: seen_gpus(client.log(namespace, name, container)) for container in containers}


def _pod(expectation: Expectation, client: Client, namespace: str) -> str | None:
    pod = client.find(PODS, expectation.names[0], namespace)
    if pod is None:
        return "there is no such pod"
    phase = dig(pod, "status", "phase", default="")
    if expectation.state == "Pending":
        unschedulable = phase == "Pending" and condition(pod, "PodScheduled") == "False"
        return (
            None if unschedulable else f"it is {phase}, PodScheduled is {condition(pod, 'PodScheduled') or 'not set'}"
        )
    if phase != "Running" or not is_ready(pod):
        return f"it is {phase or 'without a phase'}{_why(pod)}"
    return _sees(expectation.gpus, pod, client)


def _sees(wanted: int, pod: Obj, client: Client) -> str | None:
    """All containers together list exactly the GPUs that the pod's claims were granted, and as many as stated."""
    seen = {uuid for uuids in containers_gpus(pod, client).values() for uuid in uuids}
    granted = set(granted_gpus(pod, client))
    if len(seen) != wanted:
        return f"its containers see {len(seen)} GPUs, expected {wanted}"
    return None if seen == granted else f"its containers see {sorted(seen)}, its claims were granted {sorted(granted)}"


def why_unscheduled(pod: Obj) -> str:
    """What the scheduler says about a pod without a node, "" for one that has a node."""
    for item in entries(pod, "status", "conditions"):
        if item.get("type") == "PodScheduled" and item.get("status") == "False":
            return str(item.get("message", ""))
    return ""


def _why(pod: Obj) -> str:
    if reason := why_unscheduled(pod):
        return f" ({reason})"
    for status in entries(pod, "status", "containerStatuses"):
        if waiting := dig(status, "state", "waiting"):
            return f" ({status['name']}: {waiting.get('reason', '')} {waiting.get('message', '')})"
    return ""


def _job(expectation: Expectation, client: Client, namespace: str) -> str | None:
    job = client.find(JOBS, expectation.names[0], namespace)
    if job is None:
        return "there is no such job"
    if condition(job, "Complete") == "True":
        return None
    succeeded, failed = (dig(job, "status", field, default=0) for field in ("succeeded", "failed"))
    return f"{succeeded} pods have succeeded, {failed} have failed"


def _deployment(expectation: Expectation, client: Client, namespace: str) -> str | None:
    deployment = client.find(DEPLOYMENTS, expectation.names[0], namespace)
    if deployment is None:
        return "there is no such deployment"
    wanted, available = (
        dig(deployment, "spec", "replicas", default=1),
        dig(deployment, "status", "availableReplicas", default=0),
    )
    if condition(deployment, "Available") == "True" and available == wanted:
        return None
    return f"{available} of {wanted} replicas are available"


def _compare(expectation: Expectation, seen: dict[str, tuple[str, ...]]) -> str | None:
    blind = [name for name, uuids in seen.items() if not uuids]
    if blind:
        return f"{', '.join(blind)} see no GPU"
    sets = [frozenset(uuids) for uuids in seen.values()]
    shown = "; ".join(f"{name} sees {', '.join(uuids)}" for name, uuids in seen.items())
    if expectation.state == "same GPU":
        return None if len(set(sets)) == 1 else shown
    return None if len(frozenset().union(*sets)) == sum(map(len, sets)) else shown


def _pods(expectation: Expectation, client: Client, namespace: str) -> str | None:
    seen = {}
    for name in expectation.names:
        pod = client.find(PODS, name, namespace)
        if pod is None:
            return f"there is no pod {name}"
        uuids = [uuid for found in containers_gpus(pod, client).values() for uuid in found]
        seen[name] = tuple(dict.fromkeys(uuids))
    return _compare(expectation, seen)


def _containers(expectation: Expectation, client: Client, namespace: str) -> str | None:
    seen = {}
    for name in expectation.names:
        pod, _, container = name.partition("/")
        seen[name] = seen_gpus(client.log(namespace, pod, container))
    return _compare(expectation, seen)


_CHECKS: Final = {"pod": _pod, "job": _job, "deployment": _deployment, "pods": _pods, "containers": _containers}
