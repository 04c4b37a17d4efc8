"""Objects that stay as they are, and those of the GPU Operator that only it understands. Pure."""

from collections.abc import Mapping
from typing import Final

from dra_driver.kubectl.migrate.input import InputDocument
from dra_driver.kubectl.migrate.ledger import FieldOutcome, Ledger, MigrationNote

_OPERATOR: Final[Mapping[str, str]] = {
    "NVIDIADriver": "the GPU Operator goes on installing the NVIDIA driver",
    "GPUCluster": "it deploys NVIDIA's own DRA driver, which has this driver's name: one of the two on a node",
}
_UNTOUCHED: Final = "stays as it is and is not printed: it asks for no GPU"


def translate_operator_object(document: InputDocument) -> tuple[MigrationNote, ...]:
    """An object of the operator's API other than a ClusterPolicy."""
    reason = _OPERATOR.get(document.kind, "an object of the GPU Operator, which goes on with it beside this driver")
    return Ledger(document).close(FieldOutcome.NOT_CARRIED, reason)


def untouched(document: InputDocument, text: str = _UNTOUCHED) -> tuple[MigrationNote, ...]:
    """An object that is not about GPUs."""
    return Ledger(document).close(FieldOutcome.CARRIED, text)
