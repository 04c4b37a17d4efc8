"""The intent of a claim that changes hardware is durable before the first change.

That a durable write reaches the disk is shown by tests/contract/node/claims/test_durability.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dra_driver.core.model.claim import AllocatedClaim
from dra_driver.core.model.terms import GpuTerms, SharingTerms, Strategy
from tests.fakes.claims import claim, result, share_result
from tests.unit.node.claims.conftest import ClaimsNode, simulated
from tests.unit.node.claims.test_kill_hardware import GPU, SHARING, mps_config, slice_config

HARDWARE = GPU | SHARING


class Recorder:
    """Passes every call on to ``target``; ``calls`` has the name and the keyword arguments of each, in order."""

    def __init__(self, target: Any, calls: list[tuple[str, dict[str, Any]]]) -> None:
        self._target = target
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if not callable(found):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls.append((name, kwargs))
            return found(*args, **kwargs)

        return call


@pytest.mark.parametrize(
    "wanted",
    [
        lambda node: claim(1, result(node.part("1g.10gb", 0))),
        lambda node: claim(1, result("gpu-0"), configs=[mps_config("GpuConfig")]),
        lambda node: claim(1, configs=[slice_config()]),
        lambda node: claim(1, share_result(1, "10Gi", 10, device="gpu-1")),
    ],
    ids=["partition", "GPU under MPS", "time-sliced GPU", "share"],
)
def test_begin_is_durable_before_hardware_changes(
    tmp_path: Path, wanted: Callable[[ClaimsNode], AllocatedClaim]
) -> None:
    """After a power cut the journal knows what may have been changed."""
    calls: list[tuple[str, dict[str, Any]]] = []
    node = ClaimsNode(tmp_path, backend=simulated(), wrap=lambda each: Recorder(each, calls))
    node.terms = {node.gpus[1].uuid: GpuTerms(sharing=SharingTerms(strategy=Strategy.MPS))}
    node.run().prepare(wanted(node))
    names = [name for name, _ in calls]
    begin = names.index("begin")
    assert calls[begin][1] == {"durable": True}
    assert begin < min(at for at, name in enumerate(names) if name in HARDWARE)
    node.opened[0].close()
