"""Attribute processes on GPUs to claims. No I/O.

    driver: PID, GPU, GPU instance, memory
    /proc/PID/cgroup: UID of the pod, id of the container
    /var/log/containers: namespace and name of the pod, name of the container
    PodResources of the kubelet: claims and devices of the container
    assignments.json: GPU, GPU instance and grant of the device

A process belongs to a claim if its container has a device of the claim on that GPU (and instance). If the container has
devices of several claims there, it counts as used by claims, and by none of them. The rest is unattributed. `Knows`
reports missing steps; then only the use of a device that one claim has is reported.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import GpuUsage, InstanceUsage, ProcessUsage, busiest
from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.node.usage import values
from dra_driver.node.usage.sources import LogIndex, Look, PodClaims, ProcessFacts, Unread

HIDDEN_BYTES: Final = 256 * 2**20
"""Use of a GPU without a listed process: less than a CUDA context, more than the driver uses besides its reserve."""
RESERVE_BYTES: Final = 2**30
"""More than the driver's reserve, which older drivers do not report separately."""
MPS_SERVER: Final = "nvidia-cuda-mps-server"[:15]  # as /proc/PID/comm has it
_DeviceKey = tuple[str, str, str, str, str | None]
"""Namespace and name of a claim, pool, device, share. Kubelets before 1.35 report no share."""


class HeldPart(Struct, frozen=True):
    """One device of a claim. Compared by identity, because two claims may have equal devices."""

    claim: ClaimRef
    device: values.AssignedUse

    @property
    def key(self) -> _DeviceKey:
        return self.claim.namespace, self.claim.name, self.device.pool, self.device.device, self.device.share_id


class Attribution:
    """One sample with readable /proc, links of logs and PodResources."""

    def __init__(self, facts: Mapping[int, ProcessFacts], logs: LogIndex, pods: PodClaims) -> None:
        self._facts, self._logs, self._pods = facts, logs, pods
        found: dict[_DeviceKey, list[values.ContainerRef]] = {}
        for (namespace, name), containers in sorted(pods.items()):
            pod = UsingPod(namespace=namespace, name=name, uid="")
            for container, devices in sorted(containers.items()):
                for key in dict.fromkeys(device.key for device in devices):
                    found.setdefault(key, []).append(values.ContainerRef(pod=pod, container=container))
        self._containers = {key: tuple(each) for key, each in found.items()}

    def containers(self, held: HeldPart) -> tuple[values.ContainerRef, ...]:
        """The containers that have the device, as the kubelet reports; without the UIDs of their pods."""
        return self._containers.get(held.key) or self._containers.get((*held.key[:4], None), ())

    def seen(self, process: ProcessUsage) -> values.SeenProcess:
        facts = self._facts.get(process.pid)
        place = facts.place if facts is not None else None
        return values.SeenProcess(
            pid=process.pid,
            command=facts.command if facts is not None else "",
            gi_id=process.gi_id,
            memory_bytes=process.memory_bytes,
            sm_percent=process.sm_percent,
            busy_percent=process.busy_percent,
            container=self._logs.container(place) if place is not None else None,
        )

    def owners(self, process: values.SeenProcess, held: Sequence[HeldPart]) -> list[HeldPart]:
        """The devices of ``held``, all on the process' GPU, that it may use; those with admin access only if no other.

        ``held`` has claims of one name in the order of their prepare: the kubelet reports no UID, and the last one
        counts.
        """
        if process.container is None:
            return []
        keys = self._keys(process.container)
        found = [
            each
            for each in held
            if (each.key in keys or (*each.key[:4], None) in keys) and _covers(each.device, process)
        ]
        found = [each for each in found if not each.device.admin_access] or found
        last = {(each.claim.namespace, each.claim.name): each.claim.uid for each in found}
        return [each for each in found if last[each.claim.namespace, each.claim.name] == each.claim.uid]

    def _keys(self, container: values.ContainerRef) -> frozenset[_DeviceKey]:
        """The container's devices. For an init container, which the kubelet does not list: the devices of its pod."""
        of_pod = self._pods.get((container.pod.namespace, container.pod.name), {})
        devices = of_pod.get(container.container)
        if devices is None:
            devices = tuple(device for each in of_pod.values() for device in each)
        return frozenset(device.key for device in devices)


def _covers(device: values.AssignedUse, process: values.SeenProcess) -> bool:
    return process.gi_id == device.gi_id if device.form is Form.PARTITION else process.gi_id is None


