"""Open the claims of a node with the hardware, files and API server of the settings."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from dra_driver.config.settings import NodeSettings
from dra_driver.core.errors import ConfigurationError, StorageError
from dra_driver.core.model.terms import Form, Terms
from dra_driver.core.telemetry import metrics
from dra_driver.hardware.cdi import CdiNames, CdiProvider, CdiWriter
from dra_driver.hardware.gpu.inventory import Inventory
from dra_driver.hardware.mig.manager import CreationWatch
from dra_driver.kube.claims import ApiClaimReader, BoundedGetter
from dra_driver.node.claims import Claims, Journal, PrepareGate, open_claims
from dra_driver.node.process.hardware import MPS, Hardware, HostDeviceNodes
from dra_driver.node.slices import pool_name

METADATA = "dra-device-metadata"
"""Directory of metadata files below that of the plugin, as upstream's."""
_RELEASES: frozenset[metrics.ClaimEvent] = frozenset({"unprepared", "undone", "collected"})
_REPAIRS: frozenset[metrics.ClaimEvent] = frozenset({"repeated", "waited", "file-rewritten", "orphan-removed"})


def open_provider(
    settings: NodeSettings, hardware: Hardware, nodes: HostDeviceNodes, names: CdiNames, writer: CdiWriter
) -> CdiProvider:
    """The provider of CDI documents, which has nvidia-uvm loaded before it writes its numbers. Opens nothing itself."""
    return CdiProvider(
        hardware.root,
        names,
        writer,
        hardware.proc_devices,
        settings.nvidia_cdi_hook_path,
        proc_driver=hardware.proc_driver,
        host=hardware.host,
        majors=nodes.uvm.majors,
        simulated=settings.simulate is not None,
    )


def open_writer(settings: NodeSettings, plugin_dir: Path, names: CdiNames) -> CdiWriter:
    return CdiWriter(settings.cdi_dir, names, metadata_dir=str(plugin_dir / METADATA))


def open_node_claims(
    settings: NodeSettings,
    plugin_dir: Path,
    *,
    rest: BoundedGetter,
    names: CdiNames,
    writer: CdiWriter,
    provider: CdiProvider,
    inventory: Inventory,
    hardware: Hardware,
    device_nodes: HostDeviceNodes,
    terms: Callable[[], Terms] = dict,
    watch: CreationWatch | None = None,
    gate: PrepareGate,
    released: Callable[[], None] = lambda: None,
    changed: Callable[[], None] = lambda: None,
) -> Claims:
    """Open the journal in ``plugin_dir``. Raises ConfigurationError if it cannot be opened. ``released`` is called when
    a claim may have left the journal, ``changed`` when one may have entered or left; both must return immediately."""
    try:
        return open_claims(
            plugin_dir,
            pool=pool_name(settings.node_name, settings.driver_name),
            names=names,
            reader=ApiClaimReader(rest, settings.driver_name),
            writer=writer,
            metadata=settings.device_metadata,
            provider=provider,
            device_nodes=device_nodes,
            snapshot=inventory.current,
            hardware=lambda journal: hardware.tools(
                journal, plugin_dir / MPS, inventory.refresh, inventory.current, watch
            ),
            terms=terms,
            count=partial(_count, released, changed),
            boot_id_file=Path(settings.boot_id_file),
            gate=gate,
        )
    except StorageError as error:
        raise ConfigurationError(f"cannot start without a journal: {error}") from error


def _count(released: Callable[[], None], changed: Callable[[], None], event: metrics.ClaimEvent) -> None:
    metrics.claim_events_total.labels(event).inc()
    if event in _RELEASES:
        released()
    if event not in _REPAIRS:
        changed()


def update_gauges(journal: Journal, settings: NodeSettings) -> None:
    """Set the gauges of claims and devices. Reads every claim of the journal; can raise StorageError."""
    metrics.prepared_claims.set(journal.count_claims())
    forms = Counter(use.form for use in journal.uses())
    found = {"gpu": forms[Form.WHOLE] + forms[Form.SHARE], "mig": forms[Form.PARTITION]}
    for kind, count in found.items():
        metrics.nvidia_prepared_devices.labels(settings.node_name, settings.driver_name, kind).set(count)
    for form in Form:
        metrics.prepared_devices.labels(form.value).set(forms[form])
