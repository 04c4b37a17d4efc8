"""Parse the ``# expect:`` lines of an example and check them against any cluster through `loop.Client`.

# expect: pod/NAME Running sees N GPU(s)        all containers ready; their logs list exactly the allocated devices,
# expect: pod/NAME Running sees N MIG device(s)   GPUs compared by UUID, MIG devices by parent and profile
# expect: pod/NAME Running sees N MIG device(s) of profile P
# expect: pod/NAME Running sees N GPU(s) and M MIG device(s)
# expect: pod/NAME Pending                      with condition PodScheduled=False
# expect: pod/NAME logs LINE                    every container's log has the line, for example CUDA_MPS_…=…
# expect: container POD/C logs LINE             the log of this container has the line
# expect: job/NAME Complete
# expect: deployment/NAME Available             every replica available
# expect: pods A B same GPU                     and: different GPUs; parents of MIG devices count
# expect: pods A B same MIG device              and: different MIG devices
# expect: containers POD/C1 POD/C2 same GPU     likewise for the remaining three
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from dra_driver.core.errors import ConfigurationError, DraError, RetryableError
from dra_driver.kube.devices import results_of
from dra_driver.kube.published.listing import Devices, described_devices, difference, observed_devices
from dra_driver.sim.apiserver.jsonvalue import Obj, dig, entries
from dra_driver.sim.apiserver.kind import ResourceKind
from dra_driver.sim.apiserver.kinds import DEPLOYMENTS, JOBS, PODS, RESOURCE_CLAIMS, RESOURCE_SLICES
from dra_driver.sim.loop import Client
from dra_driver.sim.objects import claim_names, condition, extended_claim_name, is_ready


def allocated_devices(pod: Obj, client: Client) -> Devices:
    """The devices allocated to the pod's claims, as ResourceSlices describe them; a share counts as its GPU."""
    claims = filter(None, [name for _, name in claim_names(pod)] + [extended_claim_name(pod)])
    found = [client.find(RESOURCE_CLAIMS, name, pod["metadata"]["namespace"]) for name in claims]
    results = [result for claim in found for result in results_of(claim or {})]
    return described_devices(results, client.list(RESOURCE_SLICES, ""))