def join(look: Look) -> values.JoinedUsage:
    knows = _knows(look)
    assigned = look.assignments
    if isinstance(assigned, Unread):
        assigned = values.Assignments(node=look.node, driver="", process_started=look.at)
    attribution, named = _attribution(look, knows), {gpu.gpu_uuid: gpu for gpu in assigned.gpus}
    readings: dict[GpuUuid, GpuUsage] = {}
    for reading in () if isinstance(look.readings, Unread) else look.readings:
        name = named[reading.gpu_uuid].device if reading.gpu_uuid in named else reading.gpu_uuid
        readings[reading.gpu_uuid], unknown = _validated(reading, name, look)
        knows = replace(knows, **{what: getattr(knows, what) or why for what, why in unknown.items()})
    claims = sorted(assigned.claims, key=lambda claim: (claim.ref.namespace, claim.ref.name, claim.prepared))
    held = [
        HeldPart(claim.ref, device)
        for claim in claims
        for device in sorted(claim.devices, key=lambda each: each.request)
    ]
    gpus, devices = [], []
    for uuid in sorted({*named, *readings, *(each.device.gpu_uuid for each in held)}):
        here = [each for each in held if each.device.gpu_uuid == uuid]
        found = _Gpu(uuid=uuid, reading=readings.get(uuid), held=here, attribution=attribution)
        attributed = _attributed(found)
        uses = [
            _use(found, each, attributed.by_device[at], attributed.shared[at])
            if attributed is not None
            else _use(found, each, None, 0)
            for at, each in enumerate(here)
        ]
        devices += uses
        gpus.append(_totals(found, named.get(uuid), uses, attributed))
    return values.JoinedUsage(
        node=assigned.node,
        at=look.at,
        elapsed_s=look.elapsed_s,
        knows=knows,
        gpus=tuple(gpus),
        devices=tuple(sorted(devices, key=_order)),
    )


class _Gpu(Struct, frozen=True, kw_only=True):
    """One GPU with the devices of claims on it. ``attribution`` is None where processes cannot be attributed."""

    uuid: GpuUuid
    reading: GpuUsage | None
    held: Sequence[HeldPart]
    attribution: Attribution | None


class _Attributed(Struct, frozen=True, kw_only=True):
    """The processes of one GPU: of each device (in the order of `_Gpu.held`), of several claims, and of none."""

    by_device: Sequence[Sequence[values.SeenProcess]]
    shared: Sequence[int]
    foreign: Sequence[values.SeenProcess]
    claims_bytes: int | None


def _order(use: values.DeviceUse) -> tuple[str, ...]:
    claim, device = use.claim, use.assigned
    return claim.namespace, claim.name, claim.uid, device.request, device.pool, device.device, device.share_id or ""


def _attribution(look: Look, knows: values.Knows) -> Attribution | None:
    if knows.processes is not None or isinstance(look.processes, Unread):
        return None
    if knows.containers is not None or knows.claims is not None:
        return None
    if isinstance(look.logs, Unread) or isinstance(look.pods, Unread):
        return None
    return Attribution(look.processes, look.logs, look.pods)


def _knows(look: Look) -> values.Knows:
    readings = () if isinstance(look.readings, Unread) else look.readings
    percents = [process.sm_percent for each in readings for process in each.processes or ()]
    unknown_utilisation = None
    if percents and all(percent is None for percent in percents):
        unknown_utilisation = (
            "the NVIDIA driver does not report the utilization of processes: not in MIG mode, nor in the first sample"
        )
    return values.Knows(
        driver=_reason(look.readings),
        processes=_reason(look.readings) or _reason(look.processes) or _hidden(look, readings),
        utilisation=_reason(look.readings) or unknown_utilisation,
        containers=_reason(look.logs) or _unlinked(look),
        claims=_reason(look.assignments) or _reason(look.pods) or _unnamed(look),
    )


def _reason(source: object) -> str | None:
    return source.reason if isinstance(source, Unread) else None


def _pods_use_gpus(look: Look) -> bool:
    return not isinstance(look.processes, Unread) and any(each.place is not None for each in look.processes.values())


