"""The steps from a process to the devices of claims that it may use. Pure."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.terms import Form
from dra_driver.core.model.usage import ProcessUsage
from dra_driver.core.model.usage_findings import UsingPod
from dra_driver.node.usage.containers import LogIndex
from dra_driver.node.usage.sources import PodClaims, ProcessFacts
from dra_driver.node.usage.values import AssignedUse, ContainerRef, SeenProcess

_DeviceKey = tuple[str, str, str, str, str | None]
"""Namespace and name of a claim, pool, device, share. Kubelets before 1.35 report no share."""


class HeldPart(Struct, frozen=True):
    """One device of a claim. Compared by identity where two claims have equal devices."""

    claim: ClaimRef
    device: AssignedUse

    @property
    def key(self) -> _DeviceKey:
        return self.claim.namespace, self.claim.name, self.device.pool, self.device.device, self.device.share_id


class Attribution:
    """One look in which /proc, the links of logs and the kubelet's PodResources could be read."""

    def __init__(self, facts: Mapping[int, ProcessFacts], logs: LogIndex, pods: PodClaims) -> None:
        self._facts, self._logs, self._pods = facts, logs, pods
        found: dict[_DeviceKey, list[ContainerRef]] = {}
        for (namespace, name), containers in sorted(pods.items()):
            pod = UsingPod(namespace=namespace, name=name, uid="")
            for container, devices in sorted(containers.items()):
                for key in dict.fromkeys(device.key for device in devices):
                    found.setdefault(key, []).append(ContainerRef(pod=pod, container=container))
        self._containers = {key: tuple(each) for key, each in found.items()}

    def containers(self, held: HeldPart) -> tuple[ContainerRef, ...]:
        """The containers that have the device, as the kubelet tells; without the UIDs of their pods."""
        return self._containers.get(held.key) or self._containers.get((*held.key[:4], None), ())

    def seen(self, process: ProcessUsage) -> SeenProcess:
        facts = self._facts.get(process.pid)
        place = facts.place if facts is not None else None
        return SeenProcess(
            pid=process.pid,
            command=facts.command if facts is not None else "",
            gi_id=process.gi_id,
            memory_bytes=process.memory_bytes,
            sm_percent=process.sm_percent,
            container=self._logs.container(place) if place is not None else None,
        )

    def owners(self, process: SeenProcess, held: Sequence[HeldPart]) -> list[HeldPart]:
        """Those of ``held``, all on the process' GPU, that it may use; those with admin access only if no other.

        ``held`` has claims of one name in the order in which they were prepared: the kubelet tells no UID, and the
        last one is it.
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

    def _keys(self, container: ContainerRef) -> frozenset[_DeviceKey]:
        """The container's devices. Of an init container, which the kubelet does not list, those of its pod."""
        of_pod = self._pods.get((container.pod.namespace, container.pod.name), {})
        devices = of_pod.get(container.container)
        if devices is None:
            devices = tuple(device for each in of_pod.values() for device in each)
        return frozenset(device.key for device in devices)


def _covers(device: AssignedUse, process: SeenProcess) -> bool:
    return process.gi_id == device.gi_id if device.form is Form.PARTITION else process.gi_id is None