_LINE: Final = re.compile(r"^#[ \t]*expect:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_NAME: Final = r"[a-z0-9][a-z0-9.-]*"


class Expectation(Struct, frozen=True, kw_only=True):
    """One expectation. ``names`` has one object for the kinds pod, job, deployment and logs, several for other kinds.
    ``profile`` is the MIG profile of all partitions, "" for any. ``line`` is the line that a log must contain."""

    text: str
    kind: str
    names: Sequence[str]
    state: str
    gpus: int = 0
    partitions: int = 0
    profile: str = ""
    line: str = ""


_FORMS: Final = (
    (re.compile(rf"pod/({_NAME}) Pending"), "pod", "Pending"),
    (re.compile(rf"job/({_NAME}) Complete"), "job", "Complete"),
    (re.compile(rf"deployment/({_NAME}) Available"), "deployment", "Available"),
)
_SEES: Final = re.compile(
    rf"pod/({_NAME}) Running sees (?:(\d+) GPUs?)?( and )?(?:(\d+) MIG devices?(?: of profile (\S+))?)?"
)
_LOGS: Final = re.compile(rf"(?:pod/({_NAME})|container ({_NAME}/{_NAME})) logs (\S.*)")
_SEVERAL: Final = re.compile(
    r"(pods|containers) (\S+(?: \S+)+) (same GPU|different GPUs|same MIG device|different MIG devices)"
)


def parse_expectation(text: str) -> Expectation:
    """Parse one expectation. Raises ConfigurationError if it has none of the forms above."""
    for form, kind, state in _FORMS:
        if match := form.fullmatch(text):
            return Expectation(text=text, kind=kind, names=(match[1],), state=state)
    match = _SEES.fullmatch(text)
    if match and (match[2] or match[4]) and bool(match[3]) == bool(match[2] and match[4]):
        return Expectation(
            text=text,
            kind="pod",
            names=(match[1],),
            state="Running",
            gpus=int(match[2] or 0),
            partitions=int(match[4] or 0),
            profile=match[5] or "",
        )
    if match := _LOGS.fullmatch(text):
        name = match[1] or match[2]
        return Expectation(text=text, kind="logs", names=(name,), state="logs", line=match[3])
    if match := _SEVERAL.fullmatch(text):
        return Expectation(text=text, kind=match[1], names=tuple(match[2].split()), state=match[3])
    raise ConfigurationError(f"unknown form of expectation: {text!r}", reason="UnknownExpectation")


def read_expectations(path: Path) -> list[Expectation]:
    """All expectations of a file. Raises ConfigurationError if it has none: every example must state its result."""
    lines = _LINE.findall(path.read_text(encoding="utf-8"))
    if not lines:
        raise ConfigurationError(f"{path} has no '# expect:' line, expected at least one")
    return [parse_expectation(line) for line in lines]


def unmet(expectations: Iterable[Expectation], client: Client, namespace: str) -> str | None:
    """The first expectation that does not hold, with the reason; None if all hold."""
    for expectation in expectations:
        try:
            complaint = _CHECKS[expectation.kind](expectation, client, namespace)
        except DraError as error:
            complaint = str(error)
        if complaint is not None:
            return f"expected {expectation.text}: {complaint}"
    return None


def _existing(client: Client, kind: ResourceKind, name: str, namespace: str) -> Obj:
    obj = client.find(kind, name, namespace)
    if obj is None:
        raise RetryableError(f"{kind.singular} {name} does not exist")
    return obj


def _seen_by(pod: Obj, client: Client) -> Devices:
    return sum((observed_devices(log) for log in _logs_of(pod, client).values()), Devices())


def _logs_of(pod: Obj, client: Client) -> dict[str, str]:
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    containers = [container["name"] for container in entries(pod, "spec", "containers")]
    return {container: client.log(namespace, name, container) for container in containers}


def _pod(expectation: Expectation, client: Client, namespace: str) -> str | None:
    pod = _existing(client, PODS, expectation.names[0], namespace)
    phase = dig(pod, "status", "phase", default="")
    if expectation.state == "Pending":
        unschedulable = phase == "Pending" and condition(pod, "PodScheduled") == "False"
        return (
            None if unschedulable else f"it is {phase}, PodScheduled is {condition(pod, 'PodScheduled') or 'not set'}"
        )
    if phase != "Running" or not is_ready(pod):
        return f"it is {phase or 'without a phase'}{_why(pod)}"
    return _sees(expectation, pod, client)


def _sees(expectation: Expectation, pod: Obj, client: Client) -> str | None:
    """All containers together list exactly the devices allocated to the pod's claims, and as many as expected."""
    found = _seen_by(pod, client)
    for wanted, listed, what in (
        (expectation.gpus, found.gpus, "GPUs"),
        (expectation.partitions, found.partitions, "MIG devices"),
    ):
        if len(listed) != wanted:
            return f"its containers see {len(listed)} {what}, expected {wanted}"
    profiles = {partition.profile for partition in found.partitions}
    if expectation.profile and profiles != {expectation.profile}:
        return f"its containers see MIG devices of {', '.join(sorted(profiles))}"
    return difference(found, allocated_devices(pod, client))


def _logs(expectation: Expectation, client: Client, namespace: str) -> str | None:
    name, _, container = expectation.names[0].partition("/")
    pod = _existing(client, PODS, name, namespace)
    logs = {container: client.log(namespace, name, container)} if container else _logs_of(pod, client)
    for where, log in logs.items():
        if expectation.line not in log.splitlines():
            return f"the log of {where} lacks the line, it has {log.splitlines()}"
    return None


def why_unscheduled(pod: Obj) -> str:
    """The scheduler's message for a pod without a node, "" for a pod that has one."""
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
    job = _existing(client, JOBS, expectation.names[0], namespace)
    if condition(job, "Complete") == "True":
        return None
    succeeded, failed = (dig(job, "status", field, default=0) for field in ("succeeded", "failed"))
    return f"{succeeded} pods have succeeded, {failed} have failed"


def _deployment(expectation: Expectation, client: Client, namespace: str) -> str | None:
    deployment = _existing(client, DEPLOYMENTS, expectation.names[0], namespace)
    wanted = dig(deployment, "spec", "replicas", default=1)
    available = dig(deployment, "status", "availableReplicas", default=0)
    if condition(deployment, "Available") == "True" and available == wanted:
        return None
    return f"{available} of {wanted} replicas are available"


def _compare(expectation: Expectation, found: dict[str, Devices]) -> str | None:
    relation, _, what = expectation.state.partition(" ")
    of_gpus = what.startswith("GPU")
    listed = {
        name: frozenset(devices.listed if of_gpus else (part.uuid for part in devices.partitions))
        for name, devices in found.items()
    }
    without = [name for name, uuids in listed.items() if not uuids]
    if without:
        return f"{', '.join(without)} see no {'GPU' if of_gpus else 'MIG device'}"
    sets = list(listed.values())
    fits = len(set(sets)) == 1 if relation == "same" else len(frozenset().union(*sets)) == sum(map(len, sets))
    return None if fits else "; ".join(f"{name} sees {', '.join(sorted(uuids))}" for name, uuids in listed.items())


def _pods(expectation: Expectation, client: Client, namespace: str) -> str | None:
    pods = {name: _existing(client, PODS, name, namespace) for name in expectation.names}
    return _compare(expectation, {name: _seen_by(pod, client) for name, pod in pods.items()})


def _containers(expectation: Expectation, client: Client, namespace: str) -> str | None:
    where = {name: name.partition("/") for name in expectation.names}
    logs = {name: client.log(namespace, pod, container) for name, (pod, _, container) in where.items()}
    return _compare(expectation, {name: observed_devices(log) for name, log in logs.items()})


_CHECKS: Final = {
    "pod": _pod,
    "logs": _logs,
    "job": _job,
    "deployment": _deployment,
    "pods": _pods,
    "containers": _containers,
}