def _unlinked(look: Look) -> str | None:
    """The reason why containers are unknown: the kubelet links every log, so an empty directory is the wrong one."""
    if isinstance(look.logs, Unread) or look.logs.by_uid or not _pods_use_gpus(look):
        return None
    return (
        "processes of pods use GPUs, and the directory of links to logs has no link of the kubelet: mount the host's "
        "/var/log/containers and set --log-dir (LOG_DIR)"
    )


def _unnamed(look: Look) -> str | None:
    """The reason why claims of containers are unknown: PodResources lists claims from the start of their pod."""
    if isinstance(look.assignments, Unread) or not look.assignments.claims or look.pods or not _pods_use_gpus(look):
        return None
    return (
        "claims are prepared, and the kubelet's PodResources lists none of them: check that its feature gate "
        "KubeletPodResourcesDynamicResources is enabled, and that the socket is this node's kubelet's"
    )


def _hidden(look: Look, readings: Sequence[GpuUsage]) -> str | None:
    """The reason why the processes of GPUs are unknown."""
    if readings and all(each.processes is None for each in readings):
        problem = next((each.problem for each in readings if each.problem), "no reason given")
        return f"the NVIDIA driver does not list the processes of a GPU: {problem}"
    listed = [process.pid for each in readings for process in each.processes or ()]
    if len(listed) > 1 and not isinstance(look.processes, Unread) and not look.processes:
        return (
            f"none of the {len(listed)} processes that the NVIDIA driver lists is in /proc: check that the host's "
            "/proc is mounted, and without hidepid"
        )
    return None


def _validated(reading: GpuUsage, name: str, look: Look) -> tuple[GpuUsage, Mapping[str, str]]:
    """The reading without contradicted values, and why they are unknown, by field of `Knows`."""
    unknown: dict[str, str] = {}
    if reading.processes == () and (problem := _unlisted(reading, name, look)):
        reading, unknown["processes"] = replace(reading, processes=None, problem=problem), problem
    elif reading.processes is None and reading.problem:
        unknown["processes"] = f"GPU {name}: {reading.problem}"
    processes = reading.processes or ()
    used: dict[int | None, int | None] = {each.gi_id: each.memory_used for each in reading.instances}
    if not reading.mig_enabled:
        used[None] = reading.memory_used
    for gi_id, in_use in used.items():
        listed = sum(each.memory_bytes or 0 for each in processes if each.gi_id == gi_id)
        if in_use is not None and listed > in_use:
            processes = tuple(replace(each, memory_bytes=None) if each.gi_id == gi_id else each for each in processes)
            unknown["memory"] = (
                f"processes on GPU {name} together have {listed // 2**20} MiB, more than the {in_use // 2**20} MiB in "
                "use: the driver counts memory that they share by CUDA IPC for each of them"
            )
    if reading.busy_percent != 0 and any(each.busy_percent == 0 for each in processes) and _has_mps(processes, look):
        # The server owns the channels, so samples may have only its PID (kernel_channel.c).
        processes = tuple(
            replace(each, sm_percent=None, memory_percent=None, busy_percent=None) if each.busy_percent == 0 else each
            for each in processes
        )
        unknown["utilisation"] = f"GPU {name} has an MPS server, which may have used the GPU for its clients"
    return reading if reading.processes is None else replace(reading, processes=processes), unknown


def _unlisted(reading: GpuUsage, name: str, look: Look) -> str | None:
    """The reason why a GPU without a listed process may be in use; None if it may be unused."""
    of_all = [reading.memory_used, *(each.memory_used for each in reading.instances)]
    known = [each for each in of_all if each is not None]
    in_use = max(known, default=0)
    busy = busiest([reading.busy_percent, *(each.busy_percent for each in reading.instances)])
    least = HIDDEN_BYTES // 4 if look.is_nested else HIDDEN_BYTES
    is_open = busy is None and (not known or (look.is_nested and reading.memory_reserved is None))
    if in_use <= (RESERVE_BYTES if reading.memory_reserved is None else least) and not busy and not is_open:
        return None
    seen = f"{in_use // 2**20} MiB are in use" if known else "the memory in use is unknown"
    seen += f" and it is {busy} % busy" if busy else " and its utilization is unknown" if busy is None else ""
    where = "it runs in a separate PID namespace" if look.is_nested else "they may run in another PID namespace"
    return (
        f"the NVIDIA driver lists no process on GPU {name} for the exporter, although {seen}: {where}; set "
        "exporter.hostPID=true in the chart"
    )


