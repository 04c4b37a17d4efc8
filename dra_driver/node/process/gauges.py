"""Counts what is in the journal, for metrics."""

from collections import Counter

from dra_driver.config.settings import NodeSettings
from dra_driver.core.model.terms import Form
from dra_driver.core.telemetry import metrics
from dra_driver.node.process.claim_manager import ClaimManager


def update(claims: ClaimManager, settings: NodeSettings) -> None:
    """Sets the gauges of claims and devices. Reads every claim of the journal; may raise StorageError."""
    metrics.prepared_claims.set(claims.counts().claims)
    forms = Counter(use.form for use in claims.journal.uses())
    found = {"gpu": forms[Form.WHOLE] + forms[Form.SHARE], "mig": forms[Form.PARTITION]}
    for kind, count in found.items():
        metrics.nvidia_prepared_devices.labels(settings.node_name, settings.driver_name, kind).set(count)
    for form in Form:
        metrics.prepared_devices.labels(form.value).set(forms[form])
