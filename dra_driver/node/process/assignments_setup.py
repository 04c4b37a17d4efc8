"""Connects ``assignments.json`` with the journal, the inventory, the policies and detaching; and with simulated GPUs,
what claims use of them with the journal.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dra_driver.config.settings import NodeSettings
from dra_driver.core.model.terms import terms_of
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.node.process.assignments_file import VERSION, AssignmentsFile, AssignmentSources, ToldGpu, time_text
from dra_driver.node.process.claim_manager import ClaimManager
from dra_driver.node.process.detaching import Detaching
from dra_driver.node.process.hardware import Hardware
from dra_driver.node.process.terms_resolver import TermsResolver
from dra_driver.node.process.usage_setup import FOLDER

if TYPE_CHECKING:
    from dra_driver.node.process.simulated_uses import ClaimObjects, SimulatedUses

Parts = Callable[[], tuple[ClaimManager | None, Inventory | None, TermsResolver | None, Detaching | None]]
"""The parts of the node process that have something to tell; each None before it is made."""


class AssignmentsService:
    """What the usage exporter is told; nothing unless the settings ask for it. ``start`` once all parts are made."""

    def __init__(
        self, settings: NodeSettings, plugin_dir: Path, parts: Parts, now: Callable[[], float] = time.time
    ) -> None:
        self._parts = parts
        self._file: AssignmentsFile | None = None
        self._simulated = plugin_dir if settings.simulate is not None else None
        self._uses: SimulatedUses | None = None
        if settings.usage:
            header = {"version": VERSION, "node": settings.node_name, "driver": settings.driver_name}
            header["processStarted"] = time_text(now())
            sources = AssignmentSources(entries=self._entries, gpus=self._gpus, detached=self._detached)
            self._file = AssignmentsFile(plugin_dir / FOLDER, header, sources)

    def watched(self, hardware: Hardware) -> Hardware:
        """The hardware, whose changes of MIG mode and partitions are told while they run."""
        return hardware if self._file is None else replace(hardware, changing=self._file.changing)

    def start(self, rest: "ClaimObjects") -> None:
        if self._file is not None:
            self._file.start()
        if self._simulated is not None:
            from dra_driver.node.process import simulated_uses  # noqa: PLC0415 - real GPUs do not need it

            self._uses = simulated_uses.SimulatedUses(rest, self._entries, self._simulated / simulated_uses.NAME)
            self._uses.start()

    def stop(self, timeout_s: float) -> None:
        """Idempotent."""
        if self._file is not None:
            self._file.stop(timeout_s)
        if self._uses is not None:
            self._uses.stop(timeout_s)

    def claims_changed(self) -> None:
        """Returns at once."""
        if self._file is not None:
            self._file.claims_changed()
        if self._uses is not None:
            self._uses.wake()

    def wake(self) -> None:
        """Policies, GPUs or detaching changed. Returns at once."""
        if self._file is not None:
            self._file.wake()

    def _entries(self) -> list[object]:
        claims = self._parts()[0]
        return list(claims.journal.entries()) if claims is not None else []

    def _gpus(self) -> list[ToldGpu]:
        _, inventory, resolver, _ = self._parts()
        terms = resolver.current() if resolver is not None else {}
        return [
            ToldGpu(
                device=gpu.device_name,
                gpu_uuid=gpu.uuid,
                model=gpu.product_name,
                rules=terms_of(terms, gpu.uuid).usage,
            )
            for gpu in (inventory.current().gpus if inventory is not None else ())
        ]

    def _detached(self) -> str | None:
        detaching = self._parts()[3]
        if detaching is None or not detaching.is_detached:
            return None
        return detaching.problem or "the NVIDIA driver is given up"
