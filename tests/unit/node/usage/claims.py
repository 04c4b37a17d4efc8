"""Claims and pods that the tests of usage share."""

from datetime import UTC, datetime
from typing import Any

from dra_driver.core.model.claim import ClaimRef
from dra_driver.core.model.ids import ClaimUid
from dra_driver.core.model.usage_findings import UsingPod

NOW = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
GIB = 2**30
MIB = 2**20


def claim(name: str = "llm") -> ClaimRef:
    return ClaimRef(namespace="team", name=name, uid=ClaimUid(f"uid-{name}"))


def named(ref: ClaimRef) -> dict[str, Any]:
    """The fields of a finding that name its claim."""
    return {"claim_uid": ref.uid, "namespace": ref.namespace, "claim": ref.name}


def pod(name: str = "llm-0") -> UsingPod:
    return UsingPod(namespace="team", name=name, uid=f"uid-{name}")
