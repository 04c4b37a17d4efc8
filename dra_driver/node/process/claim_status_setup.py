"""Connects `ClaimStatus` with the journal, the API server and the Node's events."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

from dra_driver.config.settings import NodeSettings
from dra_driver.kube.discovery import server_version
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Journal
from dra_driver.node.process.claim_status import EVENT, ClaimFacts, ClaimStatus, DeviceFacts
from dra_driver.node.process.health_events import Tell

FILE: Final = "claim-status.json"


def open_claim_status(
    settings: NodeSettings, folder: Path, rest: RestClient, journal: Journal, tell: Tell
) -> ClaimStatus | None:
    """None unless the settings ask for it."""
    if not settings.claim_status:
        return None
    return ClaimStatus(
        rest,
        settings.driver_name,
        folder / FILE,
        version=partial(server_version, rest),
        claims=partial(prepared_claims, journal),
        warn=partial(tell, "Warning", EVENT),
        waits_for_health=settings.health,
    )


def prepared_claims(journal: Journal) -> Iterable[ClaimFacts]:
    """The prepared claims in the journal. Raises StorageError."""
    return [
        ClaimFacts(
            ref=entry.ref,
            since=entry.changed_at,
            devices=tuple(
                DeviceFacts(pool=each.pool, device=each.device, share_id=each.share_id, data=data_of(each))
                for each in entry.devices
            ),
        )
        for entry in journal.entries()
        if entry.state == "prepared"
    ]


def data_of(device: Any) -> dict[str, Any]:
    """UUID, placement and share of a device (``claims.entry.AssignedDevice``), as ``status.devices[].data``."""
    data: dict[str, Any] = {"uuid": device.gpu_uuid}
    partition, sharing = device.partition, device.sharing
    if partition is not None:
        live = partition.live
        data = {"uuid": live.uuid if live is not None else None, "parentUUID": device.gpu_uuid}
        place = {"profile": partition.profile_name, "start": partition.id.start, "size": partition.size}
        data["placement"] = place
    if sharing is not None and sharing.share is not None:
        asked = {"strategy": sharing.strategy.value, "computePercent": sharing.share.percent}
        data["share"] = asked | ({"memoryBytes": sharing.share.memory} if sharing.share.memory is not None else {})
    return {key: value for key, value in data.items() if value is not None}