def _has_mps(processes: Sequence[ProcessUsage], look: Look) -> bool:
    facts = {} if isinstance(look.processes, Unread) else look.processes
    return any(each.mps or (each.pid in facts and facts[each.pid].command[:15] == MPS_SERVER) for each in processes)


def _attributed(gpu: _Gpu) -> _Attributed | None:
    if gpu.attribution is None or gpu.reading is None or gpu.reading.processes is None:
        return None
    by_device: list[list[values.SeenProcess]] = [[] for _ in gpu.held]
    place = {id(held): at for at, held in enumerate(gpu.held)}
    shared, foreign, of_claims = [0] * len(gpu.held), list[values.SeenProcess](), list[int | None]()
    for process in gpu.reading.processes:
        seen = gpu.attribution.seen(process)
        owners = gpu.attribution.owners(seen, gpu.held)
        if not owners:
            foreign.append(seen)
            continue
        of_claims.append(process.memory_bytes)
        if len({owner.claim.uid for owner in owners}) == 1:
            by_device[place[id(owners[0])]].append(seen)
            continue
        for owner in owners:
            shared[place[id(owner)]] += 1
    return _Attributed(by_device=by_device, shared=shared, foreign=foreign, claims_bytes=values.total(of_claims))


def _use(gpu: _Gpu, held: HeldPart, processes: Sequence[values.SeenProcess] | None, shared: int) -> values.DeviceUse:
    instance, whole = _instance(gpu, held), _alone(gpu, held)
    basis, used = (
        values.Basis.PROCESSES,
        values.total(each.memory_bytes for each in processes) if processes is not None else None,
    )
    percent = values.total(each.sm_percent for each in processes) if processes is not None else None
    if used is None and not shared and (instance is not None or whole is not None):
        basis = values.Basis.DEVICE
        used = instance.memory_used if instance is not None else whole.memory_used if whole is not None else None
    if instance is not None:
        percent = instance.sm_percent
    elif percent is None and whole is not None:
        percent = whole.gpu_percent
    alone = instance.busy_percent if instance is not None else whole.busy_percent if whole is not None else None
    busy = busiest(each.busy_percent for each in processes) if processes is not None else None
    return values.DeviceUse(
        claim=held.claim,
        assigned=held.device,
        basis=basis,
        processes=None if processes is None else tuple(processes),
        shared_processes=shared,
        used_bytes=None if shared else used,
        sm_percent=None if shared or percent is None else min(percent, 100),
        busy_percent=alone or busy or (0 if 0 in (alone, busy) else None),
        containers=gpu.attribution.containers(held) if gpu.attribution is not None else None,
    )


def _alone(gpu: _Gpu, held: HeldPart) -> GpuUsage | None:
    """The reading of a whole GPU that only the claim has."""
    is_whole = held.device.form is Form.WHOLE and not held.device.admin_access
    return gpu.reading if is_whole and gpu.reading is not None and not gpu.reading.mig_enabled else None


def _instance(gpu: _Gpu, held: HeldPart) -> InstanceUsage | None:
    """The reading of a partition that only the claim has."""
    device = held.device
    if gpu.reading is None or device.form is not Form.PARTITION or device.gi_id is None or device.admin_access:
        return None
    return next((each for each in gpu.reading.instances if each.gi_id == device.gi_id), None)


def _totals(
    gpu: _Gpu, named: values.AssignedGpu | None, uses: Sequence[values.DeviceUse], found: _Attributed | None
) -> values.GpuUse:
    in_use = gpu.reading.memory_used if gpu.reading is not None else None
    reserved = gpu.reading.memory_reserved if gpu.reading is not None else None
    claims = None
    if in_use is not None:
        own = (each.used_bytes for each in uses if not each.assigned.admin_access)
        claims = found.claims_bytes if found is not None else values.total(own)
    # Memory of processes is read after that of the GPU, and may have grown.
    rest = max(0, in_use - claims) if in_use is not None and claims is not None else None
    used = claims + rest if claims is not None and rest is not None else in_use
    plain = values.GpuUse(
        device=named.device if named is not None else "",
        gpu_uuid=gpu.uuid,
        reading=gpu.reading,
        used_bytes=None if used is None else used + (reserved or 0),
        reserved_bytes=reserved,
        claims_bytes=claims,
        unattributed_bytes=rest,
        unattributed=tuple(found.foreign) if found is not None else None,
    )
    return plain if named is None else replace(plain, model=named.model, changing=named.changing, rules=named.rules)
