"""Connects `ClaimEvents` with the journal and the API server."""

from collections.abc import Iterable
from functools import partial

from dra_driver.config.settings import NodeSettings
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Journal
from dra_driver.node.process.claim_events import ClaimEvents, HeldDevices, Refusals
from dra_driver.node.process.health_report import ReportedDevice
from dra_driver.node.process.node_events import COMPONENT


def open_claim_events(settings: NodeSettings, rest: RestClient, journal: Journal) -> ClaimEvents | None:
    """None unless the settings ask for it."""
    if not (settings.claim_events and (settings.health or settings.usage)):
        return None
    recorder = EventRecorder(rest, COMPONENT, settings.node_name, refused=Refusals())
    return ClaimEvents(rest, recorder, claims=partial(held_devices, journal))


def held_devices(journal: Journal) -> Iterable[HeldDevices]:
    """The prepared claims in the journal, with the devices of admin access too. Raises StorageError."""
    for entry in journal.entries():
        if entry.state == "prepared":
            devices = (
                ReportedDevice(
                    pool=device.pool,
                    device=device.device,
                    gpu_uuid=device.gpu_uuid,
                    partition=device.partition.id if device.partition is not None else None,
                )
                for device in entry.devices
            )
            yield HeldDevices(ref=entry.ref, devices=tuple(devices))
