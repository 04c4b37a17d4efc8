"""Connects `Detaching` with what asks (the Node object, a file), the journal, and the Node's events."""

import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.kube.events import EventRecorder
from dra_driver.kube.own_node import OwnNodeWatch
from dra_driver.node.claims import PrepareGate
from dra_driver.node.process.claim_manager import ClaimManager
from dra_driver.node.process.detach_request import FILE, DetachFile, find_request
from dra_driver.node.process.detaching import Detaching
from dra_driver.node.process.hardware import Hardware
from dra_driver.node.process.node_events import tell

log = logging.getLogger(__name__)

FIRST_NODE_S: Final = 2.0
"""How long a start waits for the Node object: a process that starts while the driver is being upgraded must not open
it. Without an answer it goes on, and detaches when the answer comes."""


def open_detaching(
    plugin_dir: Path,
    hardware: Hardware,
    inventory: Inventory,
    *,
    gate: PrepareGate,
    claims: ClaimManager,
    own_node: OwnNodeWatch,
    events: EventRecorder,
    changed: Callable[[], None],
    published: Callable[[], bool],
) -> Detaching:
    """Call it before the hardware is first opened: it detaches at once when that is asked for.

    Later changes are followed after `Detaching.start`, but for the file's: see `look_for_file`. ``changed`` is called
    when what is published has to change; ``published`` says whether the API server has it.
    """
    file = DetachFile(plugin_dir / FILE)
    detaching = Detaching(
        hardware.backend,
        inventory,
        gate,
        find=lambda: find_request(own_node.current(), file.read(), file.path),
        prepared=lambda: claims.counts().claims,
        changed=changed,
        published=published,
        tell=partial(tell, own_node, events),
        let_go=hardware.changing.exporter.let_go if hardware.changing is not None else lambda: True,
    )
    own_node.subscribe(detaching.wake)
    if not own_node.wait_first(FIRST_NODE_S):
        log.warning("the Node object has not been read; the NVIDIA driver is used without knowing its annotations")
    detaching.step()
    return detaching


def look_for_file(detaching: Detaching, plugin_dir: Path) -> None:
    """Wake ``detaching`` while the file that asks exists; for every second."""
    if os.path.lexists(plugin_dir / FILE):
        detaching.wake()
