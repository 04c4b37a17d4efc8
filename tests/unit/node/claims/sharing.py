"""What the tests of shared GPUs have in common."""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from dra_driver.config.parameters import API_VERSION
from dra_driver.core.model.claim import AllocatedDevice, OpaqueConfig
from dra_driver.core.model.ids import GpuUuid
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from dra_driver.hardware.gpu.backend import ComputeMode
from tests.fakes.claims import share_result, uid
from tests.unit.node.claims.conftest import ClaimsNode, Run, simulated


def shared(node: ClaimsNode, strategy: Strategy = Strategy.MPS, **more: Any) -> Run:
    """A run on a node with two H100, the first of which is shared."""
    node.backend = simulated()
    terms = SharingTerms(strategy=strategy, **more)
    node.terms = {node.gpus[0].uuid: GpuTerms(policy="shared-gpus", sharing=terms)}
    return node.run()


def config(kind: str, sharing: Mapping[str, Any], *requests: str, source: Any = "FromClaim") -> OpaqueConfig:
    return OpaqueConfig(
        source=source, requests=requests, parameters={"apiVersion": API_VERSION, "kind": kind, "sharing": sharing}
    )


def mps(**limits: Any) -> dict[str, Any]:
    return {"strategy": "MPS", "mpsConfig": limits}


def slicing(interval: str) -> dict[str, Any]:
    return {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": interval}}


def mode(run: Run, minor: int = 0) -> ComputeMode:
    return run.node.simulation.compute_mode(run.node.gpus[minor].uuid)


def file(run: Run, number: int) -> str:
    return run.node.writer.files[uid(number)].decode()


def uuid(run: Run, minor: int) -> GpuUuid:
    return run.node.gpus[minor].uuid


def one_of_some(number: int, memory: str = "1Gi", percent: int = 1, **more: Any) -> AllocatedDevice:
    """A share of a GPU whose policy limits their number."""
    share = share_result(number, memory, percent, **more)
    return replace(share, consumed_capacity={**share.consumed_capacity, "shares": "1"})
