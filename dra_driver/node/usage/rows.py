"""A look as rows: what one container has of one device of a claim. Pure.

A value that cannot be divided between several containers is in a row of its own without pod and container, so that the
sum over a claim's rows is right.
"""

from collections.abc import Iterable

from msgspec import Struct

from dra_driver.core.model.terms import Form
from dra_driver.node.usage.idle import device_used
from dra_driver.node.usage.values import Basis, ContainerRef, DeviceUse, SeenProcess


class RowKey(Struct, frozen=True, order=True):
    """Labels of one row. ``share`` is "" without one; ``pod`` and ``container`` are "" for the device as a whole."""

    namespace: str
    claim: str
    uid: str
    request: str
    pool: str
    device: str
    share: str
    pod: str
    container: str


class RowUse(Struct, frozen=True, kw_only=True):
    """What is in use at one look. ``sm_percent`` is of the whole GPU, and for partitions of the instance. Each None
    where it is not known."""

    used_bytes: int | None = None
    sm_percent: int | None = None
    processes: int | None = None
    is_used: bool | None = None


def rows_of(use: DeviceUse) -> dict[RowKey, RowUse]:
    """The rows of a device; at least one."""
    places = dict.fromkeys((each.pod.name, each.container) for each in _containers(use))
    if len(places) == 1 or (not places and use.shared_processes == 0):
        pod, container = next(iter(places), ("", ""))
        return {_key(use, pod, container): _whole(use)}
    found = {_key(use, *place): _part(use, place) for place in places}
    if use.basis is Basis.DEVICE or use.assigned.form is Form.PARTITION:
        # Memory or utilisation is the device's alone.
        used = use.used_bytes if use.basis is Basis.DEVICE else None
        found[_key(use, "", "")] = RowUse(used_bytes=used, sm_percent=use.sm_percent)
    return found or {_key(use, "", ""): RowUse()}


def _containers(use: DeviceUse) -> Iterable[ContainerRef]:
    yield from use.containers or ()
    yield from (each.container for each in use.processes or () if each.container is not None)


def _key(use: DeviceUse, pod: str, container: str) -> RowKey:
    claim, device = use.claim, use.assigned
    share = device.share_id or ""
    return RowKey(
        claim.namespace, claim.name, claim.uid, device.request, device.pool, device.device, share, pod, container
    )


def _whole(use: DeviceUse) -> RowUse:
    return RowUse(
        used_bytes=use.used_bytes,
        sm_percent=use.sm_percent,
        processes=None if use.processes is None else len(use.processes) + use.shared_processes,
        is_used=device_used(use),
    )


def _part(use: DeviceUse, place: tuple[str, str]) -> RowUse:
    if use.processes is None or use.shared_processes or use.basis is Basis.DEVICE:
        return RowUse()
    own = [each for each in use.processes if each.container is not None and _place(each.container) == place]
    percents = [each.sm_percent for each in own if each.sm_percent is not None]
    is_known = len(percents) == len(own) and use.assigned.form is not Form.PARTITION
    return RowUse(
        used_bytes=_memory(own),
        sm_percent=min(100, sum(percents)) if is_known else None,
        processes=len(own),
        is_used=any(percents) if is_known else None,
    )


def _place(container: ContainerRef) -> tuple[str, str]:
    return container.pod.name, container.container


def _memory(processes: Iterable[SeenProcess]) -> int | None:
    sizes = [each.memory_bytes for each in processes]
    return None if None in sizes else sum(size for size in sizes if size is not None)
