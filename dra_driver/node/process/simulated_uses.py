"""Lets the pods of claims use simulated GPUs as an annotation of the claim says
(``hardware/gpu/simulated/usage.py``).

Only a node process with simulated GPUs has this. It reads each claim once after it was prepared and writes the file
``hardware/gpu/simulated/usage.py``, which the usage exporter reads. No call of the kubelet waits for it.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.core.errors import DraError, NotFoundError
from dra_driver.core.telemetry import metrics
from dra_driver.core.worker import Worker
from dra_driver.hardware.gpu.simulated.usage import ANNOTATION, NAME, SimulatedUse, UseStep, change_uses, parse_steps
from dra_driver.kube import paths
from dra_driver.kube.rest import RestClient
from dra_driver.node.claims import Entry

__all__ = ["NAME", "SimulatedUses"]

log = logging.getLogger(__name__)

THREAD_NAME: Final = "simulated-uses"
RETRY_S: Final = 5.0
CHECK_S: Final = 60.0
"""Should a change have been missed."""
READ_S: Final = 10.0


class SimulatedUses:
    """``worker`` runs it; wake it when a claim was prepared or unprepared.

    ``entries`` are the journal's and may raise StorageError; ``file`` is written.
    """

    def __init__(self, rest: RestClient, entries: Callable[[], Iterable[Entry]], file: Path) -> None:
        self._rest, self._entries, self._file = rest, entries, file
        self._steps: dict[str, tuple[UseStep, ...]] = {}  # by the UID of a claim; () without a valid annotation
        self.worker = Worker(
            THREAD_NAME,
            self._turn,
            on_error=partial(metrics.internal_error, "assignments"),
            after_error_s=RETRY_S,
        )

    def _turn(self) -> float:
        try:
            self.step()
        except DraError as error:
            log.warning("simulated uses cannot be changed; will retry", extra={"reason": error})
            return RETRY_S
        return CHECK_S

    def step(self) -> None:
        """Write what prepared claims use, and drop claims that no longer exist; uses by process id stay. Raises
        DraError: call it again later."""
        prepared = {entry.ref.uid: entry for entry in self._entries() if entry.state == "prepared"}
        self._steps = {uid: self._read(entry) for uid, entry in prepared.items()}
        uses = tuple(use for uid, entry in prepared.items() for use in _uses(entry, self._steps[uid]))
        change_uses(self._file, lambda former: (*(use for use in former if use.claim_uid is None), *uses))

    def _read(self, entry: Entry) -> tuple[UseStep, ...]:
        ref = entry.ref
        if ref.uid in self._steps:
            return self._steps[ref.uid]
        try:
            claim = self._rest.get(paths.resource_claim(ref.namespace, ref.name), within_s=READ_S)
        except NotFoundError:
            return ()
        metadata = claim.get("metadata") or {}
        text = (metadata.get("annotations") or {}).get(ANNOTATION)
        if text is None or metadata.get("uid") != ref.uid:
            return ()
        try:
            return parse_steps(text)
        except ValueError as error:
            log.warning("a simulated use is refused", extra={"claim": ref, "annotation": ANNOTATION, "reason": error})
            return ()


def _uses(entry: Entry, steps: tuple[UseStep, ...]) -> Sequence[SimulatedUse]:
    """One for each device of the claim that exists, without those that it only watches."""
    if not steps:
        return ()
    return [
        SimulatedUse(
            key=f"{entry.ref.uid}/{device.request}/{device.device}/{device.share_id or ''}",
            gpu_uuid=device.gpu_uuid,
            gi_id=device.partition.live.gi_id if device.partition is not None and device.partition.live else None,
            since=entry.changed_at,
            claim_uid=entry.ref.uid,
            steps=steps,
        )
        for device in entry.devices
        if not device.admin_access and (device.partition is None or device.partition.live is not None)
    ]
